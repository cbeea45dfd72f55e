"""The throttle of replicas that are not in sync."""

from __future__ import annotations

import pytest

from penstock.engine.replication.catch_up import CatchUpThrottle
from penstock.engine.replication.counts import ReplicationCounts


def copied(throttle: CatchUpThrottle, rate: int, seconds: int, size: int) -> int:
    """Return the bytes that are copied in some time, asked for whenever that is allowed."""
    total = 0
    for tick in range(seconds * 10):
        now = tick / 10
        if throttle.may_copy(now, rate):
            throttle.spend(now, size, rate)
            total += size
    return total


@pytest.mark.parametrize("size", [10, 1_000, 25_000])
def test_a_move_copies_no_more_than_its_rate(size: int) -> None:
    total = copied(CatchUpThrottle(0), 1_000, 60, size)
    assert total <= 1_000 * 61 + size
    assert total >= min(size * 600, 1_000 * 59)


def test_the_smaller_of_two_rates_counts() -> None:
    assert copied(CatchUpThrottle(100), 1_000, 60, 10) <= 100 * 61 + 10
    assert copied(CatchUpThrottle(1_000), 100, 60, 10) <= 100 * 61 + 10


def test_moves_with_one_rate_share_it() -> None:
    throttle = CatchUpThrottle(0)
    throttle.spend(0.0, 3_000, 1_000)
    assert not throttle.may_copy(1.0, 1_000)
    assert throttle.may_copy(1.0, 2_000)
    assert throttle.may_copy(2.0, 1_000)


def test_without_a_rate_there_is_no_limit() -> None:
    assert copied(CatchUpThrottle(0), 0, 1, 1 << 30) == 10 << 30


def test_the_time_for_which_shards_are_held_back_is_counted_once() -> None:
    throttle, counts = CatchUpThrottle(5_000), ReplicationCounts()
    throttle.report(0.0, counts)
    assert (counts.throttled_s, counts.throttled_shards, counts.catch_up_limit) == (0, 0, 5_000)
    for shard in ("a", "b"):
        assert not throttle.admits(10.0, shard, 1_000, 4_000)
    throttle.report(12.0, counts)
    assert (counts.throttled_s, counts.throttled_shards, counts.catch_up_limit) == (2, 2, 1_000)
    assert throttle.due(17.0) == ["a", "b"]
    throttle.report(30.0, counts)
    assert (counts.throttled_shards, counts.catch_up_limit) == (0, 5_000)
    assert counts.throttled_s == 2, "between two ticks nothing was counted"
