"""The rows of sessions in `__mqtt_sessions`: MessagePack, by key; the last one of a key counts.

    CLIENT             SessionRow     CONNECT, SUBSCRIBE, UNSUBSCRIBE, end of the connection
    CLIENT \\0 pos      PositionRow    at a mark, if it changed
    CLIENT \\0 out      OutRow         before QoS 2 packets leave: PUBLISH and PUBREL
    CLIENT \\0 in       ReceiptRow     before PUBCOMP leaves, and at a mark if it changed
    \\0 share \\0 GROUP  GroupRow       at a mark, if it changed
    \\0 mark \\0 TOPIC   MarkRow        each second, in each partition, after its rows

CLIENT has no null character: MQTT forbids it in strings. A null value removes a row.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from penstock.brokers.mqtt.wire.packets import Will
from penstock.brokers.mqtt.wire.properties import Properties

POSITION: Final = b"\0pos"
OUT: Final = b"\0out"
RECEIPTS: Final = b"\0in"
MARK: Final = b"\0mark\0"
GROUP: Final = b"\0share\0"
KINDS: Final = (b"", POSITION, OUT, RECEIPTS)

NO_LOCAL: Final = 1
RETAIN_AS_PUBLISHED: Final = 2


class SubscriptionRow(Struct, array_like=True, frozen=True):
    filter: str
    qos: int
    flags: int
    retain_handling: int
    identifier: int
    since: dict[str, int] | None
    """By shard, the first offset that the subscription is about."""
    inner: str = ""
    """What the tree matches; empty: the filter."""


class WillRow(Struct, array_like=True, frozen=True):
    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties | None
    delay_s: int
    token: int

    def as_will(self) -> Will:
        return Will(self.topic, self.payload, self.qos, self.retain, self.properties)


class SessionRow(Struct, array_like=True, frozen=True):
    number: int
    version: int
    expiry_s: int
    connects: int
    disconnected_at_ms: int
    """0: a client was connected."""
    subscriptions: list[SubscriptionRow]
    will: WillRow | None


class PositionRow(Struct, array_like=True, frozen=True):
    session: int
    """The number of the session: rows of an earlier session of the client do not count."""
    positions: dict[str, int]
    """By shard, the lowest offset that the session still needs."""
    sent: dict[str, int]
    """By shard, the offset up to which messages may have been sent: they are sent with DUP."""
    retained: list[tuple[str, int]]
    """Topics and QoS of retained messages that were sent and not acknowledged."""


class OutRow(Struct, array_like=True, frozen=True):
    session: int
    sent_ends: dict[str, int]
    """By shard, the offset after the last QoS 2 message that was sent."""
    in_flight: list[tuple[int, str, int]]
    """Packet id, shard and offset, in the order of sending. A retained message has its topic in
    place of the shard, and offset -1."""
    released: list[int]
    owners: list[tuple[int, str]] = []
    """Packet ids of the messages in flight that groups of shared subscriptions have given, and the
    groups."""
    delivered: dict[str, dict[str, list[int]]] = {}
    """By group and shard, messages of groups that the client has, since the last mark."""


class GroupShardRow(Struct, array_like=True, frozen=True):
    next: int
    """The first offset that the group had not looked at."""
    is_live: bool
    """Whether the group had nothing to read from there on; then a later mark counts."""
    pending: list[int]
    """Unacknowledged offsets: the first, then the differences."""
    excluded: list[int]
    """Offsets from `next` on that are acknowledged."""


class GroupRow(Struct, array_like=True, frozen=True):
    shards: dict[str, GroupShardRow]


class ReceiptRow(Struct, array_like=True, frozen=True):
    session: int
    unreleased: list[int]
    ends: dict[str, int]
    """By shard, the offset up to which the receipts of the session are in `unreleased`, or were
    released."""


class MarkRow(Struct, array_like=True, frozen=True):
    time_ms: int
    ends: list[int]
    """By partition."""


encode: Final = msgspec.msgpack.Encoder().encode
decode_session: Final = msgspec.msgpack.Decoder(SessionRow).decode
decode_position: Final = msgspec.msgpack.Decoder(PositionRow).decode
decode_group: Final = msgspec.msgpack.Decoder(GroupRow).decode
decode_out: Final = msgspec.msgpack.Decoder(OutRow).decode
decode_receipts: Final = msgspec.msgpack.Decoder(ReceiptRow).decode
decode_mark: Final = msgspec.msgpack.Decoder(MarkRow).decode
