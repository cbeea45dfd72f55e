"""Group commit: one sync for all callers that wait for one.

    writer A ──▶ asks ──▶ leads: syncs ───────────▶ done
    writer B ────────────▶ asks ··· waits ·········▶ leads: syncs for B and C ──▶ done
    writer C ───────────────▶ asks ··· waits ······· ····························▶ done

A caller that finds no sync running runs one for all callers so far. A caller that finds one running
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
        """Return when a sync that began after this call has succeeded; raise its error.

        The caller that ran a failed sync gets the error; each of the others then runs one of its
        own, with its own result.
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
