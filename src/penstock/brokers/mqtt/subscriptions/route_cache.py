"""`RouteCache`: the routes of recently used topics.

A route is valid while the generation of its topic's first level, and that of filters that begin
with a wildcard, stay the same. The cache has two halves: what was used since the last change of
halves is in the young one, and the old one is dropped when the young one is full.
"""

from __future__ import annotations

from typing import Final

from penstock.brokers.mqtt.subscriptions.interface import Route, Tree

_SHARED_ENTRIES_MAX: Final = 8
"""Routes with more subscribers are not compared with others."""

_Cached = tuple[Route, tuple[int, int]]


class RouteCache:
    def __init__(self, tree: Tree, topics_max: int) -> None:
        self._tree: Final = tree
        self._half: Final = max(1, topics_max // 2)
        self._young: dict[str, _Cached] = {}
        self._old: dict[str, _Cached] = {}
        self._shared: dict[tuple[object, ...], Route] = {}
        self.misses = 0

    def find(self, topic: str) -> Route:
        """Return who is subscribed to a topic."""
        cached = self._young.get(topic)
        if cached is not None and cached[1] == self._tree.generation(topic):
            return cached[0]
        return self._find(topic)

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def _find(self, topic: str) -> Route:
        generation = self._tree.generation(topic)
        cached = self._old.pop(topic, None)
        if cached is None or cached[1] != generation:
            self.misses += 1
            cached = (self._share(self._tree.match(topic)), generation)
        if len(self._young) >= self._half:
            self._old = self._young
            self._young = {}
        self._young[topic] = cached
        return cached[0]

    def _share(self, route: Route) -> Route:
        """Return the route of another topic with the same subscribers, so that messages of both
        make one run."""
        if len(route.entries) > _SHARED_ENTRIES_MAX:
            return route
        key = tuple((subscriber.number, match.key()) for subscriber, match in route.entries)
        if len(self._shared) >= self._half:
            self._shared = {}
        kept = self._shared.get(key)
        if kept is None or any(
            mine[0] is not theirs[0]
            for mine, theirs in zip(kept.entries, route.entries, strict=True)
        ):
            kept = self._shared[key] = route
        return kept
