"""The dispatch pipeline: every committed record reaches every dispatcher, whatever fails."""

from __future__ import annotations

import errno
import logging
from itertools import pairwise

import pytest
from tests.engine.segment.dispatch.dispatch_bench import DIRECTORY, EVENTS, ORDERS, Bench, Collector

from penstock.engine.segment.dispatch.positions import POSITIONS, DispatchPositions
from penstock.engine.segment.dispatch.worker import (
    BATCHES_PER_TURN,
    RECORDS_MAX,
    RETRY_MAX_S,
    STREAKS_LOGGED_MAX,
)
from penstock.engine.segment.recovery.checksummed_file import frame
from penstock.errors import (
    AlreadyExistsError,
    BadRequestError,
    ClosedError,
    CorruptionError,
    NotSupportedError,
)
from penstock.record import ShardId
from penstock.testing import FaultyDisk


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_records_come_in_order_in_bounded_batches(bench: Bench) -> None:
    collector = Collector()
    bench.pipeline.register(collector)
    bench.shards.append(ORDERS, RECORDS_MAX * 2 + 5)
    assert bench.pipeline.run_once() == 3
    assert [len(offsets) for _, offsets in collector.batches] == [RECORDS_MAX, RECORDS_MAX, 5]
    handed_over = [n for _, offsets in collector.batches for n in offsets]
    assert handed_over == list(range(RECORDS_MAX * 2 + 5))


def test_a_shard_far_behind_lets_the_others_have_their_turn(bench: Bench) -> None:
    collector = Collector()
    bench.shards.append(ORDERS, RECORDS_MAX * BATCHES_PER_TURN * 2)
    bench.shards.append(EVENTS)
    bench.pipeline.register(collector)
    bench.pipeline.run_once()
    order = [shard for shard, _ in collector.batches]
    assert order.index(EVENTS) == BATCHES_PER_TURN
    assert len(collector.offsets(ORDERS)) == RECORDS_MAX * BATCHES_PER_TURN * 2


def test_only_what_is_committed_is_handed_over(bench: Bench) -> None:
    collector = Collector()
    bench.pipeline.register(collector)
    bench.shards.append(ORDERS, 3)
    bench.shards.append(ORDERS, 2, commit=False)
    bench.pipeline.run_once()
    assert collector.offsets(ORDERS) == [0, 1, 2]


def test_a_shard_of_holes_is_passed_over(bench: Bench) -> None:
    collector = Collector()
    bench.pipeline.register(collector)
    bench.shards.append(ORDERS, 5)
    bench.shards.holes |= {(ORDERS, n) for n in range(5)}
    bench.pipeline.run_once()
    assert collector.batches == []
    assert bench.pipeline.lag("collector") == {ORDERS: 0}
    assert bench.pipeline.position("collector", ORDERS) == 5
    assert bench.shards.reads == 1


def test_after_a_restart_a_dispatcher_goes_on_where_it_was(bench: Bench) -> None:
    bench.pipeline.register(Collector())
    bench.shards.append(ORDERS, 4)
    bench.pipeline.run_once()
    bench.pipeline.close()
    bench.shards.append(ORDERS, 2)
    again = Collector()
    bench.open().register(again)
    bench.pipeline.run_once()
    assert again.offsets(ORDERS) == [4, 5]


def test_after_a_crash_at_most_a_second_of_records_comes_again(bench: Bench) -> None:
    bench.pipeline.register(Collector())
    bench.shards.append(ORDERS, 4)
    bench.clock.advance(1.0)
    bench.pipeline.run_once()
    bench.shards.append(ORDERS, 2)
    bench.clock.advance(0.5)
    bench.pipeline.run_once()
    bench.disk.kill()
    again = Collector()
    bench.open().register(again)
    bench.pipeline.run_once()
    assert again.offsets(ORDERS) == [4, 5]


def test_positions_are_saved_at_most_once_a_second(bench: Bench) -> None:
    bench.pipeline.register(Collector())
    for _ in range(50):
        bench.shards.append(ORDERS)
        bench.clock.advance(0.1)
        bench.pipeline.run_once()
    assert 4 <= bench.disk.counts["replace"] <= 5
    bench.pipeline.close()
    saved = bench.disk.counts["replace"]
    bench.pipeline.close()
    assert bench.disk.counts["replace"] == saved


