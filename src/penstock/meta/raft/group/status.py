"""Where a group stands on a node."""

from __future__ import annotations

from msgspec import Struct

from penstock.meta.storage import log_format as fmt


class RaftStatus(Struct, frozen=True):
    """Where a group stands on this node, for people and tests."""

    name: str
    role: str
    term: int
    leader: int
    commit: int
    applied: int
    first: int
    last: int
    configuration: fmt.Configuration
    progress: tuple[tuple[int, int, int, str, bool], ...] = ()
    """While it leads: (node, matched, next, state, recently heard of)."""


class Hearing:
    """Knows which nodes were heard of within an election timeout. The core forgets this for all of
    them once in such a time, and knows it again with their next messages."""

    def __init__(self, ticks_max: int) -> None:
        self._ticks_max = ticks_max
        self._ticks = 0
        self._heard: dict[int, int] = {}

    def tick(self) -> None:
        self._ticks += 1

    def record(self, node: int) -> None:
        self._heard[node] = self._ticks

    def is_recent(self, node: int) -> bool:
        heard = self._heard.get(node)
        return heard is not None and self._ticks - heard <= self._ticks_max
