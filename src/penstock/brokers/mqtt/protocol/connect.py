"""CONNECT: the checks that need no connection, and what CONNACK says.

version   empty client id   clean start   answer
3.1       any               any           refused with 2: the client id has 1 character at least
3.1.1     yes               0             refused with 2
others    yes               any           an assigned id; CONNACK names it in MQTT 5
"""

from __future__ import annotations

from collections.abc import Callable
from secrets import token_hex
from typing import Final

from penstock.brokers.mqtt.sessions.session import WillRecord
from penstock.brokers.mqtt.wire.packets import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    Connack,
    Connect,
    Properties,
    Will,
)
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.settings import MqttSettings

CLIENT_ID_SIZE_MAX: Final = 4_096
"""Bytes of a client id; it is part of the keys of the session's rows."""
ASSIGNED_PREFIX: Final = "penstock-"
RECEIVE_MAXIMUM: Final = 65_535
PACKET_SIZE_MAX: Final = 268_435_460
"""What MQTT itself allows; the value for clients that name none."""
KEEP_ALIVE_FACTOR: Final = 1.5

_NO_PROPERTIES: Final = Properties()


def make_client_id() -> str:
    """Return a client id for a client that has none."""
    return ASSIGNED_PREFIX + token_hex(12)


class ConnectOptions:
    """What a CONNECT asks for, bounded by the limits of the node."""

    __slots__ = (
        "clean_start",
        "client_id",
        "expiry_s",
        "inflight_max",
        "is_assigned",
        "keep_alive_s",
        "packet_size_max",
        "reason_code",
        "requested_expiry_s",
        "topic_alias_maximum",
        "version",
        "wants_response_information",
        "will",
    )

    def __init__(
        self,
        connect: Connect,
        settings: MqttSettings,
        make_client_id: Callable[[], str] = make_client_id,
    ) -> None:
        properties = connect.properties or _NO_PROPERTIES
        self.version: Final = connect.version
        self.clean_start: Final = connect.clean_start
        self.reason_code = _check_client_id(connect)
        self.is_assigned: Final = not connect.client_id
        self.client_id: Final = connect.client_id or make_client_id()
        self.requested_expiry_s: Final = _expiry(connect, properties, settings)
        self.expiry_s: Final = min(self.requested_expiry_s, settings.session_expiry_max_s)
        self.keep_alive_s: Final = _keep_alive(connect, settings)
        self.inflight_max: Final = min(
            properties.receive_maximum or RECEIVE_MAXIMUM, settings.inflight_max
        )
        self.packet_size_max: Final = properties.maximum_packet_size or PACKET_SIZE_MAX
        self.topic_alias_maximum: Final = properties.topic_alias_maximum or 0
        self.wants_response_information: Final = bool(properties.request_response_information)
        self.will: Final = None if connect.will is None else _will_record(connect.will)

    @property
    def silence_max_s(self) -> float:
        """For how long the client may send nothing; 0: any time."""
        return self.keep_alive_s * KEEP_ALIVE_FACTOR

    def connack(self, connect: Connect, settings: MqttSettings, *, is_present: bool) -> Connack:
        """Return the answer that accepts the client."""
        if self.version != MQTT_5:
            return Connack(session_present=is_present and self.version != MQTT_3_1)
        properties = Properties(
            topic_alias_maximum=settings.topic_aliases_max or None,
            maximum_packet_size=settings.packet_size_max,
            receive_maximum=settings.receive_maximum,
        )
        if self.is_assigned:
            properties.assigned_client_identifier = self.client_id
        if self.expiry_s != self.requested_expiry_s:
            properties.session_expiry_interval = self.expiry_s
        if self.keep_alive_s != connect.keep_alive:
            properties.server_keep_alive = self.keep_alive_s
        if self.wants_response_information and settings.response_topic_prefix:
            properties.response_information = settings.response_topic_prefix + self.client_id
        return Connack(session_present=is_present, properties=properties)


def _check_client_id(connect: Connect) -> int:
    if not connect.client_id:
        is_refused = connect.version == MQTT_3_1 or (
            connect.version == MQTT_3_1_1 and not connect.clean_start
        )
        return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID if is_refused else ReasonCode.SUCCESS
    if len(connect.client_id.encode()) > CLIENT_ID_SIZE_MAX:
        return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    return ReasonCode.SUCCESS


def _expiry(connect: Connect, properties: Properties, settings: MqttSettings) -> int:
    """Return for how long the client asks that its session be kept."""
    if connect.version == MQTT_5:
        return properties.session_expiry_interval or 0
    return 0 if connect.clean_start else settings.session_expiry_max_s


def _keep_alive(connect: Connect, settings: MqttSettings) -> int:
    """Return the keep-alive that holds; CONNACK can name another one in MQTT 5 only."""
    most = settings.keep_alive_max_s
    if connect.version != MQTT_5 or not most:
        return connect.keep_alive
    return min(connect.keep_alive or most, most)


def _will_record(will: Will) -> WillRecord:
    delay_s = 0 if will.properties is None else will.properties.will_delay_interval or 0
    return WillRecord(will, delay_s)
