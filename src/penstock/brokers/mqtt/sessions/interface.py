"""What the registry of sessions needs of other parts of the front end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
from penstock.brokers.mqtt.sessions.row_reader import SavedRows
from penstock.brokers.mqtt.sessions.row_writer import Row
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

    def ended(self, session: Session) -> None:
        """The session is removed, after its memberships."""
        ...

    def restore(
        self,
        saved: SavedRows,
        sessions: Sequence[Session],
        shards: Sequence[tuple[ShardTail, int]],
    ) -> None:
        """Restore the positions of the groups after `subscribe` for each session. Each shard is at
        its mark, and has the end that it had when it was opened."""
        ...

    def collect_rows(self) -> list[Row]:
        """See `SharedRows` of `sessions.store`; so for the next two."""
        ...

    def rows_written(self) -> None: ...

    def rows_not_written(self) -> None: ...


def is_shared(topic_filter: str) -> bool:
    return topic_filter.startswith(("$share/", "$queue/"))
