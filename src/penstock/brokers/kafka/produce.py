"""Produce: parsed here, byte by byte, for it is what a broker does most.

request   transactional id · acks 2 · timeout 4 · topics [name · partitions [index 4 · batch]]
answer    topics [name · partitions [index 4 · error 2 · base offset 8 · append time 8 ·
          log start 8 · record errors · message]] · throttle time 4
"""

from __future__ import annotations

from struct import Struct, error
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.connection import Connection
from penstock.brokers.kafka.cursor import Cursor, MalformedRequestError
from penstock.brokers.kafka.layout import response_layout, write_varint
from penstock.brokers.kafka.packed import count_of, skip_tags, take, varint
from penstock.brokers.kafka.partition_writer import PartitionWriter
from penstock.brokers.kafka.partitions import Partition, PartitionTable

KEY: Final = 0
MIN_VERSION: Final = 3
MAX_VERSION: Final = 12
_FIRST_FLEXIBLE: Final = 9
_UNKNOWN: Final = int(ErrorCode.unknown_topic_or_partition)
_BAD_ACKS: Final = int(ErrorCode.invalid_required_acks)

_INT32: Final = Struct(">i").unpack_from
_ACKS: Final = Struct(">hi").unpack_from
_HEAD: Final = Struct(">ii")


class _Write(NamedTuple):
    topic: bytes
    partition_id: int
    partition: Partition | None
    records: memoryview


class _Request(NamedTuple):
    transactional_id: str | None
    acks: int
    writes: list[_Write]
    may_wait: bool
    """Whether a write could wait for a device."""


_Result = tuple[int, int, str | None]


class Producing:
    def __init__(self, broker: KafkaBroker, partitions: PartitionTable) -> None:
        self._broker: Final = broker
        self._partitions: Final = partitions
        self._writer: Final = PartitionWriter(broker)

    def __call__(
        self, connection: Connection, version: int, correlation_id: int, body: memoryview
    ) -> bool:
        try:
            request = self._parse(version, body)
        except (error, IndexError, UnicodeDecodeError) as bad:
            raise MalformedRequestError(f"Produce: {bad}") from bad
        if request.may_wait:
            self._write_later(connection, version, correlation_id, request)
            return False
        results = [self._write(request, one) for one in request.writes]
        self._broker.metrics.note_codes(KEY, (code for code, _, _ in results))
        if request.acks:
            connection.send(_encode(version, correlation_id, request.writes, results))
        elif any(code for code, _, _ in results):
            connection.close()  # the only way to say so: nobody waits for an answer
        return True

    def _write(self, request: _Request, one: _Write) -> _Result:
        if request.acks not in {-1, 0, 1}:
            return _BAD_ACKS, -1, None
        if one.partition is None:
            return _UNKNOWN, -1, None
        return self._writer.write(one.partition, one.records, request.transactional_id)

    def _write_later(
        self, connection: Connection, version: int, correlation_id: int, request: _Request
    ) -> None:
        # The bytes of a request are only there while it is being begun.
        kept = [one._replace(records=memoryview(bytes(one.records))) for one in request.writes]
        copy = request._replace(writes=kept)

        async def write() -> None:
            results = await self._broker.run_blocking(
                lambda: [self._write(copy, one) for one in copy.writes]
            )
            self._broker.metrics.note_codes(KEY, (code for code, _, _ in results))
            if copy.acks:
                connection.answer([_encode(version, correlation_id, copy.writes, results)])
            else:
                connection.answer([])

        connection.on_failure(self._broker.spawn(write(), "produce"))

    # Parsing

    def _parse(self, version: int, body: memoryview) -> _Request:
        if version >= _FIRST_FLEXIBLE:
            return self._parse_flexible(body)
        cursor = Cursor(body)
        transactional_id = cursor.text(flexible=False, nullable=True)
        acks = cursor.int16()
        cursor.int32()
        writes: list[_Write] = []
        may_wait = False
        for _ in range(cursor.item_count(flexible=False)):
            name = bytes(cursor.take(cursor.int16()))
            topic = self._partitions.by_name(name)
            for _ in range(cursor.item_count(flexible=False)):
                index = cursor.int32()
                records = cursor.take(max(cursor.int32(), 0))
                partition = None if topic is None else topic.get(index)
                may_wait |= partition is not None and partition.may_wait
                writes.append(_Write(name, index, partition, records))
        return _Request(transactional_id, acks, writes, may_wait)

    def _parse_flexible(self, body: memoryview) -> _Request:
        size, at = varint(body, 0)
        transactional_id = None
        if size:
            transactional_id = str(take(body, at, size - 1), "utf-8")
            at += size - 1
        acks, _ = _ACKS(body, at)
        topics, at = varint(body, at + 6)
        writes: list[_Write] = []
        may_wait = False
        for _ in range(count_of(topics, body, at)):
            size, at = varint(body, at)
            name = bytes(take(body, at, size - 1))
            at += size - 1
            topic = self._partitions.by_name(name)
            partitions, at = varint(body, at)
            for _ in range(count_of(partitions, body, at)):
                (index,) = _INT32(body, at)
                size, at = varint(body, at + 4)
                size = max(size - 1, 0)
                records = take(body, at, size)
                at = skip_tags(body, at + size)
                partition = None if topic is None else topic.get(index)
                may_wait |= partition is not None and partition.may_wait
                writes.append(_Write(name, index, partition, records))
            at = skip_tags(body, at)
        return _Request(transactional_id, acks, writes, may_wait)


