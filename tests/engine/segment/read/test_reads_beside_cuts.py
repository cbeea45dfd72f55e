"""A read whose records are cut off under it: no damage, no rebuild, and what there is now."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.engine.segment.batches import inner_batch
from tests.engine.segment.rig import ORDERS, Rig, create, record

from penstock.codec.select import IS_NATIVE
from penstock.engine.segment.log.log_files import FileSet
from penstock.engine.segment.queue.lookup import LookupResult, Query, ReadableShard, look_up
from penstock.engine.segment.queue.shard import ShardLog
from penstock.engine.segment.queue.shard_state import ShardState
from penstock.engine.segment.read import page_reader
from penstock.engine.segment.read import raw_reader as run_reader
from penstock.engine.segment.store import SegmentStore
from penstock.errors import CorruptionError, UnknownShardError
from penstock.record import QueueKind

COUNT = 30
START = 12
END = 8
"""Where the cut leaves the shard."""


def offsets_of_arrow(store: SegmentStore) -> list[int]:
    found: list[int] = []
    for batch in store.read_arrow(ORDERS, START, columns=["offset"]):
        found += [int(each.as_py()) for each in batch.column("offset")]
    return found


def offsets_of_run(store: SegmentStore) -> list[int]:
    _, after = store.read_raw_range(ORDERS, START, max_size=1 << 20)
    return list(range(START, after))


def offsets_of_kafka(store: SegmentStore) -> list[int]:
    page = store.kafka.read(ORDERS, START, COUNT, 1 << 20)
    assert page.foreign is not None or not page.parts
    return [] if page.foreign is None else list(range(START, page.foreign.end_offset))


READS: dict[str, Callable[[SegmentStore], list[int]]] = {
    "page": lambda store: [int(each.offset) for each in store.read(ORDERS, START)],
    "dispatch": lambda store: [
        int(each.offset) for each in store._read_for_dispatch(ORDERS, START, 100, 1 << 20)
    ],
    "run": offsets_of_run,
    "arrow": offsets_of_arrow,
    "kafka": offsets_of_kafka,
}
BATCH_READS = [name for name in READS if IS_NATIVE or name != "kafka"]
CASES = [(QueueKind.BATCH, name) for name in BATCH_READS] + [
    (QueueKind.SIMPLE, name) for name in READS if name != "kafka"
]


def append(store: SegmentStore, kind: QueueKind, first: int, count: int) -> None:
    """Append records as one batch where there are such."""
    if kind is QueueKind.BATCH:
        batch = [record(n) for n in range(first, first + count)]
        assert store.append_batch(ORDERS, inner_batch(batch), count) == first
    else:
        assert store.append_many(ORDERS, [record(n) for n in range(first, first + count)]) == first


def filled(kind: QueueKind, *, in_files: bool) -> Rig:
    rig = Rig()
    create(rig.store, kind=kind)
    for first in range(0, COUNT, 2):
        append(rig.store, kind, first, 2)
    if in_files:
        rig.store.run_upkeep()
    return rig


def in_another_thread(call: Callable[[], object]) -> None:
    """A cut is never made by the thread that reads, which may have locks of the shard."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result(60)


def before_looking_up(
    patched: pytest.MonkeyPatch, happening: Callable[[], object], *, times: int = 1
) -> None:
    """Let `happening` come when a read knows its bounds and looks for its records."""
    left = [happening] * times

    def late_locate(files: FileSet, log: ReadableShard, query: Query) -> LookupResult | int:
        if left:
            in_another_thread(left.pop())
        return look_up(files, log, query)

    patched.setattr(page_reader, "look_up", late_locate)
    patched.setattr(run_reader, "look_up", late_locate)


def check_unharmed(store: SegmentStore) -> None:
    for name in ("damaged_reads", "rebuilt_files"):
        registry = store._parts.metrics.registry
        assert registry.get_sample_value(f"penstock_segment_{name}_total") == 0, name


