"""Queue units in the footer of a chunk: which of them a query reads."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from penstock.codec.format import BATCH_UNIT, QUEUE_UNIT
from penstock.record import QueueKind
from penstock.tiered.chunk.chunk import ChunkEntry, Footer
from penstock.tiered.read.tier_query import TierQuery


class UnitRange(NamedTuple):
    """Units of a chunk from one offset on, and where their records are."""

    units: bytes
    offset: int
    end_offset: int
    start: int
    end: int
    is_last: bool


def is_blank(position: int, size: int) -> bool:
    """Say whether a unit with these numbers stands for an offset without a record."""
    return position == 0 and size == 0x7FFF_FFFF


def first_unit(footer: Footer, entry: ChunkEntry, offset: int) -> int:
    """Return the number of the first unit that ends after `offset`."""
    if footer.kind is QueueKind.SIMPLE:
        return max(0, offset - entry.units_offset)
    # By the ends, not the beginnings: where batches were removed, the one before does not count.
    count = len(footer.units) // BATCH_UNIT.size
    return bisect_right(range(count), offset, key=lambda n: offsets_of(footer, entry, n)[1])


def offsets_of(footer: Footer, entry: ChunkEntry, unit: int) -> tuple[int, int]:
    """Return the offsets [first, end) of a unit."""
    if footer.kind is QueueKind.SIMPLE:
        first = entry.units_offset + unit
        return first, first + 1
    _, _, _, _, base, count, _, _ = BATCH_UNIT.unpack_from(footer.units, unit * BATCH_UNIT.size)
    return base, base + count


def select_units(
    footer: Footer, entry: ChunkEntry, query: TierQuery, *, first: bool, count_max: int
) -> UnitRange | None:
    """Return the units from the query's offset on that fit its limits; None when there are none
    left in the chunk, no units when the next does not fit."""
    unit = begin = first_unit(footer, entry, query.offset)
    selective = query.tag is not None or query.key is not None
    count_max = count_max if selective else min(count_max, query.max_records)
    start = end = size_sum = 0
    while unit < entry.units and unit - begin < count_max:
        if offsets_of(footer, entry, unit)[0] >= query.until:
            break
        position, size = QUEUE_UNIT.unpack_from(footer.units, unit * footer.unit_size)[:2]
        unit += 1
        if is_blank(position, size):
            continue
        size_sum += size
        if end and size_sum > query.max_size and not selective:
            unit -= 1
            break
        if not first and not end and size > query.max_size and not selective:
            return UnitRange(b"", query.offset, query.offset, 0, 0, is_last=False)
        start = start or position + 1
        end = position + size
        if selective and end - start > 4 * query.max_size:
            break
    if unit == begin:
        return None
    offset = offsets_of(footer, entry, begin)[0]
    end_offset = offsets_of(footer, entry, unit - 1)[1]
    units = footer.units[begin * footer.unit_size : unit * footer.unit_size]
    is_last = unit == entry.units
    return UnitRange(units, max(offset, query.offset), end_offset, max(start - 1, 0), end, is_last)
