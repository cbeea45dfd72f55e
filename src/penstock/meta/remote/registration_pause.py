"""`RegistrationPause`: how long a fenced node waits before it registers again.

A node that heard from the leader of the metadata under its last registration does not wait. One
that did not cannot be reached by the others, although it reaches them: each registration would
give it shards for some seconds. Its pauses double, up to `PAUSE_MAX_S`.
"""

from __future__ import annotations

from typing import Final

from penstock.platform.clock import Clock

PAUSE_MIN_S: Final = 2.0
PAUSE_MAX_S: Final = 30.0


class RegistrationPause:
    """`registered`, `answered`, `fenced` as they happen; one thread calls."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._pause_s = 0.0
        self._until: float | None = None
        """When the pause ends that is under way."""
        self._has_heard = True

    def registered(self) -> None:
        self._has_heard = False
        self._until = None

    def answered(self) -> None:
        self._has_heard = True
        self._pause_s = 0.0

    def fenced(self) -> float:
        """Return for how many seconds this fenced node does not register yet."""
        if self._has_heard:
            return 0.0
        now = self._clock.monotonic()
        if self._until is None:
            self._pause_s = min(PAUSE_MAX_S, max(PAUSE_MIN_S, 2 * self._pause_s))
            self._until = now + self._pause_s
        return max(0.0, self._until - now)
