"""What delivery counts."""

from __future__ import annotations


class DeliveryCounts:
    """Counters of the event loop; the front end's metrics read them."""

    __slots__ = (
        "dropped_expired",
        "dropped_gone",
        "dropped_large",
        "dropped_slow",
        "fell_behind",
        "offsets_skipped",
        "pages_read",
        "resent",
        "sent_qos0",
        "sent_qos1",
        "sent_qos2",
    )

    def __init__(self) -> None:
        self.sent_qos0 = 0
        self.sent_qos1 = 0
        self.sent_qos2 = 0
        self.resent = 0
        self.dropped_slow = 0
        """QoS 0 messages for clients with too much unsent output."""
        self.dropped_large = 0
        """Messages above the client's maximum packet size."""
        self.dropped_expired = 0
        self.dropped_gone = 0
        """Unacknowledged messages that were deleted before they could be sent again."""
        self.fell_behind = 0
        """How often a subscriber could not keep up and began to read from the log."""
        self.offsets_skipped = 0
        """Offsets that retention had removed before a subscriber read them."""
        self.pages_read = 0
