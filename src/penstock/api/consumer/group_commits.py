"""`GroupCommits`: sends the commits of one consumer, again while its group moves.

A node never sends a commit twice: only the consumer knows that it still waits for this one, and has
committed nothing since. `GroupMovedError` says so, and the commit is sent again for about
`REPEAT_S`; the loss of a coordinator is noticed within three seconds.
"""

from __future__ import annotations

from threading import Event
from typing import Final

from penstock.api.backend import Backend
from penstock.api.requests.groups import CommitOffsets
from penstock.errors import GroupMovedError
from penstock.platform.clock import Clock

REPEAT_S: Final = 6.0
_PAUSE_S: Final = 0.1


class GroupCommits:
    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend: Final = backend
        self._clock: Final = clock

    def send(self, request: CommitOffsets) -> None:
        until = self._clock.monotonic() + REPEAT_S
        while True:
            is_last = self._clock.monotonic() >= until
            try:
                self._backend.execute(request)
            except GroupMovedError:
                if is_last:
                    raise
            else:
                return
            self._clock.wait(Event(), _PAUSE_S)
