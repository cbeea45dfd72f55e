"""What a client needs to know to connect."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final

from penstock.brokers.mqtt.wire.packets import MQTT_5, Connect, Properties, Will

RETRY_MIN_S: Final = 0.5
RETRY_MAX_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    host: str = "127.0.0.1"
    port: int = 1883
    client_id: str = ""
    """Empty: the server assigns one (MQTT 5)."""
    version: int = MQTT_5
    clean_start: bool = True
    session_expiry_s: int = 0
    keep_alive_s: int = 60
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    tls: ssl.SSLContext | None = None
    receive_maximum: int = 100
    packet_size_max: int = 16 << 20
    connect_timeout_s: float = 10.0
    response_timeout_s: float = 30.0
    reconnects: bool = False
    """Connects again when the connection is lost, with pauses that double up to 30 s; subscribes
    again if the server has no session, and repeats what was not acknowledged."""
    messages_max: int = 1_000
    """Received messages that wait to be read; then the client stops reading its connection."""

    def connect_packet(self, *, clean_start: bool) -> Connect:
        """Return the CONNECT of these options."""
        properties = None
        if self.version >= MQTT_5:
            properties = Properties(
                session_expiry_interval=self.session_expiry_s or None,
                receive_maximum=self.receive_maximum,
                maximum_packet_size=self.packet_size_max,
            )
        return Connect(
            self.version,
            self.client_id,
            clean_start=clean_start,
            keep_alive=self.keep_alive_s,
            username=self.username,
            password=self.password,
            will=self.will,
            properties=properties,
        )
