"""A store on a faulty disk with a clock that stands still: opened, killed, crashed, reopened."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.record import Flush, QueueKind, Record, ShardId, StoredRecord
from penstock.testing import FaultyDisk, ManualClock

SIZES: Final = FileSizes(
    commit_log_file_size=8192,
    consume_queue_file_size=400,
    batch_queue_file_size=920,
    index_slots=20,
    index_entries_max=60,
)
QUIET: Final = SegmentSettings(sizes=SIZES, background=False)
"""No threads: flushing and upkeep happen when a test calls for them."""

ROOT: Final = "store"
ORDERS: Final = ShardId("orders", 0)
EVENTS: Final = ShardId("events", 0)
LOGS: Final = ShardId("logs", 1)


class Rig:
    """One store directory on one disk, with whoever has it open at the moment."""

    def __init__(
        self,
        settings: SegmentSettings = QUIET,
        *,
        disk: FaultyDisk | None = None,
        clock: ManualClock | None = None,
        root: str = ROOT,
    ) -> None:
        self.settings: Final = settings
        self.clock: Final = clock or ManualClock()
        self.disk = disk or FaultyDisk(clock=self.clock)
        self.root: Final = root
        self._store: SegmentStore | None = None

    @property
    def store(self) -> SegmentStore:
        if self._store is None:
            self._store = SegmentStore.open(
                self.root, self.settings, disk=self.disk, clock=self.clock
            )
        return self._store

    def close(self) -> None:
        self.store.close()
        self._store = None

    def restart(self) -> SegmentStore:
        """Close and open again."""
        self.close()
        return self.store

    def kill(self) -> SegmentStore:
        """Kill the process and start another: no byte written is lost."""
        self.abandon()
        self.disk.kill()
        return self.store

    def crash(self, seed: int) -> SegmentStore:
        """Cut the power and start again: of what was not synced, any part is left."""
        self.abandon()
        self.disk.crash(random.Random(seed))
        return self.store

    def lives(self) -> Iterator[SegmentStore]:
        """Yield the store as it is, after a kill, and after it was closed and opened again."""
        yield self.store
        yield self.kill()
        yield self.restart()

    def abandon(self) -> None:
        """Let go of the store without closing it."""
        self._store = None

    def copy(self) -> Rig:
        """Return another rig on a copy of the disk as it is now, where nobody has it open."""
        return Rig(self.settings, disk=self.disk.copy(), clock=self.clock, root=self.root)


def record(number: int, *, size: int = 0, key: bytes | None = None, tag: str = "") -> Record:
    """Return a record that is like no other; the timestamp grows with the number."""
    return Record(
        b"value-%d" % number + b"." * size,
        key=key,
        tags=(tag,) if tag else (),
        timestamp_ms=1_000_000 + number,
    )


def fill(store: SegmentStore, shard: ShardId, count: int, *, first: int = 0) -> list[Record]:
    """Append `count` records with keys and tags, one by one; return them."""
    records = [
        record(n, key=b"key-%d" % (n % 5), tag=f"tag-{n % 3}") for n in range(first, first + count)
    ]
    for each in records:
        store.append(shard, each)
    return records


def create(
    store: SegmentStore,
    shard: ShardId = ORDERS,
    *,
    kind: QueueKind = QueueKind.SIMPLE,
    flush: Flush = Flush.ASYNC,
) -> ShardId:
    store.create_shard(shard, kind, flush)
    return shard


def everything(store: SegmentStore, shard: ShardId, *, per_page: int = 7) -> list[StoredRecord]:
    """Read a shard from its earliest offset to its end, page by page."""
    found: list[StoredRecord] = []
    offset = int(store.bounds(shard).earliest)
    while True:
        page = store.read_page(shard, offset, max_records=per_page)
        found += page.records
        if page.next_offset <= offset:
            return found
        offset = page.next_offset


def values(store: SegmentStore, shard: ShardId) -> list[bytes | None]:
    return [each.value for each in everything(store, shard)]


def offsets(store: SegmentStore, shard: ShardId) -> list[int]:
    return [each.offset for each in everything(store, shard)]


def as_records(found: list[StoredRecord]) -> list[Record]:
    return [each.as_record() for each in found]
