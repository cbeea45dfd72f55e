"""`ClientSink`: the connection of a session, as delivery sees it."""

from __future__ import annotations

from typing import Protocol


class ClientSink(Protocol):
    """Implemented by the protocol of a connection. Its attributes are those of CONNECT, bounded by
    the node's own limits; they do not change."""

    version: int
    receive_maximum: int
    """QoS 1 and 2 messages in flight to the client."""
    maximum_packet_size: int
    """Bytes of a packet that the client accepts."""
    topic_alias_maximum: int

    @property
    def unsent(self) -> int:
        """Bytes of output that wait for the client."""
        ...

    def send(self, data: bytes) -> None:
        """Queue packets; the connection writes them at the end of the turn of the loop."""
        ...

    def disconnect(self, reason_code: int) -> None:
        """Send DISCONNECT (in MQTT 5) and close the connection. After a take-over,
        `SessionRegistry.close` of this sink does nothing."""
        ...
