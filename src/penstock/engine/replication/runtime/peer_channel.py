"""`PeerChannel`: how replicas reach each other, whatever carries the bytes.

Messages may be lost, never damaged and never out of order: those that arrive from one node arrive
in the order in which it sent them. `penstock.meta.PeerNetwork` makes channels over TCP: a node
sends on the connection that it opened and receives on the one that the other node opened, so that a
reply travels on the connection of the node that replies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class PeerChannel(Protocol):
    """One channel of this node to all others. The callbacks run on the network's thread, one at a
    time, and must not wait; set them before the first `send`. Connections of other nodes are
    accepted once `on_receive` is set."""

    on_receive: Callable[[int, bytes], None]
    """Called with the node that sent a message, and the message."""
    on_connected: Callable[[int], None]
    """Called with a node to which messages can be sent from now on."""
    on_connection_lost: Callable[[int], None]
    """Called with a node when a connection to it or from it has ended, within milliseconds of the
    end of its process: messages of both directions may be lost, and the node may be gone."""

    def send(self, node: int, data: bytes) -> bool:
        """Send a message of at most 32 MB; any thread may call, and is not blocked. False: the
        message was dropped: the node is not connected, or 64 MB wait for it. The first message to a
        node opens the connection; `on_connected` follows, and after each loss again."""
        ...

    def pause(self, node: int) -> None:
        """Deliver no messages of a node until `resume`; any thread may call. From `on_receive` it
        takes effect with the next message. The buffers of the other node fill up meanwhile: its
        `send` returns False, and after 10 s it connects again. As long as messages are paused, the
        end of the connection from that node is not noticed; that of the connection to it is."""
        ...

    def resume(self, node: int) -> None:
        """Deliver the messages of a node again, first those that came meanwhile."""
        ...
