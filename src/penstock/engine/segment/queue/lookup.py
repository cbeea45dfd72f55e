"""Finds the records of a shard in the log by its queue, and says when some are missing.

A queue has no hole of its own: an offset without a record was deleted, or is below the floor, or
its record is lost. So a unit that should be there and is not, a unit without a record, and a gap
between two batches raise `CorruptionError`; the reader then has the queue rebuilt and tries
again, and what is missing still is lost for good.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from penstock.codec.format import BATCH_UNIT, PRE_BLANK, QUEUE_UNIT
from penstock.engine.segment.log.disk_errors import read_error
from penstock.engine.segment.log.log_files import FileSet
from penstock.engine.segment.queue.shard_state import ShardState
from penstock.errors import BadRequestError, CorruptionError
from penstock.record import QueueKind, ShardId

UNITS_PER_STEP: Final = 4096


class ReadableShard(Protocol):
    """A shard as readers see it: of an open store, or of a directory that another process
    writes."""

    repaired: frozenset[int]
    """Offsets for which rebuilding the queue did not help: their records are damaged."""

    @property
    def shard(self) -> ShardId: ...
    @property
    def kind(self) -> QueueKind: ...
    @property
    def state(self) -> ShardState: ...
    @property
    def earliest(self) -> int: ...
    @property
    def commit(self) -> int: ...
    @property
    def truncation_generation(self) -> int:
        """How often offsets were taken back: the tail was cut, or the shard deleted."""
        ...

    def was_truncated_since(self, generation: int) -> bool:
        """Say whether offsets were taken back since `generation` was read; waits for a truncation
        that is taking some back."""
        ...

    def check_units(self) -> bool:
        """Return False when the queue files cannot be believed."""
        ...

    def unit_of(self, offset: int) -> int: ...

    def read_units(self, unit: int, count: int) -> bytes:
        """Return units as they were written, or raise `CorruptionError` or `FileNotFoundError`."""
        ...

    def position_of(self, offset: int) -> int | None: ...

    def offset_at(self, position: int) -> int:
        """Return the first live offset whose record is at or after `position` of the log."""
        ...

    def blocks_from(self, timestamp_ms: int) -> Iterator[int]:
        """Yield the blocks of offsets that may hold a record of this time or a later one."""
        ...


class Query(NamedTuple):
    """What a reader wants from `offset` on, below `until`."""

    offset: int
    until: int
    max_records: int
    max_size: int
    tag: str | None = None
    key: bytes | None = None


class LookupResult(NamedTuple):
    """Units of consecutive offsets; the record of the first is in the log file at `base`."""

    base: int
    units: bytes


def look_up(files: FileSet, log: ReadableShard, query: Query) -> LookupResult | int:
    """Return the units of the records from `offset` on; the offset to go on at when there is none
    to be read. Raise `CorruptionError` when there should be one."""
    if log.kind is QueueKind.SIMPLE:
        return _locate_records(files, log, query)
    return _locate_batches(files, log, query)


def _locate_records(files: FileSet, log: ReadableShard, query: Query) -> LookupResult | int:
    offset = query.offset
    units = _read_units(log, offset, min(_step_size(query), query.until - offset))
    if not units:
        return query.until  # cut off meanwhile
    blank = _find_blank(units)
    if blank == 0:
        return _after_blanks(files, log, offset, units)
    if blank > 0:
        units = units[:blank]
    return _at(files, units)


def _locate_batches(files: FileSet, log: ReadableShard, query: Query) -> LookupResult | int:
    offset = query.offset
    units = _read_units(log, offset, _step_size(query))
    first = _first_offset(units) if units else query.until
    if first > offset:
        return _after_gap(files, log, offset, min(first, query.until))
    return _at(files, without_gap(units))


def _step_size(query: Query) -> int:
    selective = query.tag is not None or query.key is not None
    return UNITS_PER_STEP if selective else min(UNITS_PER_STEP, query.max_records)


def _at(files: FileSet, units: bytes) -> LookupResult:
    position = int.from_bytes(units[:8], "big", signed=True)
    if not files.holds(position):
        path = files.path_of(max(0, position))
        raise CorruptionError(path, position=0, reason="this file of the log is missing")
    return LookupResult(files.base_of(position), units)


def _read_units(log: ReadableShard, offset: int, count: int) -> bytes:
    try:
        return log.read_units(log.unit_of(offset), count)
    except OSError as error:
        raise read_error(error, queue_name(log)) from error


def queue_name(log: ReadableShard) -> str:
    """Say whose queue it is, where the file that could not be read is not known."""
    return f"the queue of {log.shard.name!r}"


def check_limits(offset: int, max_records: int, max_size: int) -> None:
    """Refuse what no read can be meant by."""
    if offset < 0 or max_records < 1 or max_size < 1:
        raise BadRequestError(
            f"offset {offset}, max_records {max_records}, max_size {max_size}: "
            "offsets start at 0 and limits at 1"
        )


def check_limit(limit: int) -> None:
    if limit < 0:
        raise BadRequestError(f"limit is {limit}; it cannot be negative")


def _find_blank(units: bytes) -> int:
    index = units.find(PRE_BLANK)
    while index >= 0 and index % QUEUE_UNIT.size:
        index = units.find(PRE_BLANK, index + 1)
    return index


def _after_blanks(files: FileSet, log: ReadableShard, offset: int, units: bytes) -> int:
    end = offset
    while units.startswith(PRE_BLANK, (end - offset) * QUEUE_UNIT.size):
        end += 1
    return _after_gap(files, log, offset, end)


def _after_gap(files: FileSet, log: ReadableShard, offset: int, end: int) -> int:
    """Return the first offset of [offset, end) that is not deleted, or `end`; raise when that is
    `offset` itself."""
    first = offset
    while first < end and log.state.is_deleted(first):
        first += 1
    if first == offset and offset < end:
        raise lost_record(files, log, offset)
    return first


def lost_record(files: FileSet, log: ReadableShard, offset: int) -> CorruptionError:
    reason = f"the record of offset {offset} of {log.shard.name!r} is lost"
    return CorruptionError(files.directory, position=0, reason=reason)


def _first_offset(unit: bytes) -> int:
    return int(BATCH_UNIT.unpack_from(unit)[4])


def without_gap(units: bytes) -> bytes:
    """Return the units up to the first that does not follow on the one before."""
    expected: int | None = None
    for number, (_, _, _, _, base, count, _, _) in enumerate(BATCH_UNIT.iter_unpack(units)):
        if expected is not None and base != expected:
            return units[: number * BATCH_UNIT.size]
        expected = base + count
    return units
