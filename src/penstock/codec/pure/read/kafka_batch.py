"""Kafka record batches, version 2, as they come from clients and lie in inner batches.

Every size in them is a claim of the sender: nothing is read past the end of a part, and what a
compressed batch may grow to is bounded. `ValueError` says what is wrong. This backend knows all
codecs but snappy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock.codec.format import KAFKA_BATCH
from penstock.codec.pure.read.inflating import inflate_gzip, inflate_lz4, inflate_zstd
from penstock.errors import NotSupportedError
from penstock.record import Header, Offset, StoredRecord

_MAGIC: Final = 2
_CODEC_MASK: Final = 7
_INFLATERS: Final = {1: inflate_gzip, 3: inflate_lz4, 4: inflate_zstd}
_SNAPPY: Final = 2
_LOG_APPEND_TIME: Final = 8
_CONTROL: Final = 32
_SIZE_END: Final = KAFKA_BATCH.position_of("leader_epoch")
_CHECKED_FROM: Final = KAFKA_BATCH.position_of("attributes")
_VARINT_SIZE_MAX: Final = 10
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1


class _Head(NamedTuple):
    base_offset: int
    size: int
    leader_epoch: int
    magic: int
    checksum: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    message_count: int


def decode_batches(
    body: bytes,
    base_offset: int,
    store_timestamp_ms: int,
    leader_epoch: int,
    tag_header: str | None = None,
) -> tuple[list[StoredRecord], int]:
    """Return the messages of all batches in `body`, and how many bytes were inflated for them; the
    first has `base_offset`, whatever the bytes say. Control batches hold no messages, but take
    their offsets."""
    messages: list[StoredRecord] = []
    inflated = 0
    index = 0
    while index < len(body):
        head, end = _read_head(body, index)
        if not head.attributes & _CONTROL:
            codec = head.attributes & _CODEC_MASK
            content = _inflate(body[index + KAFKA_BATCH.size : end], codec)
            inflated += len(content) if codec else 0
            stamps = (base_offset, store_timestamp_ms, leader_epoch)
            header = _tag_header if tag_header is None else tag_header
            messages += _read_messages(content, head, stamps, header)
        base_offset += head.last_offset_delta + 1
        index = end
    return messages, inflated


def _read_head(body: bytes, index: int) -> tuple[_Head, int]:
    if len(body) - index < KAFKA_BATCH.size:
        raise ValueError(f"Kafka batch cut short at {len(body) - index} bytes")
    head = _Head(*KAFKA_BATCH.unpack_from(body, index))
    end = index + _SIZE_END + head.size
    if head.magic != _MAGIC:
        raise ValueError(f"Kafka batch of version {head.magic}, expected {_MAGIC}")
    if not index + KAFKA_BATCH.size <= end <= len(body):
        raise ValueError(f"Kafka batch of {head.size} bytes does not fit in {len(body)}")
    if head.last_offset_delta < 0 or head.message_count < 0:
        raise ValueError("Kafka batch counts its messages below zero")
    if crc32c(body[index + _CHECKED_FROM : end]) != head.checksum:
        raise ValueError("Kafka batch checksum does not match")
    return head, end


def _inflate(content: bytes, codec: int) -> bytes:
    if codec == 0:
        return content
    if codec == _SNAPPY:
        raise NotSupportedError("a Kafka batch compressed with snappy needs the native extension")
    inflate = _INFLATERS.get(codec)
    if inflate is None:
        raise ValueError(f"Kafka batch has unknown compression {codec}")
    try:
        return inflate(content)
    except ValueError as error:
        raise ValueError(f"Kafka batch does not decompress: {error}") from error


def _read_messages(
    content: bytes, head: _Head, stamps: tuple[int, int, int], tag_header: str
) -> Iterator[StoredRecord]:
    base_offset, store_timestamp_ms, leader_epoch = stamps
    cursor = _Cursor(content, 0, len(content))
    for _ in range(head.message_count):
        message = cursor.read_part(cursor.read_varint())
        message.read(1)  # attributes, unused so far
        timestamp_ms = head.base_timestamp_ms + message.read_varint()
        delta = message.read_varint()
        if not 0 <= delta <= head.last_offset_delta:
            raise ValueError(f"Kafka message {delta} of a batch of {head.last_offset_delta + 1}")
        if not _INT64_MIN <= timestamp_ms <= _INT64_MAX or base_offset + delta > _INT64_MAX:
            raise ValueError("Kafka message with a time or an offset beyond 64 bits")
        key = message.read_optional()
        value = message.read_optional()
        headers = tuple(message.read_headers())
        message.expect_end()
        if head.attributes & _LOG_APPEND_TIME:
            timestamp_ms = head.max_timestamp_ms
        yield StoredRecord(
            Offset(base_offset + delta),
            value,
            key,
            _tags(headers, tag_header),
            headers,
            timestamp_ms,
            None,
            store_timestamp_ms,
            leader_epoch,
        )
    cursor.expect_end()


_tag_header = "tag"


def set_tag_header(name: str) -> None:
    global _tag_header  # noqa: PLW0603 - as in the extension: one for the process
    _tag_header = name


def _tags(headers: tuple[Header, ...], tag_header: str) -> tuple[str, ...]:
    return tuple(
        value.decode("utf-8", "surrogateescape")
        for name, value in headers
        if tag_header and name == tag_header and value
    )


class _Cursor:
    """Reads [at, end) of a buffer, never past its end."""

    def __init__(self, data: bytes, index: int, end: int) -> None:
        self._data = data
        self._at = index
        self._end = end

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self._end - self._at:
            raise ValueError(f"Kafka message wants {size} bytes, {self._end - self._at} are left")
        start = self._at
        self._at += size
        return self._data[start : self._at]

    def read_part(self, size: int) -> _Cursor:
        start = self._at
        self.read(size)
        return _Cursor(self._data, start, start + size)

    def read_varint(self) -> int:
        """Return a zigzag number of 7 bits a byte, the least significant first."""
        value = 0
        for n in range(_VARINT_SIZE_MAX):
            byte = self.read(1)[0]
            value |= (byte & 0x7F) << 7 * n
            if byte < 0x80:
                value &= (1 << 64) - 1
                return (value >> 1) ^ -(value & 1)
        raise ValueError("Kafka message holds a number of more than ten bytes")

    def read_optional(self) -> bytes | None:
        size = self.read_varint()
        return None if size == -1 else self.read(size)

    def read_headers(self) -> Iterator[Header]:
        count = self.read_varint()
        if not 0 <= count <= self._end - self._at:
            raise ValueError(f"Kafka message cannot hold {count} headers")
        for _ in range(count):
            name = self.read(self.read_varint()).decode("utf-8", "surrogateescape")
            yield name, self.read_optional()

    def expect_end(self) -> None:
        if self._at != self._end:
            raise ValueError(f"{self._end - self._at} bytes follow a Kafka message")


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of `data`."""
    value = 0xFFFF_FFFF
    for byte in data:
        value = _CRC32C_TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFF_FFFF


def _crc32c_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F6_3B78 if byte & 1 else 0)
    return byte


_CRC32C_TABLE: Final = tuple(_crc32c_of_byte(byte) for byte in range(256))
