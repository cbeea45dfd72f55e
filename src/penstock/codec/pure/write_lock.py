"""The lock of the log: one writer at a time."""

from __future__ import annotations

import threading
from types import TracebackType


class WriteLock:
    """See `append_interface.WriteLock`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def acquire(self, timeout_s: float) -> bool:
        return self._lock.acquire(timeout=max(0.0, timeout_s))

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()
