"""Plain numbers that a server counts on its loop; the metrics of a front end read them."""

from __future__ import annotations

from collections import Counter
from typing import Final


class NetworkCounters:
    """Only the loop's thread counts. The keys of `refused` and `closed_by_server` are a fixed set
    of reasons."""

    __slots__ = (
        "accept_failures",
        "closed_by_server",
        "connections_opened",
        "received_bytes",
        "refused",
        "sent_bytes",
    )

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
        self.connections_opened = 0
        self.accept_failures = 0
        self.refused: Final[Counter[str]] = Counter()
        """Connections that were closed before their protocol began, by reason."""
        self.closed_by_server: Final[Counter[str]] = Counter()
        """Connections that a limit ended, by reason."""

    @property
    def connections_refused(self) -> int:
        return self.refused.total()
