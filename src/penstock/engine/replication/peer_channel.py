"""`PeerChannel`: messages to and from the other nodes, as replication needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class PeerChannel(Protocol):
    on_receive: Callable[[int, bytes], None]
    """Called with the sender and its message, on the thread of the network: it must only pass the
    message on."""
    on_connection_lost: Callable[[int], None]

    def send(self, node: int, data: bytes) -> bool:
        """Send a message, from any thread, without waiting. False: it was dropped, because there
        is no connection or its buffer is full."""
        ...
