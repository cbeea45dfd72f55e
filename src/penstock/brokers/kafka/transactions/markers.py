"""The marker that ends a transaction in a shard: a control batch of one record, as Kafka writes it.

key     version 2 (0) · type 2 (0: abort, 1: commit)
value   version 2 (0) · coordinator epoch 4
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from penstock.brokers.kafka.wire.batch_header import (
    CHECKED_FROM,
    CONTROL,
    HEAD,
    MAGIC,
    TRANSACTIONAL,
)
from penstock.codec.select import native_only

_KEY: Final = Struct(">hh")
_VALUE: Final = Struct(">hi")
_PLACE: Final = Struct(">qii")
_NO_SEQUENCE: Final = -1
_NO_PRODUCER: Final = -1
_NO_EPOCH: Final = -1
_CHECKSUM_AT: Final = 17


def build_filler(offset: int, timestamp_ms: int) -> bytes:
    """Return a batch that consumers skip: it takes the place of deleted records before it. Clients
    read it as the end of an unknown transaction."""
    batch = build_marker(_NO_PRODUCER, _NO_PRODUCER, is_commit=True, timestamp_ms=timestamp_ms)
    return _PLACE.pack(offset, len(batch) - 12, _NO_EPOCH) + batch[_PLACE.size :]


def build_marker(
    producer_id: int, producer_epoch: int, *, is_commit: bool, timestamp_ms: int
) -> bytes:
    """Return the bytes of a marker; base offset and leader epoch are for the store to set."""
    key = _KEY.pack(0, 1 if is_commit else 0)
    value = _VALUE.pack(0, 0)
    # Attributes, time and offset deltas are zero; sizes are zigzag numbers of one byte.
    record = bytes((0, 0, 0, len(key) * 2)) + key + bytes((len(value) * 2,)) + value + b"\0"
    body = bytes((len(record) * 2,)) + record
    head = HEAD.pack(
        0,
        HEAD.size - 12 + len(body),
        0,
        MAGIC,
        0,
        TRANSACTIONAL | CONTROL,
        0,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        producer_epoch,
        _NO_SEQUENCE,
        1,
    )
    batch = bytearray(head + body)
    checksum = native_only().crc32c(bytes(batch[CHECKED_FROM:]))
    batch[_CHECKSUM_AT:CHECKED_FROM] = checksum.to_bytes(4, "big")
    return bytes(batch)
