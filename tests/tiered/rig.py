"""Shards in a real store, and their tier."""

from __future__ import annotations

import uuid
from pathlib import Path

from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.record import Record, ShardId, StoredRecord
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.read.tier_query import TierQuery
from penstock.tiered.rocketmq.append_result import AppendResult

SHARD = ShardId("orders", 0)
SIZES = FileSizes(
    commit_log_file_size=1 << 16,
    consume_queue_file_size=2000,
    batch_queue_file_size=4600,
    index_slots=100,
    index_entries_max=1000,
)


def open_store(
    path: Path, *, log_file_size: int = 1 << 16, background: bool = False
) -> SegmentStore:
    sizes = FileSizes(
        commit_log_file_size=log_file_size,
        consume_queue_file_size=SIZES.consume_queue_file_size,
        batch_queue_file_size=SIZES.batch_queue_file_size,
        index_slots=SIZES.index_slots,
        index_entries_max=SIZES.index_entries_max,
    )
    settings = SegmentSettings(sizes=sizes, record_size_max=1 << 15, background=background)
    return SegmentStore.open(str(path), settings)


def record(n: int, size: int = 20) -> Record:
    return Record(
        value=f"value {n} ".encode().ljust(size, b"."),
        key=f"key-{n % 7}".encode(),
        tags=("even" if n % 2 == 0 else "odd",),
        headers=(("n", str(n).encode()),),
        timestamp_ms=1_700_000_000_000 + n * 1000,
    )


def fill(store: SegmentStore, count: int, *, start: int = 0, size: int = 20) -> None:
    for n in range(start, start + count):
        store.append(SHARD, record(n, size))


def memory_config(chunk_size: int = 2000, segment_size: int = 10_000) -> TierConfig:
    return TierConfig(
        url=f"memory://{uuid.uuid4().hex}", chunk_size=chunk_size, segment_size=segment_size
    )


def upload(store: SegmentStore, flat: CompositeFlatFile, *, until: int | None = None) -> None:
    """Append and commit everything that the store holds."""
    end = int(store.bounds(SHARD).commit) if until is None else until
    while flat.dispatch_offset < end:
        messages = store.read_raw(SHARD, flat.dispatch_offset, max_records=1)
        if not messages:
            break
        result = flat.append(messages[0])
        if result is AppendResult.BUFFER_FULL:
            flat.commit(sync=True)
            result = flat.append(messages[0])
        assert result is AppendResult.SUCCESS
    flat.commit(sync=True)


def read_all(flat: CompositeFlatFile, *, start: int = 0, page: int = 50) -> list[StoredRecord]:
    found: list[StoredRecord] = []
    offset = start
    while True:
        records, after = flat.reader.read(TierQuery(offset, max_records=page))
        found += records
        if after <= offset:
            return found
        offset = after
