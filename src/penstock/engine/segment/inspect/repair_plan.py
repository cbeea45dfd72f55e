"""What a repair of the log would do, and which records are gone: looked at, not changed.

A log lacks bytes when a file of it is shorter than it was written, or missing, below the point up
to which it was on the device. The queues say which records were there: each unit names the
position and the size of its record. What no queue accounts for is reported as a number of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from enum import Enum
from typing import Final

from msgspec import Struct

from penstock.codec.format import BLANK, MAGIC_BLANK, RECORD_SIZE_MIN
from penstock.codec.select import core
from penstock.engine.segment.control.control_records import is_control
from penstock.engine.segment.log.log_files import FileSet
from penstock.engine.segment.queue.entry_rows import UnitRow, unit_rows
from penstock.engine.segment.readonly.readonly_shard import ReadOnlyShard, first_unit_at
from penstock.engine.segment.readonly.snapshot import Snapshot
from penstock.engine.segment.recovery.checkpoint import damaged_slots, read_durable, read_rocketmq
from penstock.engine.segment.recovery.damaged_record import offsets_of_batch, torn_record
from penstock.engine.segment.recovery.lost_offsets import Spans, is_in, rows_from
from penstock.errors import CorruptionError
from penstock.platform.disk import Disk
from penstock.record import QueueKind, ShardId

_UNITS_PER_STEP: Final = 4096


class Action(Enum):
    """What is done to one file of the log."""

    COMPLETE = "fill up with zeros"
    BLANK = "end with a blank record"
    HOLE = "mark the missing part as a hole"
    CREATE = "create, all of it a hole"
    SHORTEN = "save the surplus bytes, and cut them off"
    REWRITE = "write again"


class RepairStep(Struct, frozen=True):
    """One file that is not as it should be, and what a repair makes of it."""

    path: str
    reason: str
    action: Action
    base: int = 0
    """Position of its first byte in the log."""
    at: int = 0
    """From this byte of the file on it is changed."""


class LostRecords(Struct, frozen=True):
    """The offsets [first, end) of a shard, whose records are gone."""

    shard: str
    topic: str
    partition: int
    first: int
    end: int
    records: int
    """How many of them were not deleted before."""
    size: int
    """Bytes of all of them in the log."""
    is_control: bool
    """Deletions and seals of a shard, which are kept in a queue of their own."""


class RepairPlan(Struct):
    durable: int
    """Every byte of the log below this position was on the device."""
    steps: list[RepairStep]
    lost: list[LostRecords]
    unaccounted_size: int
    """Missing bytes of the log that no queue names a record for."""
    unreadable: list[str]
    """Shards whose queue cannot be read: what they lose is found out when it is rebuilt."""


def plan_repair(snapshot: Snapshot) -> RepairPlan:
    durable = _durable(snapshot)
    steps: list[RepairStep] = []
    spans: Spans = []
    for step, lost in _check_files(snapshot.disk, snapshot.files, durable):
        steps.append(step)
        if lost[0] < lost[1]:
            spans.append(lost)
    places = damaged_slots(snapshot.disk, snapshot.paths.durable)
    if places:
        reason = f"the durable point is damaged in {len(places)} of its 2 slots"
        steps.append(RepairStep(snapshot.paths.durable, reason, Action.REWRITE, at=places[0]))
    plan = RepairPlan(durable, steps, [], sum(stop - start for start, stop in spans), [])
    cut = [entry for step in steps for entry in _cut_record(snapshot, step)]
    for shard in sorted(snapshot.shards):
        mine = [row for named, row in cut if named == shard]
        _add_lost(plan, snapshot.shards[shard], spans, mine)
    return plan


def _cut_record(snapshot: Snapshot, step: RepairStep) -> Iterator[tuple[ShardId, UnitRow]]:
    """Yield the record of which the begin is left in front of a hole, when it tells what it is."""
    if step.action is not Action.HOLE:
        return
    with closing(snapshot.disk.open(step.path, writable=False)) as file:
        left = file.read_at(step.at, max(0, file.size() - step.at))
    raw = torn_record(left, step.base + step.at, snapshot.files.file_size - step.at)
    shard = None if raw is None else ShardId(raw.topic, raw.queue_id)
    log = None if shard is None else snapshot.shards.get(shard)
    if raw is None or log is None or shard is None:
        return
    count = 1 if log.kind is QueueKind.SIMPLE else offsets_of_batch(raw)
    if count is not None:
        end = raw.queue_offset + count
        yield shard, UnitRow(raw.queue_offset, end, raw.position, raw.size)


def _durable(snapshot: Snapshot) -> int:
    """Return the position below which every byte of the log was on the device."""
    disk, paths = snapshot.disk, snapshot.paths
    point = 0 if snapshot.point is None else snapshot.point.position
    ours = max(read_durable(disk, paths.durable)[1], point)
    return ours or min(read_rocketmq(disk, paths.checkpoint), snapshot.files.stop)


# Files


def _check_files(
    disk: Disk, files: FileSet, durable: int
) -> Iterator[tuple[RepairStep, tuple[int, int]]]:
    """Yield what is to be done to files of the log, and the bytes that are gone with each."""
    size, bases = files.file_size, set(files.bases)
    last = max([files.base_of(max(0, durable - 1)), *bases])
    first = min(bases, default=last)
    for base in range(first, last + size, size):
        end = min(base + size, durable)
        if base in bases:
            yield from _check_file(disk, files, base, durable, is_last=base == last)
        elif base < durable:
            step = RepairStep(files.path_of(base), "this file is missing", Action.CREATE, base)
            yield step, (base, end)
        else:
            reason = "this file is missing; nothing in it was on the device"
            yield RepairStep(files.path_of(base), reason, Action.COMPLETE, base), (0, 0)


def _check_file(
    disk: Disk, files: FileSet, base: int, durable: int, *, is_last: bool
) -> Iterator[tuple[RepairStep, tuple[int, int]]]:
    path, size = files.path_of(base), files.file_size
    with closing(disk.open(path, writable=False)) as file:
        actual_size = file.size()
    if actual_size == size or (is_last and durable - base <= actual_size < size):
        return  # opening completes a last file that a crash left short
    if actual_size > size:
        reason = f"it has {actual_size} bytes, {actual_size - size} more than a file of this log"
        yield RepairStep(path, reason, Action.SHORTEN, base, size), (0, 0)
        return
    end = _end_of_records(disk, files, base, actual_size)
    reason = f"it has {actual_size} bytes of {size}; the last whole record ends at {end}"
    if size - end < RECORD_SIZE_MIN or _is_blank(disk, path, end, size):
        yield RepairStep(path, reason, Action.BLANK, base, end), (0, 0)
    elif durable <= base + end:
        yield RepairStep(path, reason, Action.COMPLETE, base, end), (0, 0)
    else:
        step = RepairStep(path, reason, Action.HOLE, base, end)
        yield step, (base + end, min(base + size, durable))


def _end_of_records(disk: Disk, files: FileSet, base: int, size: int) -> int:
    """Return the byte of a short file at which its last whole record ends."""
    with closing(disk.open(files.path_of(base), writable=False)) as file:
        data = file.read_at(0, size)
    position = end = base
    while position < base + size:
        end, _, damage = core.check_log(data, base, position, base + size, files.strict)
        if damage is None:
            break
        record_position = core.find_record(
            data, base, damage.position + 1, base + size, files.strict
        )
        if record_position < 0:
            break
        position = record_position
    return end - base


def _is_blank(disk: Disk, path: str, position: int, size: int) -> bool:
    """Say whether a blank record fills a file from a byte on: then no record is gone."""
    with closing(disk.open(path, writable=False)) as file:
        head = file.read_at(position, BLANK.size + 8)
    return (
        head == BLANK.pack(size - position, MAGIC_BLANK).ljust(len(head), b"\0") and len(head) >= 8
    )


# Records


def _add_lost(plan: RepairPlan, log: ReadOnlyShard, spans: Spans, cut: list[UnitRow]) -> None:
    """Add the records of one shard that were stored in `spans`; of some the begin is left."""
    try:
        rows = sorted({*_rows_in(log, spans), *cut})
        for first, last in _stretches(rows):
            plan.lost.append(_lost(log, rows, first, last))
    except (CorruptionError, OSError):
        plan.unreadable.append(log.shard.name)
        return
    plan.unaccounted_size -= sum(row.size for row in rows)


def _rows_in(log: ReadOnlyShard, spans: Spans) -> Iterator[UnitRow]:
    """Yield the rows of the records that were stored in `spans`, also of those that a writer that
    was killed had not published."""
    first, stop = log.ends.first, log.ends.stop
    for start, end in spans:
        unit = first_unit_at(log.read_units, log.units.unit_size, (first, stop), start)
        while unit < stop:
            data = log.read_units(unit, _UNITS_PER_STEP)
            for row in unit_rows(log.kind, unit, data):
                if row.position >= end:
                    unit = stop
                    break
                if not row.is_blank:
                    yield row
            unit += len(data) // log.units.unit_size
    for row in rows_from(log.units, log.kind, stop):
        if not is_in(spans, row):
            break
        yield row


def _stretches(rows: list[UnitRow]) -> Iterator[tuple[int, int]]:
    """Yield ranges [first, last) of rows whose offsets follow on each other."""
    first = 0
    for index in range(1, len(rows) + 1):
        if index == len(rows) or rows[index].first_offset != rows[index - 1].end_offset:
            yield first, index
            first = index


def _lost(log: ReadOnlyShard, rows: list[UnitRow], first: int, last: int) -> LostRecords:
    start, end = rows[first].first_offset, rows[last - 1].end_offset
    live = max(start, log.earliest)
    deleted = log.state.deleted_between(live, end) if live < end else []
    gone = sum(min(stop, end) - max(begin, live) for begin, stop in deleted)
    return LostRecords(
        shard=log.shard.name,
        topic=log.shard.topic,
        partition=log.shard.partition,
        first=start,
        end=end,
        records=max(0, end - live) - gone,
        size=sum(row.size for row in rows[first:last]),
        is_control=is_control(log.shard),
    )
