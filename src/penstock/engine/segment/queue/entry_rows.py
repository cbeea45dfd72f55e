"""What the units of a queue say, alike for both kinds of queue."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.codec.format import BATCH_UNIT, PRE_BLANK, QUEUE_UNIT
from penstock.record import QueueKind

_BLANK_SIZE: Final = int(QUEUE_UNIT.unpack(PRE_BLANK)[1])
_BLANK: Final = (0, 0)


class UnitRow(NamedTuple):
    """The offsets [first_offset, end_offset) are stored at `position` of the log, in `size`
    bytes."""

    first_offset: int
    end_offset: int
    position: int
    size: int
    """0 when there is no record: the number that a blank unit has in its file is not a size."""

    @property
    def is_blank(self) -> bool:
        """No record: damage took it, or the queue begins after it."""
        return self.size == 0


def unit_rows(kind: QueueKind, unit: int, data: bytes) -> list[UnitRow]:
    """Return what units say, the first of which has number `unit`."""
    if kind is QueueKind.SIMPLE:
        return [
            UnitRow(offset, offset + 1, *(_BLANK if size == _BLANK_SIZE else (position, size)))
            for offset, (position, size, _) in enumerate(QUEUE_UNIT.iter_unpack(data), unit)
        ]
    return [
        UnitRow(base, base + n, position, size)
        for position, size, _, _, base, n, _, _ in BATCH_UNIT.iter_unpack(data)
    ]
