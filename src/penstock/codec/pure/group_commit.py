"""Group commit: one writer syncs the log for all writers that wait for the device.

    writer A ──▶ leads: syncs what is there ──▶ done
    writer B ──────▶ waits ····················▶ leads: syncs for B, C and D ──▶ done
    writers C, D ─────────▶ wait ·················································▶ done

The leader wakes all waiters; those that its sync covered return, and one of the others leads next.
A waiter holds a lock of its own, released once: cheaper than a condition, which wakes them in turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.codec import append_interface as interface


class GroupCommit:
    """See `append_interface.GroupCommit`."""

    def __init__(self, durable: int) -> None:
        self._durable = durable
        self._lock = threading.Lock()
        self._waiting: list[threading.Lock] = []
        self._led = False

    @property
    def durable(self) -> int:
        return self._durable

    def set_durable(self, durable: int) -> None:
        self._durable = durable

    def sync_natively(
        self,
        appender: interface.Appender,
        synced: Callable[[int, int, list[float]], None],
        failed: Callable[[str], None],
    ) -> None:
        """Unused: here everything is synced through `Disk`."""

    def wait(self, position: int, sync: Callable[[], int]) -> None:
        while self._durable < position:
            if not self._lead_or_wait():
                continue
            try:
                # Another sync may have ended between the check and the lead.
                if self._durable < position:
                    self._durable = max(self._durable, sync())
            finally:
                self._finish()

    def _lead_or_wait(self) -> bool:
        """Return True when the caller is to sync now, and must call `_finish`; False when another
        sync has ended since: check whether it was far enough."""
        with self._lock:
            if not self._led:
                self._led = True
                return True
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()
        return False

    def _finish(self) -> None:
        """End the lead, whatever the result, and wake all waiters."""
        with self._lock:
            self._led = False
            waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.release()
