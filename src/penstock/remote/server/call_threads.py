"""The threads of the gRPC server, and how long calls have waited for one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class CallThreads(ThreadPoolExecutor):
    """A pool that knows whether it is used up."""

    def __init__(self, threads_max: int, name: str = "penstock-rpc") -> None:
        super().__init__(threads_max, thread_name_prefix=name)
        self.threads_max: Final = threads_max
        self.name: Final = name
        self._counting: Final = threading.Lock()
        self._waiting = 0
        self._waiting_since = 0.0

    def waiting(self) -> tuple[int, float]:
        """Return how many calls have no thread, and for how many seconds there have been such."""
        with self._counting:
            if not self._waiting:
                return 0, 0.0
            return self._waiting, time.monotonic() - self._waiting_since

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        with self._counting:
            if not self._waiting:
                self._waiting_since = time.monotonic()
            self._waiting += 1

        def run() -> T:
            with self._counting:
                self._waiting -= 1
            return fn(*args, **kwargs)

        try:
            return super().submit(run)
        except RuntimeError:  # shut down
            with self._counting:
                self._waiting -= 1
            raise
