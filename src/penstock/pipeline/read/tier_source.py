"""A tier as a source: its manifests hold the shards, their offset ranges and chunks.

Planning costs one request per shard, and one per sealed segment that is read; chunks are not
opened. Chunks that the filters exclude, by the time range or the key filter of their manifest
entries, are not part of any task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from penstock.pipeline.options.filters import Filters
from penstock.pipeline.options.source_options import SourceOptions
from penstock.pipeline.read.planning import TaskPartition
from penstock.pipeline.read.ranges import ShardRange
from penstock.pipeline.read.sources import OffsetRange
from penstock.pipeline.read.task_planning import rows_of, task_count
from penstock.pipeline.read.tiers import OpenTier
from penstock.record import ShardId
from penstock.tiered import ChunkEntry

_UNLIMITED: Final = 1 << 62


class _Piece(NamedTuple):
    range: ShardRange
    size: int


class TierSource:
    """Implements `RecordSource`. Topics are named as the tier names them."""

    def __init__(self, url: str, topics: tuple[str, ...] | None) -> None:
        """`topics`: those that are asked for, None for all; only their objects are listed."""
        self.url: Final = url
        self._tier: Final = OpenTier(url)
        self._topics: Final = topics
        self._shards: list[ShardId] | None = None
        self._ranges: dict[ShardId, OffsetRange | None] = {}

    def shards(self) -> list[ShardId]:
        if self._shards is None:
            shards = self._tier.shards(self._topics)
            self._shards = [shard for shard in shards if self.find(shard) is not None]
        return self._shards

    def ids(self) -> dict[str, str]:
        return {}  # topics of a node are named by their ids here

    def find(self, shard: ShardId) -> OffsetRange | None:
        """Return what the tier holds of a shard; None when it has nothing of it."""
        if shard not in self._ranges:
            manifest = self._tier.flat(shard).refresh()
            self._ranges[shard] = None
            if manifest is not None:
                self._ranges[shard] = OffsetRange(manifest.start_offset, manifest.end_offset)
        return self._ranges[shard]

    def bounds(self, shard: ShardId) -> OffsetRange:
        return self.find(shard) or OffsetRange(0, 0)

    def offset_by_timestamp(
        self, shard: ShardId, timestamp_ms: int, until: int = _UNLIMITED
    ) -> int | None:
        return self._tier.flat(shard).reader.offset_by_time(timestamp_ms, until)

    def refresh(self) -> None:
        self._shards = None
        self._ranges.clear()

    def tasks(
        self, ranges: Sequence[ShardRange], options: SourceOptions, filters: Filters
    ) -> list[TaskPartition]:
        pieces = [piece for shard_range in ranges for piece in self._pieces(shard_range, filters)]
        total = sum(piece.size for piece in pieces)
        rows = rows_of(piece.range for piece in pieces)
        count = task_count(total, rows, options.partition_bytes, options.partitions_min)
        task_size = max(1, -(-total // count))
        tasks: list[list[ShardRange]] = []
        size = 0
        for part in (part for piece in pieces for part in _cut(piece, task_size)):
            if not tasks or size + part.size > task_size:
                tasks.append([])
                size = 0
            _add(tasks[-1], part.range)
            size += part.size
        by_key = filters.keys is not None
        return [TaskPartition(task_ranges, by_key=by_key, tier=self.url) for task_ranges in tasks]

    def _pieces(self, shard_range: ShardRange, filters: Filters) -> Iterator[_Piece]:
        """Yield the parts of a range, by chunks."""
        manifest = self._tier.flat(shard_range.shard).manifest
        for entry in manifest.chunks_from(shard_range.start):
            if entry.first_offset >= shard_range.end:
                return
            low, high = (
                max(shard_range.start, entry.first_offset),
                min(shard_range.end, entry.end_offset),
            )
            if low < high and may_pass(entry, filters):
                share = entry.data_size * (high - low) // (entry.end_offset - entry.first_offset)
                yield _Piece(ShardRange(shard_range.shard, low, high), max(1, share))

    def close(self) -> None:
        self._tier.close()


def may_pass(entry: ChunkEntry, filters: Filters) -> bool:
    """Say whether records of a chunk can pass the filters, by what its manifest says of it."""
    first_ms, last_ms = filters.first_ms, filters.last_ms
    if first_ms is not None and entry.max_ms < first_ms:
        return False
    if last_ms is not None and entry.min_ms > last_ms:
        return False
    return filters.keys is None or any(entry.may_hold_key(key) for key in filters.keys)


def _cut(piece: _Piece, task_size: int) -> Iterator[_Piece]:
    """Yield a piece in parts, when it is larger than a task is to be."""
    (shard, start, end), size = piece
    count = min(max(1, -(-size // task_size)), end - start)
    for number in range(count):
        low = start + (end - start) * number // count
        high = start + (end - start) * (number + 1) // count
        yield _Piece(ShardRange(shard, low, high), max(1, size // count))


def _add(ranges: list[ShardRange], shard_range: ShardRange) -> None:
    """Add a range; one that follows on the last is made part of it."""
    if ranges and ranges[-1].shard == shard_range.shard and ranges[-1].end == shard_range.start:
        ranges[-1] = ranges[-1]._replace(end=shard_range.end)
    else:
        ranges.append(shard_range)
