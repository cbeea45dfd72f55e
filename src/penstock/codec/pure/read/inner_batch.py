"""The messages of an inner batch: many messages in the body of one record.

RocketMQ's form is a row of small records; Kafka's is its own batch, untouched but for the base
offset and the leader epoch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.codec.envelope import Stamps, stored_from_parts
from penstock.codec.format import INNER_HEAD
from penstock.codec.properties import Properties, parse
from penstock.codec.pure.read.codec import view_of
from penstock.codec.pure.read.kafka_batch import decode_batches
from penstock.errors import BadRequestError
from penstock.record import StoredRecord

if TYPE_CHECKING:
    from typing_extensions import Buffer

_I16: Final = struct.Struct(">h")

Message = tuple[StoredRecord, Properties]


def decode_inner(
    body: Buffer, kafka: bool, base_offset: int, store_timestamp_ms: int, leader_epoch: int
) -> list[StoredRecord]:
    """Return the messages of an inner batch; `BadRequestError` when `body` is not one."""
    first = Stamps(base_offset, store_timestamp_ms, store_timestamp_ms, leader_epoch)
    try:
        messages, _ = read_inner(bytes(view_of(body)), first, kafka=kafka)
    except ValueError as error:
        raise BadRequestError(f"no inner batch: {error}") from error
    return [message for message, _ in messages]


def read_inner(
    body: bytes, first: Stamps, *, kafka: bool, tag_header: str | None = None
) -> tuple[list[Message], int]:
    """Return the messages and their properties, and how many bytes were inflated for them;
    `ValueError` when `body` is not such a batch. `first` belongs to the first message; RocketMQ's
    messages have no timestamp but the one in it."""
    if kafka:
        epoch = first.leader_epoch
        stamps = (first.offset, first.store_timestamp_ms, epoch)
        batch, inflated = decode_batches(body, *stamps, tag_header)
        return [(message, ()) for message in batch], inflated
    return list(_read_messages(body, first)), 0


def _read_messages(body: bytes, first: Stamps) -> Iterator[Message]:
    start = 0
    stamps = first
    while start < len(body):
        if len(body) - start < INNER_HEAD.size + _I16.size:
            raise ValueError(f"message head cut short at {len(body) - start} bytes")
        size, _, _, _, body_size = INNER_HEAD.unpack_from(body, start)
        end = start + size
        content = start + INNER_HEAD.size
        properties = content + body_size + _I16.size
        if body_size < 0 or not properties <= end <= len(body):
            raise ValueError(f"message of {size} bytes with a body of {body_size} does not fit")
        if _I16.unpack_from(body, properties - _I16.size)[0] != end - properties:
            raise ValueError(f"properties do not end with the message of {size} bytes")
        entries = parse(body[properties:end])
        message = stored_from_parts(body[content : content + body_size], entries, stamps)
        yield message, entries
        stamps = stamps._replace(offset=stamps.offset + 1)
        start = end
