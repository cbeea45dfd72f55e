"""A small store with something of everything, and what must hold of it whatever damage it takes.

The rule: nothing that is read is wrong, and nothing that is missing is passed over in silence. A
record comes back exactly as it was written, or `CorruptionError` says that it is lost; no offset is
given out a second time.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.engine.segment.batches import inner_batch
from tests.engine.segment.rig import Rig
from tests.engine.segment.shard_model import ShardModel

from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.errors import CorruptionError
from penstock.record import Producer, QueueKind, Record, ShardId, StoredRecord

TINY = SegmentSettings(
    sizes=FileSizes(
        commit_log_file_size=4096,
        consume_queue_file_size=100,
        batch_queue_file_size=138,
        index_slots=4,
        index_entries_max=9,
    ),
    background=False,
)
ORDERS = ShardId("orders", 0)
OTHERS = ShardId("orders", 1)
BATCHED = ShardId("batched", 0)
Models = dict[ShardId, ShardModel]

_HALF = 6


def _order(number: int) -> Record:
    if number % 4 == 3:
        # An envelope: none of this fits into RocketMQ's properties.
        return Record(
            None, key=b"\xff%d" % (number % 2), tags=("a", "b"), timestamp_ms=9_000 - number
        )
    return Record(
        b"order %d" % number,
        key=b"k%d" % (number % 3),
        tags=("even",) if number % 2 == 0 else ("odd",),
        headers=(("region", b"eu"),),
        timestamp_ms=5_000 + number,
    )


def write_store(rig: Rig, *, early_checkpoint: bool = False) -> Models:
    """Fill a store with records, groups, batches, producers and deletions; files roll."""
    store = rig.store
    models: Models = {ORDERS: ShardModel(), OTHERS: ShardModel(), BATCHED: ShardModel()}
    for shard in models:
        store.create_shard(shard, QueueKind.BATCH if shard == BATCHED else QueueKind.SIMPLE)
    for number in range(_HALF):
        _write_some(store, models, number)
    store.delete_offsets(ORDERS, [1])
    models[ORDERS].deleted.add(1)
    store.delete_before(OTHERS, 1)
    models[OTHERS].floor = 1
    store.run_upkeep()
    for number in range(_HALF, 2 * _HALF):
        _write_some(store, models, number)
    store.delete_offsets(OTHERS, [3])
    models[OTHERS].deleted.add(3)
    if early_checkpoint:
        store.flush()
    else:
        store.run_upkeep()
    return models


def _write_some(store: SegmentStore, models: Models, number: int) -> None:
    order = _order(number)
    assert store.append(ORDERS, order) == models[ORDERS].append([order])
    if number % 2 == 0:
        group = [_order(100 + number + n) for n in range(2)]
        first = store.append_many(OTHERS, group, Producer(7, 0, models[OTHERS].next_offset))
        assert first == models[OTHERS].append(group)
    if number % 3 == 0:
        batch = [
            Record(
                b"b%d.%d" % (number, n), key=b"k%d" % n, tags=("odd",), timestamp_ms=7_000 + number
            )
            for n in range(3)
        ]
        first = store.append_batch(
            BATCHED, inner_batch(batch), len(batch), born_ms=batch[0].timestamp_ms
        )
        assert first == models[BATCHED].append(batch)


def check_all(
    store: SegmentStore, models: Models, *, reported: bool = False
) -> set[tuple[ShardId, int]]:
    """Read everything by every way. Return what cannot be read; all else is right.

    When recovery `reported` damage, now or earlier, a command may be among what is lost: what it
    deleted may be there again. And a shard may go on later than necessary, because nobody could
    tell whose record was hit; the offsets between are lost ones.
    """
    damaged = reported or bool(store.report.damaged)
    return {
        (shard, offset)
        for shard, model in models.items()
        for offset in _Check(store, shard, model, damaged=damaged).run()
    }


class _Check:
    def __init__(
        self, store: SegmentStore, shard: ShardId, model: ShardModel, *, damaged: bool
    ) -> None:
        self.store = store
        self.shard = shard
        self.model = model
        self.live = model.live()
        self.damaged = damaged

    def run(self) -> set[int]:
        store, shard, model = self.store, self.shard, self.model
        bounds = store.bounds(shard)
        assert bounds.earliest == model.floor or (self.damaged and bounds.earliest < model.floor)
        assert bounds.next == model.next_offset or (
            self.damaged and bounds.next > model.next_offset
        )
        for offset in range(model.next_offset, bounds.next, 5_000):
            with pytest.raises(CorruptionError):
                store.read(shard, offset)
        missing = {offset for offset, record in self.live if not self.reads(offset, record)}
        whole = self.is_whole(self.pages(None), self.live)
        assert whole == (not missing and bounds.next == model.next_offset)
        if whole and store.kind(shard) is QueueKind.SIMPLE and not self.damaged:
            assert len(store.read_raw(shard, 0)) == len(self.live)
        self.check_keys(missing)
        for tag in ("even", "odd", "a", "b", "none"):
            self.is_whole(self.pages(tag), [pair for pair in self.live if tag in pair[1].tags])
        self.check_times()
        return missing

    def reads(self, offset: int, record: Record) -> bool:
        try:
            found = self.store.read(self.shard, offset, max_records=1)
        except CorruptionError:
            return False
        assert [(each.offset, each.as_record()) for each in found] == [(offset, record)]
        return True

    def is_whole(self, records: Iterator[StoredRecord], expected: list[tuple[int, Record]]) -> bool:
        """Compare what is read with what should be; return False when it ends with an error."""
        found: list[tuple[int, Record]] = []
        whole = True
        try:
            found.extend((int(each.offset), each.as_record()) for each in records)
        except CorruptionError:
            whole = False
        if self.damaged:
            known = set(expected)
            found = [pair for pair in found if pair in known or not self.was_deleted(pair[0])]
        assert found == (expected if whole else expected[: len(found)])
        return whole

    def was_deleted(self, offset: int) -> bool:
        return offset < self.model.floor or offset in self.model.deleted

    def pages(self, tag: str | None) -> Iterator[StoredRecord]:
        offset = int(self.store.bounds(self.shard).earliest)
        while True:
            page = self.store.read_page(self.shard, offset, max_records=5, tag=tag)
            yield from page.records
            if page.next_offset <= offset:
                return
            offset = page.next_offset

    def check_keys(self, missing: set[int]) -> None:
        for key in (b"k0", b"k1", b"k2", b"\xff0", b"\xff1", b"none"):
            expected = [pair for pair in reversed(self.live) if pair[1].key == key]
            if self.is_whole(self.store.by_key(self.shard, key), expected):
                assert not missing & {offset for offset, _ in expected}

    def check_times(self) -> None:
        for time_ms in (0, 5_003, 7_004, 8_990, 10_000):
            try:
                found = self.store.offset_by_timestamp(self.shard, time_ms)
            except CorruptionError:
                continue
            late = (at for at, each in self.live if (each.timestamp_ms or 0) >= time_ms)
            assert found == next(late, None) or (self.damaged and self.was_deleted(found or 0))


def check_goes_on(store: SegmentStore, models: Models) -> None:
    """No offset is given out again, and what is written now can be read."""
    for shard, model in models.items():
        more = Record(b"more", key=b"more", timestamp_ms=1)
        end = store.bounds(shard).next
        assert store.append(shard, more) == end >= model.next_offset
        (found,) = store.read(shard, end)
        assert found.as_record() == more


def some_bits(size: int, stride: int) -> Iterator[int]:
    """Yield bits of a file; a stride that shares nothing with 8 meets every bit of a byte."""
    return iter(range(0, 8 * size, stride))
