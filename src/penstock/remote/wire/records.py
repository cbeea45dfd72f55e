"""Records and places as messages of `storage.proto`, and back. Errors: see `wire_errors`.

Text may hold any characters; it travels as bytes with surrogate escapes, so nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.adapter import Locations, Message
from penstock.api import TopicInfo
from penstock.codec.validation import check_record
from penstock.errors import BadRequestError
from penstock.record import Location, Offset, Producer, Record, StoredRecord
from penstock.remote import storage_pb2 as pb

if TYPE_CHECKING:
    import pyarrow as pa

MESSAGE_SIZE_MAX: Final = 64 << 20
"""Of a request, and of a reply or one page of it."""
PAGE_SIZE: Final = MESSAGE_SIZE_MAX // 4
READ_SIZE_MAX: Final = MESSAGE_SIZE_MAX // 2
"""Of the values that one read asks for; keys and headers need space in the reply too."""

TopicPartition = tuple[str, int]
_ANY: Final[Mapping[str, str]] = {}
_NONE: Final = ()


def to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def to_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def record_to_wire(record: Record) -> pb.Record:
    # Fields that are not named take no time; most records have a value and few others.
    wire = pb.Record(value=record.value)
    if record.key is not None:
        wire.key = record.key
    if record.timestamp_ms is not None:
        wire.timestamp_ms = record.timestamp_ms
    if record.expires_at_ms is not None:
        wire.expires_at_ms = record.expires_at_ms
    if record.tags:
        wire.tags.extend(to_bytes(tag) for tag in record.tags)
    if record.headers:
        wire.headers.extend(
            pb.Header(name=to_bytes(name), value=value) for name, value in record.headers
        )
    return wire


def record_from_wire(wire: pb.Record) -> Record:
    has, tags = wire.HasField, wire.tags
    return Record(
        wire.value if has("value") else None,
        wire.key if has("key") else None,
        tuple(to_text(tag) for tag in tags) if tags else (),
        _headers(wire),
        wire.timestamp_ms if has("timestamp_ms") else None,
        wire.expires_at_ms if has("expires_at_ms") else None,
    )


def records_to_wire(records: Sequence[Record]) -> list[pb.Record]:
    """Return checked records."""
    try:
        for record in records:
            # A message can hold tags and headers that a store rejects; other values it cannot.
            if record.tags is not _NONE or record.headers is not _NONE:
                check_record(record)
        return [record_to_wire(record) for record in records]
    except (AttributeError, TypeError, ValueError):
        for record in records:
            check_record(record)  # names the value that is wrong
        raise


def records_from_wire(records: Iterable[pb.Record]) -> list[Record]:
    return [record_from_wire(record) for record in records]


def _headers(wire: pb.Record) -> tuple[tuple[str, bytes | None], ...]:
    if not wire.headers:
        return ()
    return tuple(
        (to_text(header.name), header.value if header.HasField("value") else None)
        for header in wire.headers
    )


def stored_to_wire(record: StoredRecord, partition: int = 0) -> pb.Record:
    return pb.Record(
        value=record.value,
        key=record.key,
        tags=[to_bytes(tag) for tag in record.tags],
        headers=[pb.Header(name=to_bytes(name), value=value) for name, value in record.headers],
        timestamp_ms=record.timestamp_ms,
        expires_at_ms=record.expires_at_ms,
        offset=record.offset,
        partition=partition,
        store_timestamp_ms=record.store_timestamp_ms,
        leader_epoch=record.leader_epoch,
    )


def stored_from_wire(wire: pb.Record) -> StoredRecord:
    return StoredRecord(
        Offset(wire.offset),
        wire.value if wire.HasField("value") else None,
        wire.key if wire.HasField("key") else None,
        tuple(to_text(tag) for tag in wire.tags) if wire.tags else (),
        _headers(wire),
        wire.timestamp_ms,
        wire.expires_at_ms if wire.HasField("expires_at_ms") else None,
        wire.store_timestamp_ms,
        wire.leader_epoch,
    )


def columns_to_wire(batches: Sequence[pa.RecordBatch]) -> bytes:
    """Return batches as an Arrow IPC stream; empty without batches."""
    import pyarrow as pa

    if not batches:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def columns_from_wire(data: bytes) -> list[pa.RecordBatch]:
    import pyarrow as pa

    if not data:
        return []
    with pa.ipc.open_stream(data) as reader:
        return list(reader)


def messages_from_wire(topic: str, wires: Iterable[pb.Record]) -> list[Message]:
    return [Message(topic, wire.partition, stored_from_wire(wire)) for wire in wires]


def messages_to_wire(messages: Iterable[Message]) -> pb.RecordsReply:
    return pb.RecordsReply(
        records=[stored_to_wire(message.record, message.partition) for message in messages]
    )


def pages_to_wire(records: Iterable[pb.Record]) -> Iterator[pb.RecordsReply]:
    """Return an answer in pages of about `PAGE_SIZE`, at least one."""
    page: list[pb.Record] = []
    size = 0
    for record in records:
        added = record.ByteSize()
        if page and size + added > PAGE_SIZE:
            yield pb.RecordsReply(records=page)
            page, size = [], 0
        page.append(record)
        size += added
    yield pb.RecordsReply(records=page)


def locations_to_wire(locations: Sequence[Location]) -> pb.WriteReply:
    if isinstance(locations, Locations):
        partitions = locations.partitions
        offsets = locations.offsets
    else:
        partitions = [place.partition for place in locations]
        offsets = [place.offset for place in locations]
    single = len(set(partitions)) == 1
    return pb.WriteReply(partitions=partitions[:1] if single else partitions, offsets=offsets)


def locations_from_wire(reply: pb.WriteReply) -> Locations:
    return Locations(list(reply.partitions), list(reply.offsets))


def producer_to_wire(producer: Producer) -> pb.Producer:
    return pb.Producer(
        id=producer.id,
        epoch=producer.epoch,
        sequence=producer.sequence,
        is_transactional=producer.is_transactional,
    )


def producer_from_wire(producer: pb.Producer) -> Producer:
    return Producer(producer.id, producer.epoch, producer.sequence, producer.is_transactional)


def positions_to_wire(
    positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, str] = _ANY
) -> list[pb.TopicPosition]:
    return [
        pb.TopicPosition(
            topic=topic, partition=partition, offset=offset, topic_id=topic_ids.get(topic)
        )
        for (topic, partition), offset in positions.items()
    ]


def positions_from_wire(positions: Iterable[pb.TopicPosition]) -> dict[TopicPartition, Offset]:
    return {(position.topic, position.partition): Offset(position.offset) for position in positions}


def topic_ids_from_wire(positions: Iterable[pb.TopicPosition]) -> dict[str, str]:
    """Return which topics are meant, by name; those without an id are left out."""
    topic_ids: dict[str, str] = {}
    for position in positions:
        if position.HasField("topic_id") and topic_ids.setdefault(
            position.topic, position.topic_id
        ) != (position.topic_id):
            raise BadRequestError(f"positions of {position.topic!r} name two ids of it")
    return topic_ids


# Created at import: msgspec must not inspect a type for the first time in two threads.
_topics: Final = msgspec.json.Decoder(TopicInfo)


def topic_to_wire(info: TopicInfo) -> str:
    return msgspec.json.encode(info).decode()


def topic_from_wire(text: str) -> TopicInfo:
    return _topics.decode(text)
