"""What the registry of sessions needs of other parts of the front end."""

from __future__ import annotations

from typing import Protocol

from penstock.brokers.mqtt.sessions.session import Session, WillRecord
from penstock.brokers.mqtt.subscriptions.interface import Subscription


class WillPublisher(Protocol):
    async def publish_will(self, session: Session, will: WillRecord) -> bool:
        """Publish a will; return whether it was stored, or can never be. False: the registry tries
        again. Records of persistent sessions carry the receipt (session number, `will.token`)."""
        ...


class SharedSubscriptions(Protocol):
    """The groups of `$share/{group}/{filter}` and `$queue/{filter}`."""

    def subscribe(self, session: Session, subscription: Subscription) -> int:
        """Add a member to a group; return the reason code of SUBACK."""
        ...

    def unsubscribe(self, session: Session, topic_filter: str) -> None:
        """Remove a member from a group."""
        ...

    def attached(self, session: Session) -> None:
        """A client has connected to the session."""
        ...

    def detached(self, session: Session) -> None:
        """The connection of the session has ended."""
        ...


def is_shared(topic_filter: str) -> bool:
    return topic_filter.startswith(("$share/", "$queue/"))
