"""What a leader says of the transactions of a shard to nodes that follow it."""

from __future__ import annotations

from penstock.engine.transactions.stable_offsets import StableOffsets
from penstock.meta import AbortedRange

SHARD = "orders_0"


def limits_with(*aborted: tuple[int, int]) -> StableOffsets:
    limits = StableOffsets()
    limits.load_aborted(
        AbortedRange(SHARD, first, 100 + number, last)
        for number, (first, last) in enumerate(aborted)
    )
    return limits


def test_a_shard_is_decided_up_to_its_oldest_open_transaction() -> None:
    limits = limits_with((2, 5), (30, 40))
    assert limits.decided(SHARD, 0, 50, 9)[0] == 50
    limits.hold_written(SHARD, 7, 20)
    until, aborted = limits.decided(SHARD, 0, 50, 9)
    assert (until, [one.first_offset for one in aborted]) == (20, [2])
    assert limits.decided(SHARD, 6, 50, 9) == (20, []), "those before the offset do not matter"
    assert limits.decided(SHARD, 0, 10, 9)[0] == 10, "not past what is committed"


def test_an_answer_with_many_aborted_transactions_ends_before_the_next_one() -> None:
    limits = limits_with(*((10 * number, 10 * number + 5) for number in range(6)))
    until, aborted = limits.decided(SHARD, 0, 100, 2)
    assert (until, [one.first_offset for one in aborted]) == (20, [0, 10])
    until, aborted = limits.decided(SHARD, until, 100, 2)
    assert (until, [one.first_offset for one in aborted]) == (40, [20, 30])
    together = limits_with(*((0, 50 + number) for number in range(4)))
    until, aborted = together.decided(SHARD, 0, 100, 2)
    assert (until, len(aborted)) == (100, 4), "all of them begin at the offset: no other end exists"


def test_the_next_transaction_of_a_producer_does_not_begin_where_the_last_one_began() -> None:
    limits = StableOffsets()
    limits.hold_written(SHARD, 7, 20, started_ms=1)
    limits.hold(SHARD, 7, 50, started_ms=2)
    assert limits.firsts(7) == {SHARD: 50}
    limits.hold_written(SHARD, 7, 30, started_ms=1)
    assert limits.firsts(7) == {SHARD: 50}, "what comes late of the last one changes nothing"
    limits.hold_written(SHARD, 7, 45, started_ms=2)
    assert limits.firsts(7) == {SHARD: 45}
    assert limits.release(7, until_ms=1) == []
    assert limits.transactions() == {(7, 2)}
    assert limits.release(7, until_ms=2) == [SHARD]
    assert limits.stable_until(SHARD) is None
