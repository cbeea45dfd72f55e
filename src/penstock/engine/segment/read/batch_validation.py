"""What a caller hands over as a batch is checked before it is written.

    Kafka's form       checksum, messages and offsets must be what they say
    RocketMQ's form    a body that begins with a message of this form must be nothing but messages
    any other          opaque: kept as it is, and returned by raw reads only

A caller that has checked its batches already (the Kafka server) writes them without this.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from penstock.codec.format import BATCH_COUNT_MAX, INNER_HEAD, KAFKA_BATCH
from penstock.codec.select import core
from penstock.engine.segment.queue.shard import ShardLog
from penstock.errors import BadRequestError, NotSupportedError
from penstock.record import QueueKind

_KAFKA_SIZE_AT: Final = KAFKA_BATCH.position_of("size")
_KAFKA_SIZE_END: Final = KAFKA_BATCH.position_of("leader_epoch")
_KAFKA_DELTA_AT: Final = KAFKA_BATCH.position_of("last_offset_delta")
_PROPERTIES_SIZE: Final = 2


def check_batch(log: ShardLog, body: bytes | memoryview, count: int, *, kafka: bool) -> None:
    """Refuse a batch that could not be read as the `count` messages that it is said to be."""
    if log.kind is not QueueKind.BATCH:
        raise NotSupportedError(f"shard {log.shard.name!r} has simple queues and takes no batches")
    if not 1 <= count <= BATCH_COUNT_MAX:
        raise BadRequestError(f"a batch holds 1 to {BATCH_COUNT_MAX} messages, not {count}")
    if not isinstance(body, bytes | bytearray | memoryview):
        raise BadRequestError(f"a batch is bytes, not {type(body).__name__}")
    data = memoryview(body if isinstance(body, bytes) else bytes(body))
    held = offsets_in_body(data, kafka=kafka)
    if held not in (None, count):
        raise BadRequestError(f"the batch was said to hold {count} messages, but holds {held}")


def offsets_in_body(body: memoryview, *, kafka: bool) -> int | None:
    """Return how many offsets the messages of a batch take; None for an opaque body. Raise
    `BadRequestError` for a body that is not what it is said to be."""
    return _kafka_offsets(body) if kafka else _rocketmq_messages(body)


def _rocketmq_messages(body: memoryview) -> int | None:
    """Return how many messages of RocketMQ's form there are; None for an opaque body."""
    if body and not _begins_with_message(body):
        return None
    return len(core.decode_inner(body, False, 0, 0, 0))


def _begins_with_message(body: memoryview) -> bool:
    if len(body) < INNER_HEAD.size + _PROPERTIES_SIZE:
        return False
    size, _, _, _, body_size = INNER_HEAD.unpack_from(body)
    properties = INNER_HEAD.size + body_size + _PROPERTIES_SIZE
    if body_size < 0 or not properties <= size <= len(body):
        return False
    said = int.from_bytes(body[properties - _PROPERTIES_SIZE : properties], "big", signed=True)
    return bool(said == size - properties)


def _kafka_offsets(body: memoryview) -> int:
    """Return how many offsets the batches take: more than there are messages when Kafka has
    compacted them, or for a marker of a transaction."""
    if len(body) < KAFKA_BATCH.size:
        raise BadRequestError(f"no Kafka batch: {len(body)} bytes, the head alone has more")
    with suppress(
        NotSupportedError
    ):  # of the Python backend, which lacks a codec that the native one has
        core.decode_inner(body, True, 0, 0, 0)
    offsets = position = 0
    while position < len(body):
        offsets += 1 + int.from_bytes(
            body[position + _KAFKA_DELTA_AT : position + _KAFKA_DELTA_AT + 4], "big"
        )
        position += _KAFKA_SIZE_END
        position += int.from_bytes(
            body[position - _KAFKA_SIZE_END + _KAFKA_SIZE_AT : position], "big"
        )
    return offsets
