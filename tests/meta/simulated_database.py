"""A `Database` in memory that loses what a real one may lose.

A killed process loses nothing that `write` returned for. A power cut keeps what a sync covered and
any prefix of the batches behind it, each whole: RocksDB promises that much, and no more. From the
operation `stop_at` on nothing is done any more: that is where the crash is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.errors import BusyError, DiskFailedError, DiskFullError, StoreError
from penstock.meta.state.view import MemoryView, Row
from penstock.meta.storage.database import Batch
from penstock.meta.storage.log_format import FAMILIES

_LAST = b"\xff" * 64


class SimulatedDatabase:
    def __init__(
        self, batches: list[Batch] | None = None, families: tuple[str, ...] = FAMILIES
    ) -> None:
        self._families = families
        self._views = {family: MemoryView() for family in families}
        self.batches: list[Batch] = []
        self.synced = 0
        self.operations: list[str] = []
        self.stop_at: int | None = None
        self.is_done_at_stop = False
        self.failures: dict[str, list[StoreError]] = {"write": [], "sync": []}
        self.is_closed = False
        self.is_full = False
        for batch in batches or []:
            self._perform(batch)
        self.synced = len(self.batches)

    @property
    def path(self) -> str:
        return "simulated"

    def get(self, family: str, key: bytes) -> bytes | None:
        return self._views[family].get(key)

    def scan(self, family: str, start: bytes, end: bytes) -> Iterator[Row]:
        yield from list(self._views[family].scan(start, end))

    def put(self, family: str, key: bytes, value: bytes) -> None:
        batch = Batch()
        batch.put(family, key, value)
        self.write(batch)

    def putter(self, family: str) -> Callable[[bytes, bytes], None]:
        return lambda key, value: self.put(family, key, value)

    def write(self, batch: Batch) -> None:
        is_last = self._step("write")
        if not is_last or self.is_done_at_stop:
            self._perform(batch)
        if is_last:
            raise DiskFailedError(self.path, "the power is gone")

    def sync(self) -> None:
        is_last = self._step("sync")
        if not is_last or self.is_done_at_stop:
            self.synced = len(self.batches)
        if is_last:
            raise DiskFailedError(self.path, "the power is gone")

    def check_room(self, size: int) -> None:
        if self.is_full:
            raise full()

    def close(self) -> None:
        self.is_closed = True

    def fail_next(self, operation: str, error: StoreError) -> None:
        self.failures[operation].append(error)

    def after_kill(self) -> SimulatedDatabase:
        """Everything written is there, and what was not synced still is not."""
        survivor = SimulatedDatabase(self.batches, self._families)
        survivor.synced = self.synced
        return survivor

    def after_power_cut(self, unsynced_kept: int = 0) -> SimulatedDatabase:
        return SimulatedDatabase(self.batches[: self.synced + unsynced_kept], self._families)

    def rows(self, family: str) -> list[Row]:
        return list(self._views[family].scan(b"", _LAST))

    def _step(self, operation: str) -> bool:
        """Note an operation; return whether the machine stops at it."""
        number = len(self.operations)
        self.operations.append(operation)
        if self.stop_at is not None and number > self.stop_at:
            raise DiskFailedError(self.path, "the power is gone")
        if self.failures[operation]:
            raise self.failures[operation].pop(0)
        return number == self.stop_at

    def _perform(self, batch: Batch) -> None:
        for kind, family, key, value in batch.operations:
            view = self._views[family]
            if kind == "put":
                view.put(key, value)
            elif kind == "delete":
                view.delete(key)
            else:
                for found, _ in list(view.scan(key, value)):
                    view.delete(found)
        self.batches.append(batch)


def busy() -> StoreError:
    return BusyError("simulated: no room for writes")


def full() -> StoreError:
    return DiskFullError("simulated: No space left on device")


def broken() -> StoreError:
    return DiskFailedError("simulated", "the device failed")
