"""Offsets that were given out and whose records damage took, by what the queues still say.

A queue file may hold units of records that the log has lost: those after the last checkpoint, whose
offsets no state knows. Such an offset must not be given out again. A unit counts only when its
record was stored in bytes that damage took: units past a torn tail, or of a shard that was cut, say
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.engine.segment.paths import StorePaths
from penstock.engine.segment.queue.entry_rows import UnitRow, unit_rows
from penstock.engine.segment.queue.queue_files import OpenFiles, UnitFiles
from penstock.engine.segment.queue.shard import ShardLog
from penstock.engine.segment.readonly.readonly_shard import find_stop
from penstock.engine.segment.settings import FileSizes
from penstock.platform.disk import Disk
from penstock.record import QueueKind, ShardId

_OPEN_FILES_MAX: Final = 16
Spans = list[tuple[int, int]]
"""Stretches [start, stop) of the log."""


def end_in_files(shard: ShardLog, spans: Spans) -> tuple[int, int]:
    """Return up to which offset the files of a queue go on after its end with units of records
    that damage took, and the size of those records."""
    end, size = shard.next_offset, 0
    for row in rows_from(shard.units, shard.kind, shard.next_unit):
        if row.first_offset != end or not is_in(spans, row):
            break
        end, size = row.end_offset, size + row.size
    return end, size


def rows_from(units: UnitFiles, kind: QueueKind, unit: int) -> Iterator[UnitRow]:
    """Yield what the files hold from `unit` on, up to the first unit without a record."""
    while True:
        try:
            data = units.read(unit, 1)
        except FileNotFoundError:
            return
        if len(data) < units.unit_size:
            return
        (row,) = unit_rows(kind, unit, data)
        if row.is_blank:
            return
        yield row
        unit += 1


def is_in(spans: Spans, row: UnitRow) -> bool:
    """Say whether a record was stored, at least in part, in one of `spans`."""
    return any(row.position < stop and start < row.position + row.size for start, stop in spans)


def ends_of_queues(
    disk: Disk, paths: StorePaths, sizes: FileSizes
) -> dict[ShardId, tuple[int, UnitRow]]:
    """Return where queues end by their files, with their last units."""
    ends: dict[ShardId, tuple[int, UnitRow]] = {}
    # Files of its own: the caller is about to remove them.
    open_files = OpenFiles(disk, _OPEN_FILES_MAX)
    try:
        for kind in QueueKind:
            for shard in _queues_below(disk, paths.queue_root(kind)):
                simple = kind is QueueKind.SIMPLE
                size = sizes.consume_queue_file_size if simple else sizes.batch_queue_file_size
                units = UnitFiles(open_files, paths.queue_root(kind), shard, kind, size)
                last = _last_row(units, kind)
                if last is not None:
                    ends[shard] = (last.end_offset, last)
    finally:
        open_files.close()
    return ends


def _queues_below(disk: Disk, root: str) -> Iterator[ShardId]:
    for topic in disk.list(root):
        if disk.is_directory(f"{root}/{topic}"):
            for queue in disk.list(f"{root}/{topic}"):
                if queue.isascii() and queue.isdigit():
                    yield ShardId(topic, int(queue))


def _last_row(units: UnitFiles, kind: QueueKind) -> UnitRow | None:
    files = units.first_units()
    stop = find_stop(units, files)
    data = units.read(stop - 1, 1) if files and stop > files[0] else b""
    rows = unit_rows(kind, stop - 1, data) if len(data) == units.unit_size else []
    return rows[0] if rows else None
