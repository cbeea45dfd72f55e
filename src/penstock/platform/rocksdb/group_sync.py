"""Shares one sync among all that wait for one.

    writer A ──▶ asks ──▶ leads: syncs ───────────▶ done
    writer B ────────────▶ asks ··· waits ·········▶ leads: syncs for B and C ──▶ done
    writer C ───────────────▶ asks ··· waits ······· ····························▶ done

Whoever asks while no sync runs does one for all who have asked by then. Who asks while one runs
waits for the next: the running one may have begun before this caller's write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final


class GroupSync:
    """Invariant: every request numbered up to `_done` is covered by a sync that began after it."""

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync: Final = sync
        self._changed: Final = threading.Condition()
        self._asked = 0
        self._done = 0
        self._running = False

    def wait(self) -> None:
        """Return when a sync that began after this call has ended well; raise what it raised.

        A failure is told to the caller that led the sync; each of the others then leads one of its
        own, and meets the same failure or its end.
        """
        with self._changed:
            self._asked += 1
            ticket = self._asked
            while self._running and self._done < ticket:
                self._changed.wait()
            if self._done >= ticket:
                return
            self._running = True
            covered = self._asked
        synced = False
        try:
            self._sync()
            synced = True
        finally:
            with self._changed:
                if synced:
                    self._done = covered
                self._running = False
                self._changed.notify_all()