def test_a_failing_dispatcher_holds_up_nobody_else(bench: Bench) -> None:
    bad, good = Collector("bad"), Collector("good")
    bad.broken = {ORDERS}
    bench.pipeline.register(bad)
    bench.pipeline.register(good)
    bench.shards.append(ORDERS, 3)
    bench.shards.append(EVENTS, 2)
    bench.pipeline.run_once()
    assert (good.offsets(ORDERS), good.offsets(EVENTS)) == ([0, 1, 2], [0, 1])
    assert (bad.offsets(ORDERS), bad.offsets(EVENTS)) == ([], [0, 1])
    assert bench.pipeline.lag("bad") == {ORDERS: 3, EVENTS: 0}
    assert bench.pipeline.failures("bad") == {ORDERS: "ConnectionError: orders_0 cannot be reached"}
    assert bench.pipeline.failures("good") == {}
    value = bench.metrics.registry.get_sample_value
    assert value("penstock_segment_dispatch_failures_total", {"dispatcher": "bad"}) == 1
    assert value("penstock_segment_dispatch_lag_records", {"dispatcher": "bad"}) == 3


def test_retries_wait_twice_as_long_each_time_up_to_a_bound(bench: Bench) -> None:
    collector = Collector()
    collector.broken = {ORDERS}
    bench.pipeline.register(collector)
    bench.shards.append(ORDERS)
    moments: list[float] = []
    for _ in range(2000):
        before = bench.shards.reads
        bench.pipeline.run_once()
        if bench.shards.reads > before:
            moments.append(bench.clock.monotonic())
        bench.clock.advance(0.125)
    waits = [after - before for before, after in pairwise(moments)]
    assert waits[:9] == [0.125, 0.25, 0.5, 1, 2, 4, 8, 16, RETRY_MAX_S]
    assert set(waits[9:]) == {RETRY_MAX_S}


