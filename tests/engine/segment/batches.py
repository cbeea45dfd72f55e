"""Bodies of batches as clients make them: RocketMQ's inner form, and Kafka's."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from penstock.record import Record


def inner_batch(records: Sequence[Record]) -> bytes:
    """Return messages as RocketMQ's clients put them into one body."""
    return b"".join(_inner_message(record) for record in records)


def _inner_message(record: Record) -> bytes:
    value = record.value or b""
    properties = b""
    if record.key is not None:
        properties += b"KEYS\x01" + record.key + b"\x02"
    if record.tags:
        properties += b"TAGS\x01" + record.tags[0].encode() + b"\x02"
    head = struct.pack(">iIii", 0, zlib.crc32(value), 0, len(value))
    rest = head + value + struct.pack(">h", len(properties)) + properties
    return struct.pack(">i", 4 + len(rest)) + rest
