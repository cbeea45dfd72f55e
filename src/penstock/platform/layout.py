"""One declaration per on-disk structure.

The packer, the positions of the fields, the size check and the table in `docs/format.md` are all
computed from it, so that they cannot disagree. Integers are big-endian, as RocketMQ's are.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

_CODES: Final = {
    "u8": "B",
    "i16": "h",
    "u16": "H",
    "i32": "i",
    "u32": "I",
    "i64": "q",
    "u64": "Q",
    "8 bytes": "8s",
}


class Field(NamedTuple):
    name: str
    kind: str
    meaning: str


class Layout:
    """A fixed-size structure of consecutive fields."""

    def __init__(self, name: str, *fields: Field, size: int) -> None:
        self.name: Final = name
        self.fields: Final = fields
        self._struct: Final = struct.Struct(">" + "".join(_CODES[f.kind] for f in fields))
        assert self._struct.size == size, f"{name}: declared {size}, fields {self._struct.size}"
        self.size: Final = size
        self.pack: Final = self._struct.pack
        self.pack_into: Final = self._struct.pack_into
        self.unpack: Final = self._struct.unpack
        self.unpack_from: Final = self._struct.unpack_from
        self.iter_unpack: Final = self._struct.iter_unpack
        self._positions: Final = self._compute_positions()

    def position_of(self, field: str) -> int:
        """Return the byte at which `field` starts."""
        return self._positions[field]

    def as_markdown(self) -> str:
        """Return the structure as the table that `docs/format.md` must hold."""
        rows = ["| at | field | type | meaning |\n|---|---|---|---|"]
        for field in self.fields:
            position = self._positions[field.name]
            rows.append(f"| {position} | {field.name} | {field.kind} | {field.meaning} |")
        return "\n".join(rows)

    def _compute_positions(self) -> dict[str, int]:
        positions: dict[str, int] = {}
        position = 0
        for field in self.fields:
            positions[field.name] = position
            position += struct.calcsize(">" + _CODES[field.kind])
        return positions
