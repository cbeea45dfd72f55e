"""Reads of what one node has, and how old that may be.

A node cannot know how old its rows are by the messages that it gets: the leader that sends them may
itself have been replaced, and a process that was stopped does not notice. It goes by the last
question to the leader that was confirmed by a majority (Raft's read index): everything that was
acknowledged before the question was put is in its rows. No clock but its own monotonic one counts.

Ages are those at the moment a request comes: a read of age 0 is linearizable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from penstock.meta.standalone.group import GroupLog
from penstock.meta.state.view import Reader

STALENESS_MS: Final = 2_000
"""What a local read may lack, where the request does not say."""

ANY_AGE: Final = (1 << 64) - 1
"""As a bound: however old, also when that is not known."""


class LocalRows(NamedTuple):
    rows: Reader
    age_ms: Callable[[], int | None]
    """What was acknowledged anywhere earlier than so long before the request is in what was read;
    None: it is not known. To be asked after the reading."""


class LocalReads(Protocol):
    """A group that can be read as a node has it."""

    def within(self, staleness_ms: int) -> LocalRows:
        """Return rows that lack nothing older than that. `StaleReadError` when there are none."""
        ...


def current(rows: Reader) -> LocalRows:
    """Return rows that lack nothing."""
    return LocalRows(rows, lambda: 0)


class CurrentReads:
    """Where every read sees everything: a single node."""

    def __init__(self, group: GroupLog[object]) -> None:
        self._group = group

    def within(self, staleness_ms: int) -> LocalRows:  # noqa: ARG002 - it is never stale
        return current(self._group.reader)
