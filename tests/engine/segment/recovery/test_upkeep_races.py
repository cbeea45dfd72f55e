"""What the background does between two steps of a caller loses nothing that the caller is told."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import pytest
from tests.engine.segment.rig import EVENTS, ORDERS, QUIET, Rig, create, fill, offsets

from penstock.engine.segment.control.control_records import Seal
from penstock.engine.segment.control.shard_catalog import CATALOG
from penstock.engine.segment.queue.shard import ShardLog
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.settings import SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.errors import ClosedError
from penstock.record import Flush, QueueKind


def checkpoint_behind_appends(store: SegmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a checkpoint come behind every record that is written for the store's own use, before
    whoever wrote it goes on."""
    run = store._writer.run

    def run_and_checkpoint(shard: ShardLog, append: Callable[[], int]) -> int:
        offset = run(shard, append)
        store.checkpoint()
        return offset

    monkeypatch.setattr(store._writer, "run", run_and_checkpoint)


@pytest.mark.parametrize(
    ("delete", "left"),
    [
        (lambda store: store.delete_offsets(ORDERS, [2]), [0, 1, 3, 4, 5]),
        (lambda store: store.delete_before(ORDERS, 2), [2, 3, 4, 5]),
    ],
    ids=["delete_offsets", "delete_before"],
)
def test_a_deletion_with_a_checkpoint_right_behind_its_record_holds(
    delete: Callable[[SegmentStore], object], left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    create(rig.store, flush=Flush.SYNC)
    fill(rig.store, ORDERS, 6)
    rig.store.checkpoint()
    with monkeypatch.context() as patch:
        checkpoint_behind_appends(rig.store, patch)
        delete(rig.store)
    assert offsets(rig.crash(1), ORDERS) == left
    assert offsets(rig.restart(), ORDERS) == left


def test_a_shard_with_a_checkpoint_right_behind_its_line_exists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    rig.store.checkpoint()
    with monkeypatch.context() as patch:
        checkpoint_behind_appends(rig.store, patch)
        rig.store.create_shard(ORDERS, config=b"kept so")
    store = rig.kill()
    assert store.shards() == [ORDERS]
    assert store.state(ORDERS).config == b"kept so"
    assert CATALOG not in store.shards()


def test_what_could_not_be_published_is_published_later() -> None:
    rig = Rig()
    create(rig.store)
    rig.store.run_upkeep()
    fill(rig.store, ORDERS, 3)
    rig.disk.fail("replace", "*/live/*", errno.EIO)
    with pytest.raises(OSError, match="live"):
        rig.store._parts.checkpointer.publish()
    rig.store._parts.checkpointer.publish()
    view = ReadOnlyStore.open(rig.root, disk=rig.disk, clock=rig.clock, settings=QUIET)
    assert view.bounds(ORDERS).commit == 3


def test_an_unforeseen_error_does_not_end_the_threads_of_a_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without them, nothing would reach the device any more, and nobody would know."""
    rig = Rig(SegmentSettings(sizes=QUIET.sizes, flush_interval_ms=1))
    went_on = threading.Event()
    failures = 3

    def flush() -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise KeyError("a fault of ours")
        went_on.set()

    monkeypatch.setattr(rig.store._upkeep, "_flush", flush)
    try:
        for _ in range(6_000):
            rig.clock.advance(0.01)
            if went_on.wait(0.01):
                break
        assert went_on.is_set()
    finally:
        rig.close()


def test_who_changes_shards_while_the_store_closes_is_told_that_it_is_closed() -> None:
    rig = Rig()
    create(rig.store)
    store = rig.store
    log = store._table.get(ORDERS)
    rig.close()
    with pytest.raises(ClosedError):
        store._lifecycle.create(EVENTS, QueueKind.SIMPLE, Flush.ASYNC, b"")
    with pytest.raises(ClosedError):
        store._commands.run(log, Seal())
