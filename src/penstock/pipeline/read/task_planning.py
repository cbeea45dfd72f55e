"""How many tasks a read has, and how ranges of offsets are put into them.

    tasks = max(bytes / maxPartitionBytes, minPartitions, rows / 500,000,
                min(2 × cores, rows / 50,000))

Rows are exact, since offsets tell them; bytes are those on the device. So records in compressed
batches, which are few bytes and much work, are spread over all cores, and a small read is one task.
Plans are made in processes that see no session: `PENSTOCK_CORES` holds the session's cores.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from penstock.pipeline.read.ranges import ShardRange
from penstock.pipeline.spark_session.masters import CORES

ROWS_MAX: Final = 500_000
"""A task with more rows than this would run long after the others have ended."""
ROWS_MIN: Final = 50_000
"""Fewer rows than this are not worth another task."""
TASKS_PER_CORE: Final = 2


def cores() -> int:
    """Return how many cores a read can count on."""
    text = os.environ.get(CORES, "")
    return int(text) if text.isdigit() and int(text) else os.cpu_count() or 1


def task_count(size: int, rows: int, partition_bytes: int, partitions_min: int) -> int:
    """Return how many tasks a read of so many bytes and rows is cut into."""
    by_cores = min(TASKS_PER_CORE * cores(), rows // ROWS_MIN)
    return max(1, -(-size // partition_bytes), partitions_min, -(-rows // ROWS_MAX), by_cores)


def rows_of(ranges: Iterable[ShardRange]) -> int:
    return sum(shard_range.end - shard_range.start for shard_range in ranges)


def pack(
    ranges: Sequence[ShardRange], sizes: Sequence[int], task_size: int
) -> Iterator[list[ShardRange]]:
    """Yield the ranges of each task, of about `task_size` bytes: long ranges are split, short ones
    put together."""
    short: list[ShardRange] = []
    short_size = 0
    for shard_range, size in zip(ranges, sizes, strict=True):
        shard, start, end = shard_range
        pieces = min(-(-size // task_size), end - start)
        if pieces > 1:
            cuts = [start + (end - start) * number // pieces for number in range(pieces + 1)]
            yield from ([ShardRange(shard, low, high)] for low, high in pairwise(cuts))
            continue
        if short and short_size + size > task_size:
            yield short
            short, short_size = [], 0
        short.append(shard_range)
        short_size += size
    if short:
        yield short


def limit_rows(ranges: Iterable[ShardRange], rows_max: int) -> Iterator[list[ShardRange]]:
    """Yield the ranges of a task as those of several, none with more than `rows_max` offsets."""
    part: list[ShardRange] = []
    room = rows_max
    for shard, first, end in ranges:
        start = first
        while start < end:
            cut = min(end, start + room)
            part.append(ShardRange(shard, start, cut))
            room -= cut - start
            start = cut
            if room == 0:
                yield part
                part, room = [], rows_max
    if part:
        yield part
