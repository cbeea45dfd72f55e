"""Which failures of shards are logged: a step that fails is repeated several times a second."""

from __future__ import annotations

from typing import Final

REPEATED_S: Final = 60.0
"""How often the same failure of a shard is logged."""


class FailureReports:
    def __init__(self) -> None:
        self._last: Final[dict[str, tuple[str, float, int]]] = {}
        """By shard: the reason, when it was logged, and how often it came since."""

    def count(self, now: float, shard: str, reason: str) -> int | None:
        """Count a failure. Return how many like it were not logged if this one is to be, else
        None."""
        last, logged_at, repeated = self._last.get(shard, ("", 0.0, 0))
        if last == reason and now - logged_at < REPEATED_S:
            self._last[shard] = last, logged_at, repeated + 1
            return None
        self._last[shard] = reason, now, 0
        return repeated if last == reason else 0

    def remove(self, shard: str) -> None:
        """The shard is not replicated here any more."""
        self._last.pop(shard, None)
