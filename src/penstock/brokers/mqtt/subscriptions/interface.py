"""Subscriptions, and the interfaces between the tree of filters, delivery and subscribers.

A subscriber is a session, or the group of a shared subscription. Delivery looks up the route of a
topic, and calls `deliver` of each subscriber with a run of messages and the subscriber's match:

    topic ──▶ RouteCache ──▶ Route: [(subscriber, Match), …] ──▶ subscriber.deliver(run, match)
                  └── SubscriptionTree.match, on a miss

Everything here is used on the event loop alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from penstock.brokers.mqtt.deliver.encoding import MQTT_5, EncodingClass, encoding_class

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.brokers.mqtt.deliver.run import Run
    from penstock.brokers.mqtt.deliver.shard_tail import ShardTail


class Subscription:
    """One filter of one subscriber, with the options of SUBSCRIBE.

    `filter` is what the client named, `inner` is what the tree matches: the same but for
    `$replay/…`. `since` has, by shard, the offset of the first message that the subscription is
    about, where the subscriber may read older ones.
    """

    __slots__ = (
        "filter",
        "identifier",
        "inner",
        "no_local",
        "qos",
        "retain_as_published",
        "retain_handling",
        "since",
        "start",
    )

    def __init__(
        self,
        filter: str,  # noqa: A002 - the word of the protocol
        qos: int = 0,
        *,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        identifier: int = 0,
        inner: str = "",
        start: str = "",
    ) -> None:
        """`identifier` 0: the subscription has none. `start`: where the history begins that comes
        before live messages, as in `$replay/{start}/…`; empty: there is none."""
        self.filter = filter
        self.inner = inner or filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.retain_handling = retain_handling
        self.identifier = identifier
        self.start = start
        self.since: dict[ShardTail, int] | None = None

    def __repr__(self) -> str:
        return f"Subscription({self.filter!r}, qos={self.qos})"


class Match:
    """What the subscriptions of one subscriber that match a topic ask for together: one copy, of
    the highest QoS, with all identifiers. Matches are shared, and never changed."""

    __slots__ = ("_classes", "identifiers", "no_local", "qos", "retain_as_published")

    def __init__(
        self,
        qos: int,
        *,
        no_local: bool = False,
        retain_as_published: bool = False,
        identifiers: tuple[int, ...] = (),
    ) -> None:
        self.qos: Final = qos
        self.no_local: Final = no_local
        """All of the subscriptions exclude the subscriber's own messages."""
        self.retain_as_published: Final = retain_as_published
        self.identifiers: Final = identifiers
        self._classes: dict[int, EncodingClass] = {}

    def encoding(self, version: int, qos: int) -> EncodingClass:
        """Return how messages are encoded for a client of this version, with this QoS."""
        number = version << 2 | qos
        found = self._classes.get(number)
        if found is None:
            is_5 = version == MQTT_5
            found = self._classes[number] = encoding_class(
                qos,
                self.identifiers if is_5 else (),
                is_5=is_5,
                retain_as_published=self.retain_as_published,
            )
        return found

    def key(self) -> tuple[object, ...]:
        return self.qos, self.no_local, self.retain_as_published, self.identifiers


def match_of(subscriptions: list[Subscription]) -> Match:
    """Return what subscriptions of one subscriber ask for together."""
    if len(subscriptions) == 1:
        only = subscriptions[0]
        return Match(
            only.qos,
            no_local=only.no_local,
            retain_as_published=only.retain_as_published,
            identifiers=(only.identifier,) if only.identifier else (),
        )
    identifiers = sorted({item.identifier for item in subscriptions if item.identifier})
    return Match(
        max(item.qos for item in subscriptions),
        no_local=all(item.no_local for item in subscriptions),
        retain_as_published=any(item.retain_as_published for item in subscriptions),
        identifiers=tuple(identifiers),
    )


class Subscriber(Protocol):
    """A session, or a group that shares a subscription."""

    number: int
    """Unique among subscribers of the node. The number of a session also marks its publishes."""

    def deliver(self, run: Run, match: Match) -> None:
        """Deliver messages of one shard, in order of their offsets. They are committed. Called on
        the event loop; must return within microseconds, and not keep `run`."""
        ...


class Shares(Protocol):
    """What a session has in flight of shared subscriptions, and the groups that it is in."""

    @property
    def in_flight(self) -> Mapping[int, object]:
        """Messages of groups, by packet id."""
        ...

    def acknowledged(self, packet_id: int) -> None:
        """PUBACK or PUBREC has come for a packet id; it may be one of a group's message."""
        ...

    def room_grew(self) -> None:
        """The window or the output has room again."""
        ...

    def match_of(self, packet_id: int) -> Match | None:
        """Return how the message of a group was delivered that has this packet id."""
        ...

    def owners(self) -> list[tuple[int, str]]:
        """Return packet ids and groups of the QoS 2 messages that are in flight."""
        ...

    def delivered(self) -> dict[str, dict[str, list[int]]]:
        """Return, by group and shard, the QoS 2 messages that no mark has as delivered yet."""
        ...


class Route:
    """The subscribers of a topic. Topics with the same few subscribers have the same route."""

    __slots__ = ("_by_number", "entries")

    def __init__(self, entries: list[tuple[Subscriber, Match]]) -> None:
        self.entries: Final = entries
        self._by_number: dict[int, Match] | None = None

    def match_of(self, subscriber: Subscriber) -> Match | None:
        """Return what one subscriber asks for; None: it is not subscribed to the topic."""
        if self._by_number is None:
            self._by_number = {entry.number: match for entry, match in self.entries}
        return self._by_number.get(subscriber.number)


class Tree(Protocol):
    """The filters of all subscribers."""

    def add(self, subscriber: Subscriber, subscription: Subscription) -> None:
        """Add a subscription, or replace the one with the same filter and `inner`."""
        ...

    def remove(self, subscriber: Subscriber, subscription: Subscription) -> bool:
        """Remove a subscription; return whether it was there."""
        ...

    def match(self, topic: str) -> Route:
        """Return who is subscribed to a topic name."""
        ...

    def generation(self, topic: str) -> tuple[int, int]:
        """Return numbers that change when the route of the topic may have changed."""
        ...

    def __len__(self) -> int:
        """Return how many subscriptions there are."""
        ...

    @property
    def incomplete(self) -> int:
        """Matches that were stopped at the limit of steps."""
        ...


class RoutedTopics(Protocol):
    """The routes of recently used topics."""

    def find(self, topic: str) -> Route:
        """Return who is subscribed to a topic name."""
        ...

    def __len__(self) -> int:
        """Return how many topics have a route at hand."""
        ...

    @property
    def misses(self) -> int:
        """How many routes were looked up in the tree."""
        ...
