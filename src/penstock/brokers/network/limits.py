"""What a server accepts: where it listens, and the bounds of its connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

MIB: Final = 1 << 20

Transport = Literal["tcp", "websocket", "internal"]
"""`internal`: a part of this process, over a socket pair."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenerSettings:
    """One address to listen on, and what comes before the protocol there."""

    host: str
    port: int
    clients: str
    """What connects there, for messages: Kafka, MQTT."""
    transport: Transport = "tcp"
    expects_proxy_header: bool = False
    """Every connection begins with a PROXY header, version 1 or 2; others are closed."""
    path: str = "/mqtt"
    """WebSocket: the path of the request."""
    subprotocols: tuple[str, ...] = ("mqtt", "mqttv3.1")
    """WebSocket: the first of these that the client offers is chosen."""
    origins: tuple[str, ...] = ()
    """WebSocket: accepted values of `Origin`; empty: any."""
    trusts_forwarded_for: bool = False
    """WebSocket: the last address in `X-Forwarded-For` is the client's."""
    settings_names: str = "another host or port"
    """Names the settings to change when this address cannot be listened on."""

    @property
    def learns_address(self) -> bool:
        """Whether the client's address is known only after a header."""
        return self.expects_proxy_header or self.trusts_forwarded_for


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkLimits:
    """Bounds of one server. A time of 0 means: without a limit."""

    message_size_max: int
    """Bytes of a message that may wait for their rest; a larger message ends the connection."""
    connections_max: int = 20_000
    connections_per_address_max: int = 0
    """0: without a limit."""
    unestablished_max: int = 4_096
    """Connections without a first message; while there are as many, none is accepted."""
    first_message_timeout_s: float = 0.0
    """From the connection until its protocol calls `established`, handshakes included."""
    idle_timeout_s: float = 0.0
    slow_timeout_s: float = 300.0
    """For a client to send a message that it began, or to receive what was sent to it."""
    sweep_interval_s: float = 1.0
    unsent_high: int = MIB
    """Bytes that wait for a client before its input is no longer processed."""
    unsent_max: int = 0
    """Bytes that wait for a client before its connection ends; 0: without a limit."""
    unsent_total_max: int = 0
    """Bytes that wait for all clients before connections that add to them end; 0: no limit."""
    buffered_total_max: int = 1024 * MIB
    """Bytes of incomplete messages of all clients before connections that hold them end."""
    header_size_max: int = 8 << 10
    """Bytes of a WebSocket request."""
    frame_size_max: int = 16 * MIB
    """Bytes of a WebSocket frame."""
