"""The data types of MQTT: integers, strings, binary data, read from and written to bytes."""

from __future__ import annotations

from typing import Final

from penstock.brokers.mqtt.wire.errors import MalformedPacketError
from penstock.brokers.mqtt.wire.validation import UNWANTED

VARINT_MAX: Final = 268_435_455
_FIELD_MAX: Final = 65_535


class FieldReader:
    """Reads the fields of one packet in order; a field that ends after `end` is malformed."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data = data
        self.at = at
        self.end = len(data) if end is None else end

    @property
    def left(self) -> int:
        """How many bytes are not yet read."""
        return self.end - self.at

    def bytes_of(self, size: int) -> bytes:
        """Read `size` bytes."""
        after = self.at + size
        if after > self.end:
            raise MalformedPacketError(
                f"a field of {size} bytes begins {self.left} bytes before the end of its packet"
            )
        found = self.data[self.at : after]
        self.at = after
        return found

    def uint8(self) -> int:
        """Read one byte."""
        return self.bytes_of(1)[0]

    def uint16(self) -> int:
        """Read a two byte integer."""
        return int.from_bytes(self.bytes_of(2))

    def uint32(self) -> int:
        """Read a four byte integer."""
        return int.from_bytes(self.bytes_of(4))

    def varint(self) -> int:
        """Read a variable byte integer in its shortest form, of at most four bytes."""
        value = 0
        for index in range(4):
            byte = self.uint8()
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if byte == 0 and index > 0:
                    raise MalformedPacketError(
                        "a variable byte integer is not in its shortest form"
                    )
                return value
        raise MalformedPacketError("a variable byte integer has more than four bytes")

    def binary(self) -> bytes:
        """Read binary data with its length before it."""
        return self.bytes_of(self.uint16())

    def text(self) -> str:
        """Read a string, in which any character but U+0000 may occur."""
        try:
            text = self.binary().decode()
        except UnicodeDecodeError as error:
            raise MalformedPacketError(f"a string is not UTF-8: {error.reason}") from None
        if "\0" in text:
            raise MalformedPacketError("a string contains U+0000")
        return text

    def name(self) -> str:
        """Read a string without control characters: a topic, a filter, the id of a client."""
        text = self.text()
        if UNWANTED.search(text):
            raise MalformedPacketError(f"{text[:100]!r} contains a control character")
        return text


def encode_varint(value: int) -> bytes:
    """Encode a variable byte integer."""
    if value < 0x80:
        return bytes((value,))
    if value > VARINT_MAX:
        raise ValueError(f"{value} is more than a variable byte integer holds, {VARINT_MAX}")
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_binary(data: bytes) -> bytes:
    """Encode binary data with its length before it."""
    if len(data) > _FIELD_MAX:
        raise ValueError(f"a field has {len(data)} bytes, at most {_FIELD_MAX} can be encoded")
    return len(data).to_bytes(2) + data


def encode_text(text: str) -> bytes:
    """Encode a string with its length before it."""
    return encode_binary(text.encode())
