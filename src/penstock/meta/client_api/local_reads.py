"""Bounded-staleness reads: the rows of one node, and how old they may be.

A node cannot know how old its rows are by the messages that it gets: the leader that sends them may
itself have been replaced, and a process that was stopped does not notice. It goes by the last
question to the leader that was confirmed by a majority (Raft's read index): everything that was
acknowledged before the question was put is in its rows. No clock but its own monotonic one counts.

Ages are those at the moment a request comes: a read of age 0 is linearizable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from penstock.meta.state.view import Reader
from penstock.meta.storage.groups import GroupLog

STALENESS_MS: Final = 2_000
"""Default bound of a local read."""

ANY_AGE: Final = (1 << 64) - 1
"""A bound that accepts any age, also an unknown one."""


class LocalRows(NamedTuple):
    rows: Reader
    age_ms: Callable[[], int | None]
    """The rows contain everything that was acknowledged longer before the request than this; None:
    unknown. Call it after the reads."""


class LocalReads(Protocol):
    """A group whose rows can be read as a node has them."""

    def within(self, staleness_ms: int) -> LocalRows:
        """Return rows that contain everything older than the bound. `StaleReadError` if none do."""
        ...


def current(rows: Reader) -> LocalRows:
    """Return linearizable rows."""
    return LocalRows(rows, lambda: 0)


class CurrentReads:
    """The reads of a single node, which are always current."""

    def __init__(self, group: GroupLog[object]) -> None:
        self._group = group

    def within(self, staleness_ms: int) -> LocalRows:  # noqa: ARG002 - it is never stale
        return current(self._group.reader)
