"""One shard of a store that another process may be writing: read only, never past its bounds.

The bounds of our own shards come from their published states. RocketMQ publishes none: there, a
queue ends where its units do (unused bytes are zero), and begins with the first unit whose record
is still in the log; both are found by bisection when the shard is first used.

Nothing is repaired here. A queue file that is missing, short, or not what its checksum says raises
`CorruptionError` with its name.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from penstock.codec.format import BATCH_UNIT, PRE_BLANK, QUEUE_UNIT, TIME_BLOCK
from penstock.engine.segment.index.sealed_files import SealedFiles
from penstock.engine.segment.paths import sums_path
from penstock.engine.segment.queue.queue_files import UnitFiles
from penstock.engine.segment.queue.shard_state import ShardState
from penstock.engine.segment.queue.time_index import TimeIndex
from penstock.errors import CorruptionError
from penstock.record import Offset, QueueKind, ShardId

_SIZE_AT: Final = QUEUE_UNIT.position_of("size")
_SIZE_END: Final = QUEUE_UNIT.position_of("tag_code")
_UNITS_PER_STEP: Final = 4096
_BASE_OFFSET: Final = 4
_COUNT: Final = 5
"""Fields of a batch unit."""


class QueueEnds(NamedTuple):
    """The units [first, stop) of a queue, and the state that says what of them may be read."""

    state: ShardState
    first: int
    stop: int


class ReadOnlyShard:
    """Implements `ReadableShard`."""

    def __init__(
        self,
        shard: ShardId,
        kind: QueueKind,
        units: UnitFiles,
        times: TimeIndex,
        sealed: SealedFiles,
        *,
        state: ShardState | None,
        log_start: int,
    ) -> None:
        self.repaired: frozenset[int] = frozenset()
        self.units: Final = units
        self.times: Final = times
        self._shard: Final = shard
        self._kind: Final = kind
        self._sealed: Final = sealed
        self._published: Final = state
        self._log_start: Final = log_start
        self._ends: QueueEnds | None = None
        self._checked = False
        self._lock: Final = threading.RLock()

    @property
    def shard(self) -> ShardId:
        return self._shard

    @property
    def kind(self) -> QueueKind:
        return self._kind

    @property
    def ends(self) -> QueueEnds:
        ends = self._ends
        if ends is None:
            with self._lock:
                ends = self._ends = self._find_ends()
        return ends

    @property
    def state(self) -> ShardState:
        return self.ends.state

    @property
    def earliest(self) -> int:
        return self.state.earliest_offset

    @property
    def commit(self) -> int:
        return self.state.commit_offset

    @property
    def truncation_generation(self) -> int:
        return 0

    def was_truncated_since(self, generation: int) -> bool:  # noqa: ARG002 - a snapshot is never cut
        return False

    def _find_ends(self) -> QueueEnds:
        if self._published is None:
            return find_ends(self.units, self._kind, self._log_start)
        state = self._published
        if self._kind is QueueKind.SIMPLE:
            return QueueEnds(state, state.earliest_offset, state.latest_offset)
        stop = state.queue_first + state.queue_units
        return QueueEnds(state, min([stop, *self.units.first_units()]), stop)

    def check_units(self) -> bool:
        """Raise when the newest file does not hold the units that its state speaks of."""
        with self._lock:
            if self._checked or self._published is None:
                return True
            state = self._published
            if state.queue_units:
                data = self._read(state.queue_first, state.queue_units)
                if zlib.crc32(data) != state.queue_crc:
                    path = self.units.path_of(state.queue_first)
                    reason = "the units do not match their checksum"
                    raise CorruptionError(path, position=0, reason=reason)
            self._checked = True
            return True

    def read_units(self, unit: int, count: int) -> bytes:
        """Return up to `count` units from `unit` on; none after the end."""
        count = min(count, self.ends.stop - unit)
        return self._read(unit, count) if count > 0 else b""

    def _read(self, unit: int, count: int) -> bytes:
        if self._kind is QueueKind.BATCH:
            self._check_sealed(unit, count)
        try:
            data = self.units.read(unit, count)
        except FileNotFoundError as error:
            path = str(error.filename or self.units.path_of(unit))
            raise CorruptionError(path, position=0, reason="this queue file is missing") from error
        if len(data) < count * self.units.unit_size:
            position = unit % self.units.file_units * self.units.unit_size
            path = self.units.path_of(unit)
            raise CorruptionError(path, position=position, reason="this queue file is short")
        return data

    def _check_sealed(self, unit: int, count: int) -> None:
        """Check batch queue files against their page checksums: the offsets in them are only
        found by bisection, and one damaged unit could send it past records."""
        size = self.units.file_units
        for first in range(unit - unit % size, unit + count, size):
            path = self.units.path_of(first)
            self._sealed.check(sums_path(self._shard, self._kind, path), path)

    def unit_of(self, offset: int) -> int:
        """Return the number of the unit that holds `offset`, or would be the first after it."""
        if self._kind is QueueKind.SIMPLE:
            return offset
        low, high = self.ends.first, self.ends.stop
        while low < high:
            middle = (low + high) // 2
            unit = BATCH_UNIT.unpack(self._read(middle, 1))
            if unit[_BASE_OFFSET] + unit[_COUNT] <= offset:
                low = middle + 1
            else:
                high = middle
        return low

    def position_of(self, offset: int) -> int | None:
        """Return where the record (or the batch) of `offset` is stored in the log, or None."""
        unit = self.read_units(self.unit_of(offset), 1)
        return None if not unit or unit == PRE_BLANK else _position(unit)

    def offset_at(self, position: int) -> int:
        """Return the first live offset whose record is at or after `position` of the log."""
        units = (self.unit_of(self.earliest), self.ends.stop)
        low = first_unit_at(self._read, self.units.unit_size, units, position)
        if self._kind is QueueKind.SIMPLE or low >= self.ends.stop:
            return min(low, self.commit) if self._kind is QueueKind.SIMPLE else self.commit
        return int(BATCH_UNIT.unpack(self._read(low, 1))[_BASE_OFFSET])

    def blocks_from(self, timestamp_ms: int) -> Iterator[int]:
        """Yield the blocks of offsets that may hold a record of this time or a later one."""
        last = self.state.latest_offset // TIME_BLOCK
        yield from self.times.candidates(timestamp_ms, self.earliest // TIME_BLOCK, last)
        yield last


def find_ends(units: UnitFiles, kind: QueueKind, log_start: int) -> QueueEnds:
    """Find out where a queue begins and ends from its files alone, as RocketMQ left them."""
    files = units.first_units()
    stop = find_stop(units, files)
    low = first_unit_at(units.read, units.unit_size, (files[0] if files else 0, stop), log_start)
    # RocketMQ's queues begin with units that never had a record.
    low, _ = first_record(units.read, units.unit_size, low, stop)
    state = ShardState(kind)
    earliest, latest = low, stop
    if kind is QueueKind.BATCH:
        latest = _batch_end(units, stop - 1) if files and stop > files[0] else 0
        earliest = _batch_base(units, low) if low < stop else latest
    state.floor_offset = Offset(earliest)
    state.commit_offset = state.latest_offset = Offset(latest)
    return QueueEnds(state, low, stop)


def find_stop(units: UnitFiles, files: list[int]) -> int:
    """Return the number of the first unit that holds nothing; an empty last file is normal."""
    for first in reversed(files):
        low, high = 0, units.file_units
        while low < high:
            middle = (low + high) // 2
            if _is_used(units.read(first + middle, 1)):
                low = middle + 1
            else:
                high = middle
        if low:
            return first + low
    return files[0] if files else 0


def _is_used(unit: bytes) -> bool:
    return int.from_bytes(unit[_SIZE_AT:_SIZE_END], "big", signed=True) > 0


def first_unit_at(
    read: Callable[[int, int], bytes], unit_size: int, units: tuple[int, int], position: int
) -> int:
    """Return the first of `units` (first, stop) whose record is stored at or after `position`, by
    bisection. A unit without a record has no position: the next one that has a record decides."""
    low, high = units
    while low < high:
        middle = (low + high) // 2
        number, record_position = first_record(read, unit_size, middle, high)
        if record_position is not None and record_position < position:
            low = number + 1
        else:
            high = middle
    return low


def first_record(
    read: Callable[[int, int], bytes], unit_size: int, unit: int, stop: int
) -> tuple[int, int | None]:
    """Return the first unit of [unit, stop) that has a record, and its position."""
    count = 1
    while unit < stop:
        data = read(unit, min(count, stop - unit))
        for start in range(0, len(data), unit_size):
            if not data.startswith(PRE_BLANK, start):
                return unit + start // unit_size, _position(data[start:])
        if not data:
            break
        unit += len(data) // unit_size
        count = _UNITS_PER_STEP
    return stop, None


def _position(unit: bytes) -> int:
    return int.from_bytes(unit[:8], "big", signed=True)


def _batch_base(units: UnitFiles, unit: int) -> int:
    return int(BATCH_UNIT.unpack(units.read(unit, 1))[_BASE_OFFSET])


def _batch_end(units: UnitFiles, unit: int) -> int:
    fields = BATCH_UNIT.unpack(units.read(unit, 1))
    return int(fields[_BASE_OFFSET] + fields[_COUNT])
