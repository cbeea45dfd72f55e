"""Fetch responses: encoded headers between batches that are sent unchanged from the log.

size 4 · correlation id 4 · [tags] · throttle 4 · [error 2 · session 4] · topics [name or id ·
partitions [index 4 · error 2 · high watermark 8 · stable 8 · [log start 8] · aborted ·
[preferred replica 4] · records]]
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from penstock.brokers.kafka.cluster_view import BrokerAddress
from penstock.brokers.kafka.fetch.request import FIRST_BY_ID, FIRST_FLEXIBLE, FIRST_WITH_RACKS
from penstock.brokers.kafka.transactions.interface import AbortedTransaction
from penstock.brokers.kafka.wire.schema import write_varint
from penstock.brokers.network import Part

_HEAD: Final = Struct(">ii")
_INT32: Final = Struct(">i").pack
_SESSION: Final = Struct(">hi").pack
_OLDEST: Final = Struct(">ihqq").pack
_PARTITION: Final = Struct(">ihqqq").pack
_ABORTED: Final = Struct(">qq").pack
NO_REPLICA: Final = -1
FIRST_WITH_LEADERS: Final = 16
"""The first version whose responses name the current leaders and their addresses (KIP-951)."""
_NO_REPLICA: Final = b"\xff\xff\xff\xff"
_LEADER: Final = Struct(">BBBiiB").pack
# No aborted transactions, no preferred replica, no records, no tags.
_NOTHING: Final = b"\0" + _NO_REPLICA + b"\x01\0"
_NOTHING_COMMITTED: Final = b"\x01" + _NOTHING[1:]


class FetchedPartition(NamedTuple):
    """The response of one partition."""

    topic: bytes
    partition_id: int
    error_code: int
    high_watermark: int = -1
    stable_until: int = -1
    log_start: int = -1
    aborted: Sequence[AbortedTransaction] | None = None
    parts: Sequence[bytes | memoryview] = ()
    size: int = 0
    form: bytes = b""
    """Its encoding from version 12 on, where it is prepared."""
    preferred: int = NO_REPLICA
    """The replica from which the client is to read."""
    leader: tuple[int, int] | None = None
    """The leader and its epoch, for a client that asked another node or with another epoch."""
    is_followed: bool = False
    """Whether the records are those of a replica that follows."""


def empty_response(
    topic: bytes, partition_id: int, end: int, stable: int, earliest: int, *, is_committed: bool
) -> FetchedPartition:
    """Return the response of a partition without new records; it can be sent repeatedly."""
    form = _PARTITION(partition_id, 0, end, stable, earliest)
    form += _NOTHING_COMMITTED if is_committed else _NOTHING
    aborted = () if is_committed else None
    return FetchedPartition(topic, partition_id, 0, end, stable, earliest, aborted, form=form)


def encode_fetch(
    version: int,
    correlation_id: int,
    error_code: int,
    session_id: int,
    fetched: Sequence[FetchedPartition],
    endpoints: Sequence[BrokerAddress] = (),
) -> list[Part]:
    """Return the parts of a response, to be sent in their order. `endpoints` are the addresses of
    the leaders that it names."""
    flexible = version >= FIRST_FLEXIBLE
    out = bytearray(_HEAD.size + flexible + 4)
    if version >= 7:
        out += _SESSION(error_code, session_id)
    topics = _by_topic(fetched)
    _put_count(out, len(topics), flexible=flexible)
    parts: list[Part] = []
    size = 0
    for topic, partitions in topics:
        _put_topic(out, topic, version)
        _put_count(out, len(partitions), flexible=flexible)
        for partition in partitions:
            if flexible and partition.form:
                out += partition.form
                continue
            _put_partition(out, partition, version)
            if partition.size:
                parts.append(out)
                parts += partition.parts
                size += len(out) + partition.size
                out = bytearray()
            if flexible:
                _put_leader(out, partition, version)
        if flexible:
            out.append(0)
    if flexible:
        _put_endpoints(out, endpoints)
    parts.append(out)
    size += len(out)
    first = parts[0]
    assert isinstance(first, bytearray)
    _HEAD.pack_into(first, 0, size - 4, correlation_id)
    return parts


def _by_topic(fetched: Sequence[FetchedPartition]) -> list[tuple[bytes, list[FetchedPartition]]]:
    topics: list[tuple[bytes, list[FetchedPartition]]] = []
    last: bytes | None = None
    for partition in fetched:
        if partition.topic != last:
            topics.append((partition.topic, []))
            last = partition.topic
        topics[-1][1].append(partition)
    return topics


def _put_count(out: bytearray, count: int, *, flexible: bool) -> None:
    if flexible:
        write_varint(out, count + 1)
    else:
        out += _INT32(count)


def _put_topic(out: bytearray, topic: bytes, version: int) -> None:
    if version >= FIRST_BY_ID:
        out += topic
    elif version >= FIRST_FLEXIBLE:
        write_varint(out, len(topic) + 1)
        out += topic
    else:
        out += len(topic).to_bytes(2, "big") + topic


def _put_partition(out: bytearray, partition: FetchedPartition, version: int) -> None:
    """Write everything before the records, and their size."""
    flexible = version >= FIRST_FLEXIBLE
    out += _PARTITION(*partition[1:6]) if version >= 5 else _OLDEST(*partition[1:5])
    if partition.aborted is None:
        out += b"\0" if flexible else _NO_REPLICA
    else:
        _put_count(out, len(partition.aborted), flexible=flexible)
        for aborted in partition.aborted:
            out += _ABORTED(*aborted)
            if flexible:
                out.append(0)
    if version >= FIRST_WITH_RACKS:
        out += _INT32(partition.preferred)
    _put_count(out, partition.size, flexible=flexible)


def _put_leader(out: bytearray, partition: FetchedPartition, version: int) -> None:
    """Write the tagged fields of a partition: none, or the current leader (tag 1, 9 bytes)."""
    if partition.leader is None or version < FIRST_WITH_LEADERS:
        out.append(0)
    else:
        out += _LEADER(1, 1, 9, *partition.leader, 0)


def _put_endpoints(out: bytearray, endpoints: Sequence[BrokerAddress]) -> None:
    """Write the tagged fields of a response: none, or the addresses of leaders (tag 0)."""
    if not endpoints:
        out.append(0)
        return
    body = bytearray()
    write_varint(body, len(endpoints) + 1)
    for address in endpoints:
        body += _INT32(address.node_id)
        _put_text(body, address.host)
        body += _INT32(address.port)
        _put_text(body, address.rack)
        body.append(0)
    out += b"\x01\0"
    write_varint(out, len(body))
    out += body


def _put_text(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(0)
        return
    encoded = text.encode()
    write_varint(out, len(encoded) + 1)
    out += encoded
