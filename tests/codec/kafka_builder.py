"""Kafka record batches made by hand, so that no reader is tested with its own writer."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence

from penstock.record import Record


def varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while True:
        byte, zigzag = zigzag & 0x7F, zigzag >> 7
        if not zigzag:
            return bytes((*out, byte))
        out.append(byte | 0x80)


def castagnoli(data: bytes) -> int:
    """CRC-32C, bit by bit."""
    value = 0xFFFF_FFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F6_3B78 if value & 1 else 0)
    return value ^ 0xFFFF_FFFF


def sized(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


def message(record: Record, delta: int, base_ms: int) -> bytes:
    headers = b"".join(
        sized(name.encode("utf-8", "surrogateescape")) + sized(value)
        for name, value in record.headers
    )
    body = (
        b"\0"
        + varint((record.timestamp_ms or 0) - base_ms)
        + varint(delta)
        + sized(record.key)
        + sized(record.value)
        + varint(len(record.headers))
        + headers
    )
    return varint(len(body)) + body


def kafka_batch(
    records: Sequence[Record],
    *,
    codec: int = 0,
    attributes: int = 0,
    deltas: Sequence[int] | None = None,
    last_delta: int | None = None,
    max_ms: int = 0,
) -> bytes:
    """Return a batch as a producer sends it: base offset 0, no leader epoch."""
    base_ms = records[0].timestamp_ms or 0 if records else 0
    at = list(range(len(records))) if deltas is None else list(deltas)
    content = b"".join(
        message(record, delta, base_ms) for record, delta in zip(records, at, strict=True)
    )
    if codec == 1:
        content = gzip.compress(content)
    last = (at[-1] if at else 0) if last_delta is None else last_delta
    checked = (
        struct.pack(
            ">hiqqqhii", attributes | codec, last, base_ms, max_ms, -1, -1, -1, len(records)
        )
        + content
    )
    crc = struct.pack(">I", castagnoli(checked))
    return struct.pack(">qiiB", 0, 9 + len(checked), -1, 2) + crc + checked
