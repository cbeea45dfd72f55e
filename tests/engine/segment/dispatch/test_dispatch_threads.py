"""The dispatch pipeline with a thread for each dispatcher."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from tests.engine.segment.dispatch.dispatch_bench import DIRECTORY, ORDERS, Bench, Collector

from penstock.engine.segment.dispatch.positions import DispatchPositions
from penstock.record import ShardId, StoredRecord


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_threads_hand_over_what_is_notified(bench: Bench) -> None:
    collectors = [Collector("one"), Collector("two")]
    bench.open(threads=True)
    for collector in collectors:
        bench.pipeline.register(collector)
    bench.shards.append(ORDERS, 5)
    bench.pipeline.notify()
    for collector in collectors:
        assert collector.called.acquire(timeout=60)
    bench.pipeline.close()
    assert [c.offsets(ORDERS) for c in collectors] == [[0, 1, 2, 3, 4]] * 2
    positions = DispatchPositions(bench.disk, f"{DIRECTORY}/two")
    positions.load()
    assert positions.get(ORDERS) == 5


def test_threads_find_what_nobody_notified(bench: Bench) -> None:
    collector = Collector()
    bench.open(threads=True).register(collector)
    bench.shards.append(ORDERS, 5)
    for _ in range(1000):
        bench.clock.advance(0.3)
        if collector.called.acquire(timeout=0.01):
            break
    bench.pipeline.close()
    assert collector.offsets(ORDERS) == [0, 1, 2, 3, 4]


def test_threads_try_again_by_themselves(bench: Bench) -> None:
    collector = Collector()
    collector.broken = {ORDERS}
    bench.shards.append(ORDERS, 5)
    bench.open(threads=True).register(collector)
    while not bench.pipeline.failures("collector"):
        bench.clock.advance(0.01)
    collector.broken.clear()
    for _ in range(1000):
        bench.clock.advance(1)
        if collector.called.acquire(timeout=0.01):
            break
    bench.pipeline.close()
    assert collector.offsets(ORDERS) == [0, 1, 2, 3, 4]


class Flushing(Collector):
    """A dispatcher that cannot put on disk what it has, at first."""

    refusals = 2

    def flush(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise RuntimeError("not now")


def test_a_dispatcher_that_cannot_flush_goes_on_and_saves_its_position_later(bench: Bench) -> None:
    collector = Flushing()
    bench.open(threads=True).register(collector)
    for _ in range(6_000):
        if not collector.refusals:
            break
        bench.shards.append(ORDERS)
        bench.clock.advance(1.1)
        collector.called.acquire(timeout=0.01)
    bench.shards.append(ORDERS)
    bench.pipeline.close()
    assert collector.refusals == 0
    positions = DispatchPositions(bench.disk, f"{DIRECTORY}/collector")
    positions.load()
    assert positions.get(ORDERS)


def test_a_dispatcher_that_never_returns_delays_the_end_by_a_bound_and_nobody_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.engine.segment.dispatch.pipeline.STOP_TIMEOUT_S", 0.05)
    release = threading.Event()

    class Stuck(Collector):
        def dispatch(self, shard: ShardId, records: Sequence[StoredRecord]) -> None:
            super().dispatch(shard, records)
            release.wait(30)

    stuck, good = Stuck("stuck"), Collector("good")
    bench.open(threads=True)
    bench.pipeline.register(stuck)
    bench.pipeline.register(good)
    bench.shards.append(ORDERS, 2)
    bench.pipeline.notify()
    assert stuck.called.acquire(timeout=60)
    assert good.called.acquire(timeout=60)
    bench.pipeline.run_once()
    bench.pipeline.close()
    release.set()
    assert "dispatcher_does_not_end" in caplog.messages
    assert bench.pipeline.position("stuck", ORDERS) == 0
    assert bench.pipeline.lag("good") == {ORDERS: 0}


def test_closing_ends_the_threads(bench: Bench) -> None:
    # A thread of an earlier test may be ending at this moment: only new ones count.
    before = set(threading.enumerate())
    bench.open(threads=True).register(Collector())
    new = set(threading.enumerate()) - before
    assert len(new) == 1
    bench.pipeline.close()
    assert not any(thread.is_alive() for thread in new)
