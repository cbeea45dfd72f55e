"""A node that proposes commands to logs."""

from __future__ import annotations

from typing import Final

from penstock.platform.clock import Clock


class Proposer:
    """Its id, its clock, and the ids of its requests."""

    def __init__(self, *, node_id: int, clock: Clock) -> None:
        self._node_id: Final = node_id
        self._clock: Final = clock

    def _request_id(self, given: str = "") -> str:
        """Return the id that a request gets, by which a log knows one that is sent again. A single
        node sends each once."""
        return given
