"""Fetch requests, parsed.

[replica 4] · max wait 4 · min bytes 4 · max bytes 4 · isolation 1 · [session 4 · epoch 4] ·
topics [name or id · partitions [index 4 · [leader epoch 4] · offset 8 · [last epoch 4] ·
[log start 8] · max bytes 4]] · [forgotten topics] · [rack]
"""

from __future__ import annotations

from struct import Struct, error
from typing import Final, NamedTuple

from penstock.brokers.kafka.wire.cursor import Cursor, MalformedRequestError
from penstock.brokers.kafka.wire.fast_path import count_of, read_bytes, skip_tags, varint

FIRST_FLEXIBLE: Final = 12
FIRST_BY_ID: Final = 13
FIRST_WITH_RACKS: Final = 11
_FIRST_WITH_SESSIONS: Final = 7

_OLD_HEAD: Final = Struct(">iiiib")
_HEAD: Final = Struct(">iiiibii")
_NEW_HEAD: Final = Struct(">iiibii")
_FLEXIBLE: Final = Struct(">iiqiqi")
_UNTAGGED: Final = Struct(">iiqiqix")
"""A partition without tagged fields, as all clients send it."""
_ID_SIZE: Final = 16


class FetchPartition(NamedTuple):
    """One partition of a request. `topic` is its name, or its id from version 13 on."""

    topic: bytes
    partition_id: int
    leader_epoch: int
    offset: int
    max_bytes: int


class FetchRequest(NamedTuple):
    version: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    is_committed: bool
    """Whether only records of committed transactions are wanted."""
    session_id: int
    session_epoch: int
    requested: list[FetchPartition]
    forgotten: list[tuple[bytes, int]]
    rack: str = ""
    """Where the client is; a replica there may serve it."""


def parse_fetch(version: int, body: memoryview) -> FetchRequest:
    try:
        return _parse_flexible(version, body) if version >= 12 else _parse_old(version, body)
    except (error, IndexError) as bad:
        raise MalformedRequestError(f"Fetch: {bad}") from bad


def _parse_flexible(version: int, body: memoryview) -> FetchRequest:
    head = _HEAD if version < 15 else _NEW_HEAD
    max_wait, min_bytes, max_bytes, isolation, session, epoch = head.unpack_from(body)[-6:]
    topics, position = varint(body, head.size)
    requested: list[FetchPartition] = []
    unpack = _FLEXIBLE.unpack_from
    for _ in range(count_of(topics, body, position)):
        topic, position = _topic(version, body, position)
        partitions, position = varint(body, position)
        count = count_of(partitions, body, position)
        end = position + count * _UNTAGGED.size
        if bytes(body[position + 32 : end : _UNTAGGED.size]) == bytes(count):
            requested += [
                FetchPartition(topic, index, leader_epoch, offset, limit)
                for index, leader_epoch, offset, _, _, limit in _UNTAGGED.iter_unpack(
                    body[position:end]
                )
            ]
            position = skip_tags(body, end)
            continue
        for _ in range(count):
            index, leader_epoch, offset, _, _, limit = unpack(body, position)
            requested.append(FetchPartition(topic, index, leader_epoch, offset, limit))
            position = skip_tags(body, position + 32)
        position = skip_tags(body, position)
    forgotten: list[tuple[bytes, int]] = []
    topics, position = varint(body, position)
    for _ in range(count_of(topics, body, position)):
        topic, position = _topic(version, body, position)
        partitions, position = varint(body, position)
        for _ in range(count_of(partitions, body, position)):
            forgotten.append(
                (topic, int.from_bytes(read_bytes(body, position, 4), "big", signed=True))
            )
            position += 4
        position = skip_tags(body, position)
    size, position = varint(body, position)
    rack = read_bytes(body, position, max(size - 1, 0))
    return FetchRequest(
        version,
        max_wait,
        min_bytes,
        max_bytes,
        isolation == 1,
        session,
        epoch,
        requested,
        forgotten,
        str(rack, "utf-8", "replace"),
    )


def _topic(version: int, body: memoryview, position: int) -> tuple[bytes, int]:
    if version >= FIRST_BY_ID:
        return bytes(read_bytes(body, position, _ID_SIZE)), position + _ID_SIZE
    size, position = varint(body, position)
    return bytes(read_bytes(body, position, size - 1)), position + size - 1


def _parse_old(version: int, body: memoryview) -> FetchRequest:
    session, epoch = 0, -1
    if version >= _FIRST_WITH_SESSIONS:
        _, max_wait, min_bytes, max_bytes, isolation, session, epoch = _HEAD.unpack_from(body)
        cursor = Cursor(body, _HEAD.size)
    else:
        _, max_wait, min_bytes, max_bytes, isolation = _OLD_HEAD.unpack_from(body)
        cursor = Cursor(body, _OLD_HEAD.size)
    requested: list[FetchPartition] = []
    for _ in range(cursor.item_count(flexible=False)):
        topic = bytes(cursor.read_bytes(cursor.int16()))
        for _ in range(cursor.item_count(flexible=False)):
            index = cursor.int32()
            leader_epoch = cursor.int32() if version >= 9 else -1
            offset = cursor.int64()
            if version >= 5:
                cursor.int64()
            requested.append(FetchPartition(topic, index, leader_epoch, offset, cursor.int32()))
    forgotten: list[tuple[bytes, int]] = []
    if version >= _FIRST_WITH_SESSIONS:
        for _ in range(cursor.item_count(flexible=False)):
            topic = bytes(cursor.read_bytes(cursor.int16()))
            count = cursor.item_count(flexible=False)
            forgotten += [(topic, cursor.int32()) for _ in range(count)]
    rack = b""
    if version >= FIRST_WITH_RACKS:
        rack = bytes(cursor.read_bytes(max(cursor.int16(), 0)))
    return FetchRequest(
        version,
        max_wait,
        min_bytes,
        max_bytes,
        isolation == 1,
        session,
        epoch,
        requested,
        forgotten,
        str(rack, "utf-8", "replace"),
    )
