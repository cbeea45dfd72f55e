"""What a shard should hold, as a list; and the comparison of a store with it, by every way to read.

All records of a model carry a timestamp of their own, so that they come back exactly as they went
in.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.engine.segment.rig import everything

from penstock.engine.segment.store import SegmentStore
from penstock.record import QueueKind, Record, ShardId, StoredRecord


class ShardModel:
    """The n-th item of `records` is the record of offset n."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.deleted: set[int] = set()
        self.floor = 0
        self.writes: dict[int, list[tuple[int, int]]] = {}
        """What each producer wrote: (sequence behind it, offset behind it)."""

    @property
    def next_offset(self) -> int:
        return len(self.records)

    def append(self, records: Sequence[Record]) -> int:
        first = len(self.records)
        self.records += records
        return first

    def add(self, records: Sequence[Record]) -> None:
        self.append(records)

    def add_as(self, producer: int, records: Sequence[Record]) -> None:
        sequence = self.sequence_of(producer) + len(records)
        self.append(records)
        self.writes.setdefault(producer, []).append((sequence, len(self.records)))

    def sequence_of(self, producer: int) -> int:
        """Return the sequence number that a producer sends next."""
        writes = self.writes.get(producer)
        return writes[-1][0] if writes else 0

    def truncate(self, offset: int) -> None:
        del self.records[offset:]
        for producer, writes in self.writes.items():
            self.writes[producer] = [write for write in writes if write[1] <= offset]

    def raise_floor(self, offset: int) -> None:
        self.floor = max(self.floor, offset)

    def live(self) -> list[tuple[int, Record]]:
        return [
            (offset, each)
            for offset, each in enumerate(self.records)
            if offset >= self.floor and offset not in self.deleted
        ]

    def copy(self) -> ShardModel:
        other = ShardModel()
        other.records = list(self.records)
        other.deleted = set(self.deleted)
        other.floor = self.floor
        other.writes = {producer: list(writes) for producer, writes in self.writes.items()}
        return other


def check_shard(store: SegmentStore, shard: ShardId, model: ShardModel) -> None:
    """Compare everything that can be read of a shard with its model."""
    live = model.live()
    bounds = store.bounds(shard)
    assert bounds.next == model.next_offset
    assert bounds.earliest == min(model.floor, model.next_offset)
    assert _pairs(everything(store, shard)) == live
    _check_singly(store, shard, live)
    _check_keys(store, shard, live)
    _check_tags(store, shard, live)
    _check_times(store, shard, live)
    if store.kind(shard) is QueueKind.SIMPLE:
        assert len(store.read_raw(shard, 0, max_records=1 << 20)) == len(live)


def _pairs(found: Sequence[StoredRecord]) -> list[tuple[int, Record]]:
    return [(int(each.offset), each.as_record()) for each in found]


def _check_singly(store: SegmentStore, shard: ShardId, live: list[tuple[int, Record]]) -> None:
    """One record at a time: a shorter way through the code."""
    following = dict(zip([0, *(at + 1 for at, _ in live)], [*live, None], strict=True))
    for offset, expected in list(following.items())[:: max(1, len(following) // 32)]:
        found = _pairs(store.read(shard, offset, max_records=1))
        assert found == ([] if expected is None else [expected]), offset


def _check_keys(store: SegmentStore, shard: ShardId, live: list[tuple[int, Record]]) -> None:
    keys = {each.key for _, each in live if each.key is not None} | {b"nobody's"}
    for key in keys:
        expected = [pair for pair in reversed(live) if pair[1].key == key]
        assert _pairs(list(store.by_key(shard, key))) == expected, key
        newest = store.newest_by_key(shard, key)
        assert (newest is None) == (not expected)
        assert newest is None or _pairs([newest]) == expected[:1]


def _check_tags(store: SegmentStore, shard: ShardId, live: list[tuple[int, Record]]) -> None:
    for tag in {tag for _, each in live for tag in each.tags} | {"nobody's"}:
        found: list[StoredRecord] = []
        offset = int(store.bounds(shard).earliest)
        while True:
            page = store.read_page(shard, offset, tag=tag, max_records=5)
            found += page.records
            if page.next_offset <= offset:
                break
            offset = page.next_offset
        assert _pairs(found) == [pair for pair in live if tag in pair[1].tags], tag


def _check_times(store: SegmentStore, shard: ShardId, live: list[tuple[int, Record]]) -> None:
    times = sorted({each.timestamp_ms or 0 for _, each in live})
    for time_ms in {0, *times[:1], *times[-1:], *times[:: max(1, len(times) // 4)], 1 << 60}:
        expected = next((at for at, each in live if (each.timestamp_ms or 0) >= time_ms), None)
        assert store.offset_by_timestamp(shard, time_ms) == expected, time_ms
