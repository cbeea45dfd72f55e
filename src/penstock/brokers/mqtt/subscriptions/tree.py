"""`SubscriptionTree`: the filters of all subscribers, by level.

Levels are interned: equal texts are one object in all filters. A filter whose first level is a
wildcard does not match topics that begin with `$`.
"""

from __future__ import annotations

from sys import intern
from typing import Final, TypeAlias

from penstock.brokers.mqtt.subscriptions.interface import (
    Match,
    Route,
    Subscriber,
    Subscription,
    match_of,
)
from penstock.platform.log import get_logger

STEPS_MAX: Final = 200_000
"""Nodes that one match visits; routes of topics beyond are incomplete."""
FIRST_LEVELS_MAX: Final = 65_536
"""First levels whose changes are counted one by one."""
_WILDCARDS: Final = frozenset({"+", "#"})

_log: Final = get_logger(__name__)


EntryKey: TypeAlias = int | tuple[int, str]
"""The subscriber's number; with the filter, if that is not what the tree matches."""
Entries: TypeAlias = dict[EntryKey, tuple[Subscriber, Subscription]]


class Node:
    """One level of some filters. `any_rest` has the subscriptions that end with `#` here."""

    __slots__ = ("any_rest", "children", "subscriptions")

    def __init__(self) -> None:
        self.children: dict[str, Node] | None = None
        self.subscriptions: Entries | None = None
        self.any_rest: Entries | None = None

    def is_empty(self) -> bool:
        return not (self.children or self.subscriptions or self.any_rest)


class SubscriptionTree:
    """See `Tree`."""

    def __init__(self, steps_max: int = STEPS_MAX) -> None:
        self._root: Final = Node()
        self._steps_max: Final = steps_max
        self._count = 0
        self._changes = 0
        self._wildcard_change = 0
        self._first_level_changes: Final[dict[str, int]] = {}
        self.incomplete = 0
        """Matches that were stopped at the limit of steps."""

    def __len__(self) -> int:
        return self._count

    def generation(self, topic: str) -> tuple[int, int]:
        first = topic.partition("/")[0]
        return self._wildcard_change, self._first_level_changes.get(first, 0)

    # Changing

    def add(self, subscriber: Subscriber, subscription: Subscription) -> None:
        levels = subscription.inner.split("/")
        node = self._root
        rest = levels.pop() if levels[-1] == "#" else None
        for level in levels:
            if node.children is None:
                node.children = {}
            child = node.children.get(level)
            if child is None:
                child = node.children[intern(level)] = Node()
            node = child
        entries = node.subscriptions if rest is None else node.any_rest
        if entries is None:
            entries = {}
            if rest is None:
                node.subscriptions = entries
            else:
                node.any_rest = entries
        key = _key(subscriber, subscription)
        self._count += key not in entries
        entries[key] = (subscriber, subscription)
        self._changed(subscription.inner)

    def remove(self, subscriber: Subscriber, subscription: Subscription) -> bool:
        levels = subscription.inner.split("/")
        ends_with_rest = levels[-1] == "#"
        if ends_with_rest:
            levels.pop()
        path = [self._root]
        for level in levels:
            child = path[-1].children.get(level) if path[-1].children else None
            if child is None:
                return False
            path.append(child)
        node = path[-1]
        entries = node.any_rest if ends_with_rest else node.subscriptions
        if entries is None or entries.pop(_key(subscriber, subscription), None) is None:
            return False
        self._count -= 1
        if not entries:
            if ends_with_rest:
                node.any_rest = None
            else:
                node.subscriptions = None
        _prune(path, levels)
        self._changed(subscription.inner)
        return True

    def _changed(self, topic_filter: str) -> None:
        self._changes += 1
        first = topic_filter.partition("/")[0]
        if first in _WILDCARDS or len(self._first_level_changes) >= FIRST_LEVELS_MAX:
            self._wildcard_change = self._changes
            self._first_level_changes.clear()
        else:
            self._first_level_changes[first] = self._changes

    # Matching

    def match(self, topic: str) -> Route:
        levels = topic.split("/")
        found: list[Entries] = []
        nodes = [self._root]
        uses_wildcards = not topic.startswith("$")
        steps = 0
        for level in levels:
            steps += len(nodes)
            if steps > self._steps_max:
                self.incomplete += 1
                _log.warning("mqtt_match_incomplete", steps=steps, levels=len(levels))
                nodes = []
                break
            nodes = _descend(nodes, level, found, uses_wildcards=uses_wildcards)
            uses_wildcards = True
        for node in nodes:
            if node.subscriptions is not None:
                found.append(node.subscriptions)
            if node.any_rest is not None:
                found.append(node.any_rest)
        return Route(_combine(found))


def _descend(
    nodes: list[Node], level: str, found: list[Entries], *, uses_wildcards: bool
) -> list[Node]:
    """Return the nodes of the next level; add to `found` what matches all levels from here on."""
    following: list[Node] = []
    for node in nodes:
        if uses_wildcards and node.any_rest is not None:
            found.append(node.any_rest)
        children = node.children
        if children is None:
            continue
        child = children.get(level)
        if child is not None:
            following.append(child)
        if uses_wildcards:
            child = children.get("+")
            if child is not None:
                following.append(child)
    return following


def _key(subscriber: Subscriber, subscription: Subscription) -> EntryKey:
    if subscription.inner == subscription.filter:
        return subscriber.number
    return subscriber.number, subscription.filter


def _prune(path: list[Node], levels: list[str]) -> None:
    """Remove the nodes at the end of the path that nothing needs any more."""
    for depth in range(len(levels), 0, -1):
        if not path[depth].is_empty():
            return
        children = path[depth - 1].children
        assert children is not None
        del children[levels[depth - 1]]
        if not children:
            path[depth - 1].children = None


def _combine(
    found: list[Entries],
) -> list[tuple[Subscriber, Match]]:
    """Return one match for each subscriber."""
    by_number: dict[int, tuple[Subscriber, list[Subscription]]] = {}
    for entries in found:
        for subscriber, subscription in entries.values():
            kept = by_number.get(subscriber.number)
            if kept is None:
                by_number[subscriber.number] = (subscriber, [subscription])
            else:
                kept[1].append(subscription)
    return [(subscriber, match_of(items)) for subscriber, items in by_number.values()]