def test_a_streak_of_failures_is_logged_once_and_its_end_too(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    collector = Collector()
    collector.broken = {ORDERS}
    bench.pipeline.register(collector)
    bench.shards.append(ORDERS)
    for _ in range(5):
        bench.pipeline.run_once()
        bench.clock.advance(RETRY_MAX_S)
    collector.broken.clear()
    bench.pipeline.run_once()
    assert bench.pipeline.failures("collector") == {}
    bench.shards.append(ORDERS)
    bench.pipeline.run_once()
    assert caplog.messages == ["dispatch_failed", "dispatch_recovered"]


def test_an_outage_of_all_shards_does_not_flood_the_log(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    collector = Collector()
    bench.pipeline.register(collector)
    for number in range(100):
        collector.broken.add(ShardId("t", number))
        bench.shards.append(ShardId("t", number))
    bench.pipeline.run_once()
    assert caplog.messages == ["dispatch_failed"] * STREAKS_LOGGED_MAX
    assert len(bench.pipeline.failures("collector")) == 100


def test_damage_found_while_reading_waits_like_any_failure(bench: Bench) -> None:
    collector = Collector()
    bench.pipeline.register(collector)
    bench.shards.append(ORDERS, 3)
    whole = bench.shards.values[ORDERS]
    bench.shards.values[ORDERS] = []
    bench.pipeline.run_once()
    assert bench.pipeline.lag("collector") == {ORDERS: 3}
    bench.shards.values[ORDERS] = whole
    bench.clock.advance(1)
    bench.pipeline.run_once()
    assert collector.offsets(ORDERS) == [0, 1, 2]


def test_records_that_a_power_cut_took_make_room_for_others_that_are_handed_over(
    bench: Bench,
) -> None:
    bench.pipeline.register(Collector())
    bench.shards.append(ORDERS, 60)
    bench.pipeline.run_once()
    bench.pipeline.close()
    del bench.shards.values[ORDERS][50:]
    bench.shards.commit[ORDERS] = 50
    bench.open()
    # The new records are there before the dispatcher registers, and after one more restart.
    bench.shards.append(ORDERS, 30)
    bench.open()
    again = Collector()
    bench.pipeline.register(again)
    bench.pipeline.run_once()
    assert again.offsets(ORDERS) == list(range(50, 80))


def test_a_dispatcher_that_comes_too_late_goes_on_at_the_earliest(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    collector = Collector()
    bench.pipeline.register(collector)
    bench.shards.append(ORDERS, 10)
    collector.broken = {ORDERS}
    bench.pipeline.run_once()
    collector.broken.clear()
    bench.shards.earliest[ORDERS] = 7
    assert bench.pipeline.lag("collector") == {ORDERS: 3}
    bench.clock.advance(1)
    bench.pipeline.run_once()
    assert collector.offsets(ORDERS) == [7, 8, 9]
    assert "dispatch_came_too_late" in caplog.messages


def test_a_shard_that_is_no_more_is_forgotten(bench: Bench) -> None:
    collector = Collector()
    collector.broken = {EVENTS}
    bench.pipeline.register(collector)
    bench.shards.append(ORDERS, 10)
    bench.shards.append(EVENTS, 1)
    bench.pipeline.run_once()
    bench.shards.values.clear()
    bench.pipeline.run_once()
    assert bench.pipeline.lag("collector") == {}
    assert bench.pipeline.failures("collector") == {}
    bench.pipeline.close()
    positions = DispatchPositions(bench.disk, f"{DIRECTORY}/collector")
    positions.load()
    assert positions.get(ORDERS) is None


def test_damaged_positions_mean_that_everything_comes_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.pipeline.register(Collector())
    bench.shards.append(ORDERS, 4)
    bench.pipeline.run_once()
    bench.pipeline.close()
    bench.disk.flip_bit(f"{DIRECTORY}/collector", 300)
    again = Collector()
    bench.open().register(again)
    bench.pipeline.run_once()
    assert again.offsets(ORDERS) == [0, 1, 2, 3]
    assert "dispatch_positions_lost" in caplog.messages


def test_positions_of_a_newer_release_stop_their_dispatcher_only(bench: Bench) -> None:
    bench.disk.replace(f"{DIRECTORY}/new", frame(POSITIONS._replace(version=2), 0, b""))
    bench.open().register(Collector("old"))
    with pytest.raises(NotSupportedError):
        bench.pipeline.register(Collector("new"))
    assert bench.pipeline.names == ["old"]


def test_every_flipped_bit_and_every_cut_of_the_positions_is_found() -> None:
    disk = FaultyDisk()
    positions = DispatchPositions(disk, "p")
    positions.move(ORDERS, 5)
    positions.move(EVENTS, 1 << 40)
    positions.save()
    size = len(disk.files()["p"])
    damaged = [disk.copy() for _ in range(size * 9)]
    for bit in range(size * 8):
        damaged[bit].flip_bit("p", bit)
    for cut in range(size):
        damaged[size * 8 + cut].open("p").truncate(cut)
    for other in damaged:
        with pytest.raises(CorruptionError):
            DispatchPositions(other, "p").load()
    again = DispatchPositions(disk, "p")
    again.load()
    assert (again.get(ORDERS), again.get(EVENTS)) == (5, 1 << 40)


def test_positions_that_cannot_be_saved_are_saved_later(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.pipeline.register(Collector())
    bench.disk.fail("replace", error_number=errno.ENOSPC, times=3)
    bench.shards.append(ORDERS, 4)
    for _ in range(4):
        bench.clock.advance(1.0)
        bench.pipeline.run_once()
    assert caplog.messages == ["dispatch_position_not_saved"]
    positions = DispatchPositions(bench.disk, f"{DIRECTORY}/collector")
    positions.load()
    assert positions.get(ORDERS) == 4


@pytest.mark.parametrize("name", ["", "a/b", "..", "a.tmp", "x" * 101, "ü"])
def test_a_name_that_is_no_file_name_is_refused(bench: Bench, name: str) -> None:
    with pytest.raises(BadRequestError):
        bench.pipeline.register(Collector(name))


def test_two_dispatchers_cannot_have_one_name(bench: Bench) -> None:
    bench.pipeline.register(Collector())
    with pytest.raises(AlreadyExistsError):
        bench.pipeline.register(Collector())
    with pytest.raises(BadRequestError, match="nobody"):
        bench.pipeline.lag("nobody")


def test_a_closed_pipeline_takes_no_dispatchers(bench: Bench) -> None:
    bench.pipeline.close()
    with pytest.raises(ClosedError):
        bench.pipeline.register(Collector())


def test_a_store_that_cannot_be_looked_at_is_looked_at_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    collector = Collector()
    bench.pipeline.register(collector)
    bench.shards.append(ORDERS)
    commit = bench.shards.commit
    bench.shards.commit = {}
    bench.pipeline.run_once()
    bench.pipeline.run_once()
    bench.shards.commit = commit
    bench.pipeline.run_once()
    assert collector.offsets(ORDERS) == [0]
    assert caplog.messages == ["dispatch_cannot_see_shards"]
