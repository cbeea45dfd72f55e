"""Who syncs the log when several writers wait for the device: one for all.

    writer A ──▶ leads: syncs what is there ──▶ done
    writer B ──────▶ waits ····················▶ leads: syncs for B, C and D ──▶ done
    writers C, D ─────────▶ wait ·················································▶ done

The leader wakes all who waited; those that it covered go, and one of the others leads next. A
waiter holds a lock of its own, released once: cheaper than a condition, which wakes them in turn.
"""

from __future__ import annotations

import threading
from typing import Final


class SyncTurns:
    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._waiting: list[threading.Lock] = []
        self._led = False

    def lead_or_wait(self) -> bool:
        """Return True when the caller is to sync now, and must call `finish`; False when another
        sync has ended since: look whether it was far enough."""
        with self._lock:
            if not self._led:
                self._led = True
                return True
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()
        return False

    def finish(self) -> None:
        """End the turn, however it went, and wake all who waited."""
        with self._lock:
            self._led = False
            waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.release()
