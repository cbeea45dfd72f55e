"""Dispatchers of an open store: how soon they get records, and that they get all."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.engine.segment.rig import ORDERS, QUIET, SIZES, Rig, create, fill, record

from penstock.engine.segment.dispatch import worker as dispatch_worker
from penstock.engine.segment.queue.shard import ShardLog
from penstock.engine.segment.settings import SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.record import Flush, QueueKind, ShardId, StoredRecord


class Collector:
    name = "collector"

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.called = threading.Semaphore(0)

    def dispatch(self, shard: ShardId, records: Sequence[StoredRecord]) -> None:
        self.offsets += [each.offset for each in records if shard == ORDERS]
        self.called.release()


@pytest.mark.parametrize("flush", Flush)
def test_dispatchers_do_not_wait_for_their_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: Flush
) -> None:
    monkeypatch.setattr(dispatch_worker, "POLL_INTERVAL_S", 3600.0)
    collector = Collector()
    with SegmentStore.open(str(tmp_path / "s"), SegmentSettings(sizes=SIZES)) as store:
        create(store, flush=flush)
        store.dispatch.register(collector)
        for number in range(3):
            store.append(ORDERS, record(number))
            assert collector.called.acquire(timeout=60), "the dispatcher was not woken"
        store.set_commit_offset(ORDERS, 3)
        store.append(ORDERS, record(3))
        store.set_commit_offset(ORDERS, 4)
        assert collector.called.acquire(timeout=60), "the commit offset was not reported"
    assert collector.offsets == [0, 1, 2, 3]


def test_dispatchers_pass_long_deleted_ranges() -> None:
    rig = Rig(QUIET)
    create(rig.store)
    fill(rig.store, ORDERS, 700)
    rig.store.delete_offsets(ORDERS, range(1, 699))
    collector = Collector()
    rig.store.dispatch.register(collector)
    rig.store.run_upkeep()
    assert collector.offsets == [0, 699]


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("kind", QueueKind)
def test_records_that_replace_cut_ones_are_dispatched_after_a_crash(
    kind: QueueKind, deleted: bool
) -> None:
    """The position of a dispatcher in the old records must not be taken for one in the new ones."""
    rig = Rig(QUIET)
    create(rig.store, kind=kind)
    fill(rig.store, ORDERS, 40)
    rig.store.dispatch.register(Collector())
    rig.store.run_upkeep()
    rig.clock.advance(2)
    rig.store.run_upkeep()
    if deleted:
        rig.store.delete_shard(ORDERS)
        create(rig.store, kind=kind)
    else:
        rig.store.truncate(ORDERS, 0)
    fill(rig.store, ORDERS, 50, first=100)
    store = rig.kill()
    collector = Collector()
    store.dispatch.register(collector)
    store.run_upkeep()
    assert collector.offsets == list(range(50))
    for number in range(5):
        found = [int(each.offset) for each in store.by_key(ORDERS, b"key-%d" % number)]
        assert found == list(range(45 + number, -1, -5))


def test_the_size_of_a_shard_that_is_deleted_meanwhile_is_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(QUIET)
    create(rig.store)
    fill(rig.store, ORDERS, 5)
    monkeypatch.setattr(ShardLog, "rows", lambda *_: [])
    assert rig.store.live_size(ORDERS) == 0
