"""Stores to look at: every kind of record, rolled files, deletions; and ways to damage them."""

from __future__ import annotations

from pathlib import Path

from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.record import Producer, QueueKind, Record, ShardId

SMALL = FileSizes(
    commit_log_file_size=16_384,
    consume_queue_file_size=2_000,
    batch_queue_file_size=920,
    index_slots=50,
    index_entries_max=200,
)
QUIET = SegmentSettings(sizes=SMALL, background=False)

ORDERS = ShardId("orders", 0)
EVENTS = ShardId("events", 3)
EMPTY = ShardId("empty", 0)
ORDERS_COUNT = 300
EVENTS_COUNT = 60


def order(number: int) -> Record:
    """Return the record of this offset in `ORDERS`."""
    return Record(
        value=None if number % 50 == 49 else b"order %d" % number,
        key=b"o-%d" % (number % 20) if number % 3 else b"\xff odd %d" % (number % 20),
        tags=("eu", "big") if number % 5 == 0 else ("eu" if number % 2 else "us",),
        headers=(("n", b"%d" % number),),
        timestamp_ms=1_000_000 + number * 10,
    )


def event(number: int) -> Record:
    return Record(b"event %d" % number, key=b"e-%d" % (number % 7), timestamp_ms=5_000 + number)


def fill(store: SegmentStore) -> None:
    """Append everything that a sample store holds."""
    store.create_shard(ORDERS)
    store.create_shard(EVENTS, QueueKind.BATCH)
    store.create_shard(EMPTY)
    for first in range(0, ORDERS_COUNT, 10):
        store.append_many(ORDERS, [order(first + n) for n in range(5)], Producer(7, 0, first // 2))
        for n in range(5, 10):
            store.append(ORDERS, order(first + n))
    for number in range(EVENTS_COUNT):
        store.append(EVENTS, event(number))
    store.delete_offsets(ORDERS, [7, 8, 100])


def write_sample(path: Path, settings: SegmentSettings = QUIET) -> Path:
    with SegmentStore.open(str(path), settings) as store:
        fill(store)
    return path


def tree(root: Path) -> dict[str, tuple[int, int]]:
    """Return every path below `root` with its size and the time of its last change."""
    return {
        str(path.relative_to(root)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
    }


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)
