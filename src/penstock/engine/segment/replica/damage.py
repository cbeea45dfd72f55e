"""Where groups and damaged stretches of a shard begin and end."""

from __future__ import annotations

from typing import Final

from penstock.codec.format import GROUP, Damage, RawRecord
from penstock.codec.select import core
from penstock.engine.segment.queue.entry_rows import UnitRow
from penstock.engine.segment.queue.shard import ShardLog
from penstock.errors import CorruptionError

_ROWS_PER_STEP: Final = 256
_MARK: Final = GROUP.encode()


def start_of_group(shard: ShardLog, offset: int) -> int:
    """Return the first offset of the group that the record at `offset`, which may be damaged, goes
    on with; `offset` itself when it does not. Records of a group follow each other in the log."""
    first, unit = shard.unit_of(shard.earliest), shard.unit_of(offset)
    end: int | None = None
    """Where the record before `offset` ends."""
    following = 0
    try:
        while unit > first:
            start = max(first, unit - _ROWS_PER_STEP)
            for row in reversed(shard.rows_between(start, unit)):
                row_end = row.position + row.size
                if row.is_blank or (end is not None and row_end != following):
                    return offset
                end = row_end if end is None else end
                following = row.position
                group = _group_size(shard, row)
                if group:
                    return row.first_offset if row.position + group > end else offset
            unit = start
    except (CorruptionError, FileNotFoundError):
        return offset
    return offset


def end_of_damage(shard: ShardLog, offset: int) -> int:
    """Return the offset of the first whole record after damage at `offset`. A group that begins
    there and is not whole goes with the damage."""
    state, end = shard.state, shard.next_offset
    unit, stop = shard.unit_of(offset), shard.next_unit
    group_end = 0
    after = offset + 1
    while unit < stop:
        rows = shard.rows(unit, min(_ROWS_PER_STEP, stop - unit))
        for row in rows:
            is_whole = not row.is_blank and row.position >= group_end and _is_whole(shard, row)
            if is_whole and row.first_offset > offset:
                return max(after, min(row.first_offset, end))
            if is_whole:
                group_end = row.position + _group_size(shard, row)
            after = max(after, row.end_offset)
        if not rows:
            break
        unit += len(rows)
    lost = state.lost_between(offset, end)
    return max([after, *(last for first, last in lost if first <= offset)])


def _decode(shard: ShardLog, row: UnitRow) -> RawRecord | Damage:
    files = shard.log.files
    if not files.holds(row.position):
        return Damage(row.position, "this file of the log is missing")
    base = files.base_of(row.position)
    return core.decode_raw(files.buffer(base), base, row.position, True, files.strict)


def _is_whole(shard: ShardLog, row: UnitRow) -> bool:
    raw = _decode(shard, row)
    return isinstance(raw, RawRecord) and raw.queue_offset == row.first_offset


def _group_size(shard: ShardLog, row: UnitRow) -> int:
    """Return the bytes of the group that a record begins; 0 when it begins none."""
    raw = _decode(shard, row)
    if isinstance(raw, Damage) or _MARK not in raw.raw_properties:
        return 0
    digits = dict(raw.properties).get(GROUP, "")
    return int(digits) if digits.isdigit() else 0
