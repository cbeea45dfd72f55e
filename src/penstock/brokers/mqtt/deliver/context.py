"""`DeliveryContext`: what subscribers need of delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.brokers.mqtt.deliver.message import Message
    from penstock.brokers.mqtt.deliver.outgoing import Outgoing
    from penstock.brokers.mqtt.deliver.pages import Page
    from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
    from penstock.brokers.mqtt.subscriptions.interface import Route


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


class Pumped(Protocol):
    """A subscriber that reads what it could not be given live."""

    pump_is_requested: bool

    def pump(self) -> None: ...

    def page_was_read(self, tail: ShardTail) -> None:
        """A read of the log that the subscriber waited for has ended."""
        ...


class DeliveryContext(Protocol):
    unsent_max: int
    """Bytes of output above which QoS 0 is dropped and other messages wait in the log."""
    queues_qos0: bool
    counts: DeliveryCounts

    def now_ms(self) -> int: ...

    def record_latency(self, client_id: str, topic: str, latency_ms: int) -> None:
        """Record how long a client took to acknowledge a message."""
        ...

    def route(self, topic: str) -> Route: ...

    def find_page(self, tail: ShardTail, offset: int) -> Page | None:
        """Return messages from `offset` on if they are in memory."""
        ...

    def read_page(self, tail: ShardTail, offset: int, subscriber: Pumped) -> None:
        """Read messages from `offset` on, and then continue the subscriber."""
        ...

    def request_pump(self, subscriber: Pumped) -> None:
        """Call `subscriber.pump` soon."""
        ...

    def pump_later(self, subscriber: Pumped) -> None:
        """Call `subscriber.pump` when its output may have become shorter."""
        ...

    def load_retained(self, subscriber: Outgoing) -> None:
        """Load more retained messages for the subscriber, and then continue it."""
        ...

    def has_retained(self) -> bool:
        """Say whether all retained messages are known."""
        ...

    def find_retained(self, topic: str) -> Message | None:
        """Return the retained message of a topic."""
        ...

    def write_out(self, subscriber: Outgoing) -> None:
        """Write the row of QoS 2 deliveries, and then call `out_written` with the held packets."""
        ...

    def position_changed(self, subscriber: Outgoing) -> None:
        """Write the position of the subscriber at the next mark."""
        ...
