"""What a handler of the metadata state machine gets besides its command, and what it gives back."""

from __future__ import annotations

from msgspec import Struct

from penstock.meta.state.answers import Head
from penstock.meta.state.metadata.commands import Event, Result


class Moment(Struct, frozen=True):
    """When a command is applied: the time it carries, and the revision it will have."""

    time_ms: int
    revision: int
    head: Head
    """Counters that the handler may move."""


class Change(Struct, frozen=True):
    """What a command did. A handler that answers `Rejected` must not have changed any row."""

    result: Result
    events: tuple[Event, ...] = ()
