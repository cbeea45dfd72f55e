"""`ShardTurns`: which shards a tick looks at.

A tick looks at a part of the shards when they are many, so that an idle node with thousands does
little.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

TURN_MIN: Final = 32
TURNS: Final = 20
"""In how many ticks a node looks at all of its shards, when they are many."""


class ShardTurns:
    def __init__(self) -> None:
        self._left: list[str] = []
        """Shards that ticks have yet to look at in this round."""

    def next(self, leaders: Collection[str], followers: Collection[str]) -> list[str]:
        """Return the shards for the next tick."""
        if not self._left:
            self._left = [*leaders, *followers]
        count = max(TURN_MIN, (len(leaders) + len(followers)) // TURNS)
        turn, self._left = self._left[-count:], self._left[:-count]
        return turn
