"""Clears the bytes after the end of the log, which a crash may have left there."""

from __future__ import annotations

from typing import Final

from penstock.codec.select import core
from penstock.engine.segment.log.commit_log import CommitLog

_ZERO_CHUNK: Final = 1 << 20
_ZEROS: Final = bytes(_ZERO_CHUNK)


def clear_tail(log: CommitLog, end: int) -> tuple[int, int]:
    """Zero what is after `end`, and remove the files after it, unless all of that is zeros;
    return (bytes that were not zero, whole records among them)."""
    files = log.files
    dirty = records = 0
    for base in files.bases:
        if base + files.file_size <= end:
            continue
        buffer = files.buffer(base)
        for start, stop in files.written_ranges(max(end, base)):
            size = _count_dirty(buffer, start - base, stop - base)
            dirty += size
            if size:
                records += _count_records(buffer, base, start, stop)
        del buffer
    if dirty:
        files.zero(end)
    return dirty, records


def _count_dirty(buffer: memoryview, start: int, stop: int) -> int:
    dirty = 0
    for position in range(start, stop, _ZERO_CHUNK):
        chunk = bytes(buffer[position : min(position + _ZERO_CHUNK, stop)])
        if chunk != _ZEROS[: len(chunk)]:
            dirty += len(chunk.rstrip(b"\0"))
    return dirty


def _count_records(buffer: memoryview, base: int, start: int, stop: int) -> int:
    records = 0
    position = core.find_record(buffer, base, start, stop)
    while position >= 0:
        position, seen, _ = core.check_log(buffer, base, position, stop)
        records += seen
        position = core.find_record(buffer, base, position, stop) if seen else -1
    return records
