"""What a look at units of a queue tells: about how large a shard is, which records are lost, where
its files end."""

from __future__ import annotations

import zlib
from typing import Final

from penstock.codec.format import BATCH_UNIT
from penstock.engine.segment.queue.queue_files import UnitFiles
from penstock.engine.segment.queue.shard import ShardLog
from penstock.engine.segment.queue.shard_state import ShardState

_SIZE_SAMPLES: Final = 32
_ROWS_PER_STEP: Final = 4096
_BASE_OFFSET: Final = 4
"""The field of a batch unit."""


def estimate_size(shard: ShardLog) -> int:
    """Return about how many bytes the live records take, from a sample of them."""
    first, stop = shard.unit_of(shard.earliest), shard.next_unit
    if first >= stop:
        return 0
    step = max(1, (stop - first) // _SIZE_SAMPLES)
    # A shard that is cut or deleted meanwhile has fewer units than it had.
    sizes = [row.size for unit in range(first, stop, step) for row in shard.rows(unit, 1)]
    return sum(sizes) * (stop - first) // len(sizes) if sizes else 0


def find_lost(shard: ShardLog, first_offset: int = 0) -> list[tuple[int, int]]:
    """Return the ranges of offsets from `first_offset` on that no unit has a record for."""
    expected = max(first_offset, shard.earliest)
    unit, stop = shard.unit_of(expected), shard.next_unit
    lost: list[tuple[int, int]] = []
    while unit < stop:
        rows = shard.rows(unit, min(_ROWS_PER_STEP, stop - unit))
        for row in rows:
            if row.is_blank:
                continue
            if row.first_offset > expected:
                lost.append((expected, row.first_offset))
            expected = max(expected, row.end_offset)
        unit += len(rows)
    if expected < shard.next_offset:
        lost.append((expected, shard.next_offset))
    return lost


def batch_unit_behind(units: UnitFiles, state: ShardState) -> int:
    """Return the number of the first unit after the end that a saved state says. Its files may
    hold more: records came between the look at the ends and the move of their units. A replay
    finds those records, and must not give each a second unit."""
    stop = state.queue_first + state.queue_units
    try:
        data = units.read(state.queue_first, state.queue_units)
    except FileNotFoundError:
        return stop
    if zlib.crc32(data) != state.queue_crc:
        return stop  # the queue is rebuilt
    first = state.queue_first
    while True:
        for unit in range(first + len(data) // BATCH_UNIT.size, first, -1):
            fields = BATCH_UNIT.unpack_from(data, (unit - 1 - first) * BATCH_UNIT.size)
            if fields[_BASE_OFFSET] < state.latest_offset:
                return unit
        first -= units.file_units
        try:
            data = units.read(first, units.file_units) if first >= 0 else b""
        except FileNotFoundError:
            data = b""
        if not data:
            return first + units.file_units
