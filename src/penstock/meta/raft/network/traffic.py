"""How many bytes a channel of the internal port has carried."""

from __future__ import annotations

import threading


class ChannelTraffic:
    """Counts since the start of the node; frame heads are included."""

    __slots__ = ("_lock", "dropped", "received", "sent")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sent = 0
        self.received = 0
        self.dropped = 0
        """Bytes that were to be sent and were not: no connection, or its buffer was full."""

    def count_sent(self, size: int) -> None:
        with self._lock:
            self.sent += size

    def drop(self, size: int) -> None:
        with self._lock:
            self.dropped += size