@pytest.mark.parametrize("in_files", [False, True], ids=["in memory", "in files"])
@pytest.mark.parametrize(("kind", "way"), CASES)
def test_a_read_finds_no_damage_where_its_records_were_cut_off(
    kind: QueueKind, way: str, in_files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(kind, in_files=in_files).store
    with monkeypatch.context() as patched:
        before_looking_up(patched, lambda: store.truncate(ORDERS, END))
        assert READS[way](store) == []
    check_unharmed(store)
    assert store.bounds(ORDERS).next == END
    assert [each.offset for each in store.read(ORDERS, 0)] == list(range(END))


@pytest.mark.parametrize("in_files", [False, True], ids=["in memory", "in files"])
@pytest.mark.parametrize(("kind", "way"), CASES)
def test_a_read_gets_what_came_behind_a_cut(
    kind: QueueKind, way: str, in_files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(kind, in_files=in_files).store

    def cut_and_write() -> None:
        store.truncate(ORDERS, END)
        append(store, kind, END, 20)

    with monkeypatch.context() as patched:
        before_looking_up(patched, cut_and_write)
        found = READS[way](store)
    assert found == list(range(START, END + 20))
    check_unharmed(store)


@pytest.mark.parametrize("way", BATCH_READS)
def test_a_unit_found_before_a_cut_is_not_taken_for_one_behind_it(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard is cut, and filled with other batches, between the look for the number of a unit
    and the look at it: that unit holds later offsets now."""
    store = filled(QueueKind.BATCH, in_files=False).store
    unit_of = ShardLog.unit_of
    left = [True]

    def cut_and_write() -> None:
        store.truncate(ORDERS, 0)
        for first in range(0, COUNT, 5):
            append(store, QueueKind.BATCH, first, 5)

    def late_unit_of(self: ShardLog, offset: int) -> int:
        unit = unit_of(self, offset)
        if offset == START and left:
            left.clear()
            in_another_thread(cut_and_write)
        return unit

    with monkeypatch.context() as patched:
        patched.setattr(ShardLog, "unit_of", late_unit_of)
        found = READS[way](store)
    assert found[:1] == [START]
    assert found == list(range(START, START + len(found)))
    check_unharmed(store)


def test_every_cut_of_several_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(QueueKind.BATCH, in_files=False).store

    def cut_and_write() -> None:
        end = store.truncate(ORDERS, START - 1)
        append(store, QueueKind.BATCH, end, 1)
        store.truncate(ORDERS, end)

    with monkeypatch.context() as patched:
        before_looking_up(patched, cut_and_write, times=3)
        assert READS["page"](store) == []
    check_unharmed(store)


def test_a_read_waits_for_a_cut_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The units are gone, and the cut is not yet done, when the read asks for one."""
    store = filled(QueueKind.BATCH, in_files=False).store
    reading, units_gone, asking = threading.Event(), threading.Event(), threading.Event()
    truncate_from, was_truncated_since = ShardState.truncate_from, ShardLog.was_truncated_since

    def late_locate(files: FileSet, log: ReadableShard, query: Query) -> LookupResult | int:
        reading.set()
        assert units_gone.wait(60)
        return look_up(files, log, query)

    def slow_cut_from(self: ShardState, offset: int) -> list[int]:
        units_gone.set()
        assert asking.wait(60)
        return truncate_from(self, offset)

    def note_question(self: ShardLog, cuts: int) -> bool:
        asking.set()
        return was_truncated_since(self, cuts)

    monkeypatch.setattr(page_reader, "look_up", late_locate)
    monkeypatch.setattr(ShardState, "truncate_from", slow_cut_from)
    monkeypatch.setattr(ShardLog, "was_truncated_since", note_question)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(READS["page"], store)
        assert reading.wait(60)
        store.truncate(ORDERS, END)
        assert read.result(60) == []
    check_unharmed(store)


@pytest.mark.parametrize("way", BATCH_READS)
def test_a_read_of_a_shard_that_is_deleted_meanwhile_finds_no_damage(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(QueueKind.BATCH, in_files=True).store
    with monkeypatch.context() as patched:
        before_looking_up(patched, lambda: store.delete_shard(ORDERS))
        assert READS[way](store) == []
    check_unharmed(store)
    with pytest.raises(UnknownShardError):
        store.read(ORDERS, 0)


def test_damage_is_told_although_the_shard_was_cut_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The records of the read are still supposed to be there when the cut is done."""
    rig = filled(QueueKind.BATCH, in_files=True)
    store = rig.store
    log = store._table.get(ORDERS)
    row = log.rows(log.unit_of(START), 1)[0]
    store.flush()
    path = store._log.files.path_of(row.position)
    at = row.position - store._log.files.base_of(row.position)
    rig.disk.flip_bit(path, 8 * (at + row.size // 2))
    with monkeypatch.context() as patched:
        before_looking_up(patched, lambda: store.truncate(ORDERS, COUNT - 2))
        with pytest.raises(CorruptionError):
            READS["page"](store)
