"""`Message`: a stored publish on its way to subscribers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
    from penstock.brokers.mqtt.wire.properties import Properties


class Message:
    """One message. Its shard and offset are set by `Delivery.appended`, or by the reader of the
    log; None and -1: it is not stored, and goes to connected clients only.

    `properties` are those that subscribers get: without topic alias, subscription identifiers and
    message expiry interval, which differ between deliveries. They are never changed.
    """

    __slots__ = (
        "expires_at_ms",
        "offset",
        "payload",
        "properties",
        "publisher",
        "qos",
        "retain",
        "shard",
        "topic",
    )

    def __init__(  # noqa: PLR0913,PLR0917 - built once for each message
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
        expires_at_ms: int | None = None,
        publisher: int = 0,
        shard: ShardTail | None = None,
        offset: int = -1,
    ) -> None:
        """`publisher` is the number of the publishing session, for No Local; 0: unknown."""
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.expires_at_ms = expires_at_ms
        self.publisher = publisher
        self.shard = shard
        self.offset = offset

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, qos={self.qos}, offset={self.offset})"