# Answering


class _AckForm:
    """The answer to a request with one partition, but for what varies."""

    __slots__ = ("_middle", "_pack", "_rest", "_size")

    def __init__(self, name: bytes, index: int) -> None:
        size = bytearray()
        write_varint(size, len(name) + 1)
        self._middle = b"\0\x02" + bytes(size) + name + b"\x02" + index.to_bytes(4, "big")
        # No record errors, no message, no tags of partition and topic; throttle time; no tags.
        self._rest = b"\x01\0\0" + b"\0" + b"\0\0\0\0" + b"\0"
        form = Struct(f">ii{len(self._middle)}shqqq{len(self._rest)}s")
        self._pack = form.pack
        self._size = form.size - 4

    def encode(self, correlation_id: int, base_offset: int, log_start: int) -> bytes:
        return self._pack(
            self._size, correlation_id, self._middle, 0, base_offset, -1, log_start, self._rest
        )


def _encode(
    version: int, correlation_id: int, writes: list[_Write], results: list[_Result]
) -> bytes | bytearray:
    if len(writes) == 1 and version >= _FIRST_FLEXIBLE and results[0][0] == 0:
        partition = writes[0].partition
        assert partition is not None
        form = partition.ack_form
        if not isinstance(form, _AckForm):
            form = partition.ack_form = _AckForm(writes[0].topic, writes[0].partition_id)
        return form.encode(correlation_id, results[0][1], _log_start(partition))
    return _encode_slowly(version, correlation_id, writes, results)


def _encode_slowly(
    version: int, correlation_id: int, writes: list[_Write], results: list[_Result]
) -> bytearray:
    topics: dict[bytes, list[dict[str, object]]] = {}
    for one, (code, base_offset, message) in zip(writes, results, strict=True):
        topics.setdefault(one.topic, []).append(
            {
                "index": one.partition_id,
                "error_code": code,
                "base_offset": base_offset,
                "log_append_time": -1,
                "log_start_offset": -1 if one.partition is None else _log_start(one.partition),
                "error_message": message,
            }
        )
    out = bytearray(_HEAD.size + (version >= _FIRST_FLEXIBLE))
    answer = {
        "responses": [
            {"name": name.decode("utf-8", "replace"), "partition_responses": partitions}
            for name, partitions in topics.items()
        ]
    }
    response_layout(KEY, version).write(out, answer)
    _HEAD.pack_into(out, 0, len(out) - 4, correlation_id)
    return out


def _log_start(partition: Partition) -> int:
    known = partition.known_bounds()
    return -1 if known is None else known[0]
