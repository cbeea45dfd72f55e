"""`BatchWorker`: a thread that works on all that was collected since it last looked."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Final, Generic, TypeVar

BatchT = TypeVar("BatchT")


class BatchWorker(ABC, Generic[BatchT]):
    """Subclasses collect under `_changed` and notify it; `_run_batch` runs without it."""

    def __init__(self, thread_name: str) -> None:
        self._changed: Final = threading.Condition()
        self._is_closed = False
        self._thread: Final = threading.Thread(target=self._run, name=thread_name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Wait for the batch that runs; what else was collected is dropped."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    @abstractmethod
    def _next_batch(self) -> BatchT | None:
        """Return what was collected, or None; the caller holds `_changed`."""

    @abstractmethod
    def _run_batch(self, batch: BatchT) -> None: ...

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_closed and (batch := self._next_batch()) is None:
                    self._changed.wait()
                if self._is_closed:
                    return
            assert batch is not None
            self._run_batch(batch)
