"""Compares the queues with the log, both ways: every live record has its unit, every unit its
record. Units are derived from the log and must be in the files byte for byte.

A record may be replaced by a later one of the same offset, when its shard was truncated; so what
does not fit is only noted at first, and forgotten when the log goes on to cut it away.

A writer that was killed, or is at work, may have truncated a shard and appended to it again, and
not yet have published that: the units of those offsets are then from before or after the
truncation, and the next start writes them anew.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from penstock.codec.append_interface import Appender
from penstock.codec.format import BATCH_UNIT, PRE_BLANK, QUEUE_UNIT, TIME_BLOCK
from penstock.engine.segment.inspect.ext_codes import ExtCodes
from penstock.engine.segment.inspect.report import DamagedSpans, Findings
from penstock.engine.segment.queue.state_files import bucket_of
from penstock.engine.segment.queue.time_index import TIMES_ENTRY, TIMES_HEADER, UNKNOWN
from penstock.engine.segment.readonly.readonly_shard import ReadOnlyShard
from penstock.engine.segment.readonly.snapshot import Snapshot
from penstock.errors import CorruptionError
from penstock.record import QueueKind, ShardId

_UNITS_PER_STEP: Final = 16_384
_MULTI_DISPATCH: Final = "%LMQ%"
"""Topics whose units come from records of other topics."""
_BASE_OFFSET: Final = 4
_COUNT: Final = 5
_SIZE: Final = QUEUE_UNIT.size


class _Run:
    """Units of the offsets [first, end) that are wrong in the same way."""

    __slots__ = ("end", "expected", "first", "lost")

    def __init__(self, first: int, end: int, expected: bytes, *, lost: bool) -> None:
        self.first = first
        self.end = end
        self.expected = expected
        self.lost = lost


class _Derived:
    """What the log says of one queue, as far as it was read."""

    def __init__(self, shard: ShardId, kind: QueueKind, log: ReadOnlyShard | None) -> None:
        self.shard: Final = shard
        self.kind: Final = kind
        self.state: Final = None if log is None else log.state
        self.log = log
        """None when its units cannot be looked at."""
        self.first: int | None = None
        """The first offset that the log holds."""
        self.next = 0
        """The offset after the last one."""
        self.records = 0
        self.runs: list[_Run] = []
        self.times: dict[int, int] = {}
        self.bases: list[int] = []
        """The first offset of every batch."""
        self.shift: int | None = None
        """What must be added to the number of a derived batch unit to find it in the files."""
        self.shift_at = 0
        """The first offset of the batch by which `shift` was found."""
        self.error: CorruptionError | None = None
        """What is wrong with the files as a whole."""
        self.undecided: int | None = None
        """From here on the log goes on otherwise than the published state knows."""

    @property
    def latest(self) -> int:
        """The offset after the last one whose unit is known, as far as the state knows."""
        latest = 0 if self.state is None else int(self.state.latest_offset)
        return latest if self.undecided is None else min(latest, self.undecided)

    def cut(self, offset: int) -> None:
        self.next = min(self.next, offset)
        if self.first is not None and self.first >= offset:
            self.first = None
        self.runs = [run for run in self.runs if run.first < offset]
        if self.runs:
            self.runs[-1].end = min(self.runs[-1].end, offset)
        self.times = {block: ms for block, ms in self.times.items() if block < offset // TIME_BLOCK}

    def add_run(self, offset: int, end: int, expected: bytes, *, lost: bool) -> None:
        last = self.runs[-1] if self.runs else None
        if last is not None and last.end == offset and last.lost == lost:
            last.end = end
        else:
            self.runs.append(_Run(offset, end, expected, lost=lost))


class QueueCheck:
    def __init__(self, snapshot: Snapshot, damaged: DamagedSpans, findings: Findings) -> None:
        self._snapshot: Final = snapshot
        self._findings: Final = findings
        self._damaged: Final = damaged
        self._closed: Final = not snapshot.unclosed
        self._queues: dict[int, _Derived] = {}
        self._ext: Final = ExtCodes(snapshot)

    # While the log is read

    def check_derived(self, appender: Appender) -> None:
        """Compare the units that the appender derived since the last call, and drop them."""
        for handle in appender.dirty_queues():
            queue = self._queue(appender, handle)
            first, data = appender.peek_units(handle)
            if data:
                if queue.kind is QueueKind.SIMPLE:
                    self._check_simple(queue, first, data)
                else:
                    self._check_batches(queue, first, data)
            queue.times.update(appender.drain_times(handle))
            appender.drop_units(handle, appender.next_unit(handle))

    def cut(self, appender: Appender, handle: int, offset: int) -> None:
        """Drop everything of a queue from `offset` on."""
        queue = self._queue(appender, handle)
        unit = offset
        if queue.kind is QueueKind.BATCH:
            while queue.bases and queue.bases[-1] >= offset:
                queue.bases.pop()
            unit = len(queue.bases)
            if unit == 0 or offset <= queue.shift_at:
                # The files go on from wherever they were, the log's units from 0; and a batch that
                # is cut is found in the files only as another one of its offset.
                queue.shift = None
        appender.truncate_queue(handle, offset, unit)
        queue.cut(offset)

    def restart(self, appender: Appender, handle: int, offset: int) -> None:
        """Drop everything of a queue, which goes on at `offset`."""
        queue = self._queue(appender, handle)
        unit = offset if queue.kind is QueueKind.SIMPLE else len(queue.bases)
        appender.restart_queue(handle, offset, unit)
        queue.cut(0)

    def _queue(self, appender: Appender, handle: int) -> _Derived:
        queue = self._queues.get(handle)
        if queue is None:
            for number, topic, partition, kind, _, _ in appender.queues():
                if number not in self._queues:
                    kind_of = QueueKind.BATCH if kind else QueueKind.SIMPLE
                    self._queues[number] = self._begin(ShardId(topic, partition), kind_of)
            queue = self._queues[handle]
        return queue

    def _begin(self, shard: ShardId, kind: QueueKind) -> _Derived:
        """Look at the files of a queue as a whole."""
        log = self._snapshot.shards.get(shard)
        queue = _Derived(shard, kind, log)
        if log is not None:
            try:
                log.check_units()
                _ = log.ends
            except CorruptionError as error:
                queue.error = error
                if log.kind is QueueKind.BATCH:
                    queue.log = None
        return queue

    def _on_truncated(self, queue: _Derived, offset: int, position: int) -> None:
        """Note that a record is after what the state knows of, at an offset below its end."""
        if self._closed or not self._snapshot.is_own or queue.state is None:
            return
        if position >= queue.state.folded_until and offset < queue.latest:
            queue.undecided = offset

    def _check_simple(self, queue: _Derived, first: int, data: bytes) -> None:
        count = len(data) // QUEUE_UNIT.size
        if first < queue.next:
            queue.cut(first)
        if queue.first is None:
            queue.first = first
        queue.next = first + count
        queue.records += count
        log = queue.log
        if log is None:
            return
        known = int(log.state.folded_until)
        news = bisect_left(
            range(count), known, key=lambda n: _position(data[n * _SIZE : n * _SIZE + 8])
        )
        if news < count:
            self._on_truncated(
                queue, first + news, _position(data[news * _SIZE : news * _SIZE + 8])
            )
        start, stop = max(first, log.earliest), min(first + count, queue.latest)
        while start < stop:
            end = min(stop, start + _UNITS_PER_STEP, _file_end(log, start))
            part = data[(start - first) * QUEUE_UNIT.size : (end - first) * QUEUE_UNIT.size]
            self._compare_simple(queue, log, start, part)
            start = end

    def _compare_simple(
        self, queue: _Derived, log: ReadOnlyShard, first: int, units: bytes
    ) -> None:
        actual = self._read(log, first, len(units) // QUEUE_UNIT.size)
        if actual is None or (actual == units and PRE_BLANK not in units):
            return
        for start in range(0, len(units), QUEUE_UNIT.size):
            expected, unit = (
                units[start : start + QUEUE_UNIT.size],
                actual[start : start + QUEUE_UNIT.size],
            )
            offset = first + start // QUEUE_UNIT.size
            if expected == PRE_BLANK:
                self._report_hole(queue, log, offset, unit)
            elif expected != unit and not self._ext.means(log.shard, expected, unit):
                queue.add_run(offset, offset + 1, expected, lost=False)

    def _report_hole(self, queue: _Derived, log: ReadOnlyShard, offset: int, unit: bytes) -> None:
        """The log jumps over an offset: its record is damaged, or was never there."""
        if log.state.is_deleted(offset):
            return
        lost = unit == PRE_BLANK or _position(unit) in self._damaged
        queue.add_run(offset, offset + 1, PRE_BLANK, lost=lost)

    def _check_batches(self, queue: _Derived, first: int, data: bytes) -> None:
        units = list(BATCH_UNIT.iter_unpack(data))
        base, last = units[0][_BASE_OFFSET], units[-1]
        if queue.first is None:
            queue.first = base
        del queue.bases[first:]
        queue.bases += [unit[_BASE_OFFSET] for unit in units]
        queue.next = last[_BASE_OFFSET] + last[_COUNT]
        queue.records += len(units)
        for derived in units:
            self._on_truncated(queue, derived[_BASE_OFFSET], derived[0])
        log = queue.log
        if log is None:
            return
        live = [
            number
            for number, unit in enumerate(units)
            if unit[_BASE_OFFSET] + unit[_COUNT] > log.earliest
            and unit[_BASE_OFFSET] < queue.latest
        ]
        if not live:
            return
        if queue.shift is None:
            queue.shift_at = units[live[0]][_BASE_OFFSET]
            queue.shift = self._find_shift(queue, log, queue.shift_at, first, live[0])
        for number in live:
            expected = data[number * BATCH_UNIT.size : (number + 1) * BATCH_UNIT.size]
            unit = first + number + queue.shift
            inside = log.ends.first <= unit < log.ends.stop
            actual = self._read(log, unit, 1) if inside else b""
            if actual is not None and actual != expected:
                offset = units[number][_BASE_OFFSET]
                queue.add_run(offset, offset + units[number][_COUNT], expected, lost=False)

    def _find_shift(
        self, queue: _Derived, log: ReadOnlyShard, base: int, first: int, number: int
    ) -> int:
        try:
            return log.unit_of(base) - (first + number)
        except CorruptionError as error:
            self._findings.add_error(log.units.directory, error)
            queue.log = None
            return 0

    def _read(self, log: ReadOnlyShard, unit: int, count: int) -> bytes | None:
        """Return the units in the file; None when the file is missing or short, which is
        reported."""
        path = log.units.path_of(unit)
        try:
            data = log.units.read(unit, count)
        except FileNotFoundError:
            self._findings.add(path, 0, "this queue file is missing")
            return None
        self._findings.checked.units += count
        if len(data) < count * log.units.unit_size:
            self._findings.add(path, 0, "this queue file is short")
            return None
        return data

    # At the end of the log

    def finish(self) -> None:
        """Report what is wrong in the end."""
        seen: dict[ShardId, _Derived] = {}
        for queue in self._queues.values():
            seen[queue.shard] = queue
            self._report_error(queue)
            if queue.log is None:
                self._report_unknown(queue)
            else:
                self._report_runs(queue, queue.log)
                self._check_times(queue, queue.log)
        for shard, log in self._snapshot.shards.items():
            self._findings.checked.shards += 1
            if shard.topic.startswith(_MULTI_DISPATCH):
                self._findings.add_note(f"{shard.topic}: queues of multi-dispatched records")
                continue
            derived = seen.get(shard)
            if derived is None:
                derived = self._begin(shard, log.kind)
                self._report_error(derived)
            if derived.log is not None:
                self._check_ends(derived, derived.log)

    def _report_error(self, queue: _Derived) -> None:
        if queue.error is not None and queue.undecided is None:
            log = self._snapshot.shards[queue.shard]
            self._findings.add_error(log.units.directory, queue.error)

    def _report_unknown(self, queue: _Derived) -> None:
        known = self._snapshot.known
        state = None if known is None else known.states.get(queue.shard)
        if queue.shard in self._snapshot.shards or not queue.records or not self._closed:
            return
        if known is None:
            reason = f"there is no queue, but the log holds {queue.records} records of it"
            self._findings.add(self._snapshot.paths.queue(queue.shard, queue.kind), 0, reason)
        elif state is None and not known.damaged:
            reason = f"the log holds {queue.records} records of {queue.shard.name}, but no state"
            path = f"{self._snapshot.paths.shards}/{bucket_of(queue.shard):02d}"
            self._findings.add(path, 0, reason)

    def _report_runs(self, queue: _Derived, log: ReadOnlyShard) -> None:
        for run in queue.runs:
            path, position = self._place(queue, log, run.first)
            if run.lost:
                self._findings.lose(queue.shard.name, run.first, run.end)
            if not run.lost or not self._damaged:
                self._findings.add(path, position, self._reason(queue, log, run))

    def _reason(self, queue: _Derived, log: ReadOnlyShard, run: _Run) -> str:
        whose = f"of offsets {run.first} to {run.end - 1}"
        if run.end == run.first + 1 or queue.kind is QueueKind.BATCH:
            whose = f"of offset {run.first}"
        if run.expected == PRE_BLANK:
            return f"the log holds no record {whose}"
        unit = self._read(log, self._unit_of(queue, run.first), 1) or b""
        if unit.count(0) == len(unit):
            return f"no unit {whose}; the record is at {_position(run.expected)} of the log"
        if _position(unit) != _position(run.expected):
            return (
                f"wrong unit {whose}: it says position {_position(unit)} of the log, "
                f"the record is at {_position(run.expected)}"
            )
        return f"wrong unit {whose}: size, tag code or time are not those of the record"

    def _place(self, queue: _Derived, log: ReadOnlyShard, offset: int) -> tuple[str, int]:
        return _place_of(log, self._unit_of(queue, offset))

    def _unit_of(self, queue: _Derived, offset: int) -> int:
        if queue.kind is QueueKind.SIMPLE:
            return offset
        return queue.bases.index(offset) + (queue.shift or 0)

    def _check_ends(self, queue: _Derived, log: ReadOnlyShard) -> None:
        earliest, latest = log.earliest, queue.latest
        first = latest if queue.first is None else queue.first
        if queue.kind is QueueKind.SIMPLE:
            self._check_unmatched(queue, log, earliest, min(first, latest))
            self._check_unmatched(queue, log, max(queue.next, first, earliest), latest)
        elif earliest < latest and (queue.first is None or queue.next < latest):
            start = max(earliest, queue.next)
            if self._damaged:
                self._findings.lose(queue.shard.name, start, latest)
            else:
                reason = f"units of the offsets {start} to {latest - 1} have no record in the log"
                self._findings.add(*_place_of(log, max(0, log.ends.stop - 1)), reason)
        if queue.next > latest and self._closed:
            stop = log.ends.stop
            reason = f"the queue ends at offset {latest}, the log holds it up to {queue.next}"
            self._findings.add(*_place_of(log, stop), reason)
        if self._closed and self._snapshot.is_own:
            self._check_unused(log, log.ends.stop)

    def _check_unused(self, log: ReadOnlyShard, stop: int) -> None:
        """After the last unit there are zeros: RocketMQ takes anything else for a unit."""
        try:
            rest = log.units.read(stop, _file_end(log, stop) - stop)
        except FileNotFoundError:
            return
        if rest.count(0) != len(rest):
            path, start = _place_of(log, stop)
            index = len(rest) - len(rest.lstrip(b"\0"))
            self._findings.add(path, start + index, "there is something after the last unit")

    def _check_unmatched(self, queue: _Derived, log: ReadOnlyShard, start: int, stop: int) -> None:
        """Report live units for which the log held no record at all."""
        queue.runs = []
        while start < stop:
            count = min(_UNITS_PER_STEP, stop - start, _file_end(log, start) - start)
            units = self._read(log, start, count) or b""
            for number in range(len(units) // QUEUE_UNIT.size):
                unit = units[number * QUEUE_UNIT.size : (number + 1) * QUEUE_UNIT.size]
                self._report_hole(queue, log, start + number, unit)
            start += count
        self._report_runs(queue, log)

    def _check_times(self, queue: _Derived, log: ReadOnlyShard) -> None:
        """The maxima kept for a block must not be below a time in it, or records would be hidden
        from a look-up by time. Unknown ones are allowed."""
        if not self._snapshot.is_own:
            return
        path = f"{self._snapshot.paths.times}/{queue.shard.topic}/{queue.shard.partition}"
        first_block = log.times.first_block
        if log.times.damaged:
            unknown = log.times.unknown(first_block, log.times.end_block)
            position = _time_position(unknown[0] - first_block) if unknown else 0
            self._findings.add(path, position, "the entry does not match its checksum")
        for block, maximum_ms in sorted(queue.times.items()):
            live = log.earliest // TIME_BLOCK <= block < queue.latest // TIME_BLOCK
            if not live or maximum_ms in (-1, UNKNOWN):
                continue
            self._findings.checked.time_blocks += 1
            if not list(log.times.candidates(maximum_ms, block, block + 1)):
                reason = f"block {block} holds a record of time {maximum_ms}, the entry is below it"
                self._findings.add(path, _time_position(block - first_block), reason)


def _file_end(log: ReadOnlyShard, unit: int) -> int:
    return unit - unit % log.units.file_units + log.units.file_units


def _place_of(log: ReadOnlyShard, unit: int) -> tuple[str, int]:
    return log.units.path_of(unit), unit % log.units.file_units * log.units.unit_size


def _position(unit: bytes) -> int:
    return int.from_bytes(unit[:8], "big", signed=True)


def _time_position(index: int) -> int:
    return TIMES_HEADER.size + index * TIMES_ENTRY.size
