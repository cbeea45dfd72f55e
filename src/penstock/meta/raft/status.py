"""Where a group stands on a node."""

from __future__ import annotations

from msgspec import Struct

from penstock.meta import log_format as fmt


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
