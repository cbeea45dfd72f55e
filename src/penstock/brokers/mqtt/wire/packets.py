"""The control packets of MQTT 3.1, 3.1.1 and 5.0 as values.

A packet without properties, as all are in MQTT 3.1 and 3.1.1, has `properties=None`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.brokers.mqtt.wire.packet_types import PacketType
from penstock.brokers.mqtt.wire.properties import Properties

__all__ = [
    "MQTT_3_1",
    "MQTT_3_1_1",
    "MQTT_5",
    "PINGREQ",
    "PINGRESP",
    "Ack",
    "Auth",
    "Connack",
    "Connect",
    "Disconnect",
    "Packet",
    "PacketType",
    "Pingreq",
    "Pingresp",
    "Properties",
    "Publish",
    "Suback",
    "Subscribe",
    "SubscriptionRequest",
    "Unsuback",
    "Unsubscribe",
    "Will",
]

MQTT_3_1: Final = 3
MQTT_3_1_1: Final = 4
MQTT_5: Final = 5


@dataclass(slots=True)
class Will:
    """The message that the server publishes when a client's connection is lost."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties | None = None


@dataclass(slots=True)
class Connect:
    """The first packet of a client; `version` is 3, 4 or 5."""

    version: int
    client_id: str
    clean_start: bool = True
    keep_alive: int = 0
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties | None = None


@dataclass(slots=True)
class Connack:
    """The answer to CONNECT; `reason_code` is one of MQTT 5.0 in every version."""

    session_present: bool = False
    reason_code: int = 0
    properties: Properties | None = None


@dataclass(slots=True)
class Publish:
    """A message; `packet_id` 0: none, as QoS 0 has it. An aliased topic may be empty."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties | None = None


@dataclass(slots=True)
class Ack:
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""

    kind: PacketType
    packet_id: int
    reason_code: int = 0
    properties: Properties | None = None


@dataclass(slots=True)
class SubscriptionRequest:
    """One filter of a SUBSCRIBE with its options."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(slots=True)
class Subscribe:
    """A client asks for the messages of filters."""

    packet_id: int
    subscriptions: list[SubscriptionRequest]
    properties: Properties | None = None


@dataclass(slots=True)
class Suback:
    """The answer to SUBSCRIBE, one reason code for each filter."""

    packet_id: int
    reason_codes: list[int]
    properties: Properties | None = None


@dataclass(slots=True)
class Unsubscribe:
    """A client ends subscriptions."""

    packet_id: int
    filters: list[str]
    properties: Properties | None = None


@dataclass(slots=True)
class Unsuback:
    """The answer to UNSUBSCRIBE; MQTT 3.1 and 3.1.1 have no reason codes."""

    packet_id: int
    reason_codes: list[int]
    properties: Properties | None = None


@dataclass(slots=True)
class Pingreq:
    """A client shows that it lives."""


@dataclass(slots=True)
class Pingresp:
    """The answer to PINGREQ."""


@dataclass(slots=True)
class Disconnect:
    """The last packet of a connection."""

    reason_code: int = 0
    properties: Properties | None = None


@dataclass(slots=True)
class Auth:
    """A step of an enhanced authentication."""

    reason_code: int = 0
    properties: Properties | None = None


PINGREQ: Final = Pingreq()
PINGRESP: Final = Pingresp()

Packet: TypeAlias = (
    Connect
    | Connack
    | Publish
    | Ack
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
