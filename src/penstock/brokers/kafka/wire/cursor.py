"""Reads a request: never past its end, with a bound on the objects that it allocates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Final
from uuid import UUID

from penstock.errors import BadRequestError

ITEMS_MAX: Final = 250_000
"""Elements of all arrays in one request together; each costs an object."""

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_FLOAT64: Final = Struct(">d")
_VARINT_BYTES_MAX: Final = 5


class MalformedRequestError(BadRequestError):
    """The bytes do not form a request of that API and version; the connection is closed."""


class Cursor:
    """A place in the bytes of one request."""

    __slots__ = ("_data", "_items_left", "end", "position")

    def __init__(self, data: bytes | bytearray | memoryview, position: int = 0) -> None:
        self._data = memoryview(data)
        self.position = position
        self.end = len(self._data)
        self._items_left = ITEMS_MAX

    def read_bytes(self, size: int) -> memoryview:
        position = self.position
        if size < 0 or size > self.end - position:
            left = self.end - position
            raise MalformedRequestError(f"{size} bytes requested at {position}, {left} left")
        self.position = position + size
        return self._data[position : position + size]

    @contextmanager
    def part(self, size: int) -> Iterator[None]:
        """Limit reads to the next `size` bytes, and continue after them."""
        whole = self.end
        self.read_bytes(size)
        self.position, self.end = self.position - size, self.position
        yield
        self.position, self.end = self.end, whole

    def int8(self) -> int:
        (byte,) = self.read_bytes(1)
        return byte - 256 if byte > 127 else byte

    def flag(self) -> bool:
        return self.read_bytes(1)[0] != 0

    def int16(self) -> int:
        return int(_INT16.unpack(self.read_bytes(2))[0])

    def uint16(self) -> int:
        return self.int16() & 0xFFFF

    def int32(self) -> int:
        return int(_INT32.unpack(self.read_bytes(4))[0])

    def int64(self) -> int:
        return int(_INT64.unpack(self.read_bytes(8))[0])

    def float64(self) -> float:
        return float(_FLOAT64.unpack(self.read_bytes(8))[0])

    def uuid(self) -> UUID:
        return UUID(bytes=bytes(self.read_bytes(16)))

    def varint(self) -> int:
        """An unsigned number of 32 bits, 7 bits a byte, the least significant first."""
        value = 0
        for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
            (byte,) = self.read_bytes(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> 32:
                    break
                return value
        raise MalformedRequestError(f"the number before {self.position} is too long")

    def text_size(self, *, flexible: bool) -> int:
        """The size of a text; -1: null."""
        return self.varint() - 1 if flexible else self.int16()

    def blob_size(self, *, flexible: bool) -> int:
        return self.varint() - 1 if flexible else self.int32()

    def item_count(self, *, flexible: bool) -> int:
        """The length of an array, at most what the rest of the request could hold; -1: null."""
        count = self.varint() - 1 if flexible else self.int32()
        if count < -1 or count > self.end - self.position:
            raise MalformedRequestError(f"an array of {count} elements before {self.position}")
        self._items_left -= count
        if self._items_left < 0:
            raise MalformedRequestError(f"the request holds more than {ITEMS_MAX} elements")
        return count

    def text(self, *, flexible: bool, nullable: bool) -> str | None:
        size = self.text_size(flexible=flexible)
        if size == -1 and nullable:
            return None
        try:
            return str(self.read_bytes(size), "utf-8")
        except UnicodeDecodeError:
            raise MalformedRequestError(f"the text before {self.position} is not UTF-8") from None

    def blob(self, *, flexible: bool, nullable: bool) -> bytes | None:
        size = self.blob_size(flexible=flexible)
        if size == -1 and nullable:
            return None
        return bytes(self.read_bytes(size))
