"""Harnesses of Penstock's own engines.

A line in `ENGINES` puts an engine through the conformance suite and through random histories beside
the memory engine (`tests/engine`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.engine.contract import (
    RECORD_SIZE_MAX,
    Capabilities,
    ShardConfig,
    StorageEngine,
)
from penstock.engine.memory import MemoryStorageEngine
from penstock.engine.rocksdb import RocksDBStorageEngine
from penstock.engine.segment import (
    RECORD_OVERHEAD_MAX,
    FileSizes,
    SegmentEngine,
    SegmentSettings,
    SegmentStore,
)
from penstock.record import Flush, QueueKind
from penstock.testing.conformance.harness import EngineHarness

SMALL_SIZES: Final = FileSizes(
    commit_log_file_size=16 << 20,
    consume_queue_file_size=100 * 20,
    batch_queue_file_size=100 * 46,
    index_slots=50,
    index_entries_max=500,
)
"""Queue and index files that roll in every longer test."""


class MemoryHarness(EngineHarness):
    def __init__(self, _: Path) -> None:
        super().__init__()
        self._engine: StorageEngine | None = None

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durable=False, evicts=True, power_safe=False)

    def make(self) -> StorageEngine:
        self._engine = MemoryStorageEngine(self.clock)
        return self._engine

    def reopen(self) -> StorageEngine:
        raise AssertionError("what is only in memory cannot be opened again")

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()


def copy_at_rest(source: Path, target: Path) -> None:
    """Copy a directory at a moment when none of its files comes or goes."""

    def names() -> list[str]:
        return sorted(path.name for path in source.iterdir())

    while True:
        before = names()
        with contextlib.suppress(shutil.Error):
            shutil.copytree(source, target, copy_function=_copy_written)
            if names() == before:
                return
        shutil.rmtree(target, ignore_errors=True)


def _copy_written(source: str, target: str) -> None:
    """Copy a file and leave out what was never written: a killed process leaves such parts of its
    files as they were allocated, and recovery need not read them."""
    with open(source, "rb") as old, open(target, "wb") as new:
        size = new.truncate(os.fstat(old.fileno()).st_size)
        at = 0
        while at < size:
            try:
                at = os.lseek(old.fileno(), at, os.SEEK_DATA)
                end = min(os.lseek(old.fileno(), at, os.SEEK_HOLE), size)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    break  # nothing was written from here on
                end = size  # this file system does not know what was written
            old.seek(at)
            new.seek(at)
            new.write(old.read(end - at))
            at = end
    shutil.copystat(source, target)


class DirectoryHarness(EngineHarness):
    """An engine that keeps all it has in a directory, and hands every write to the operating system
    before it returns."""

    name: str
    """The name of the directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory / self.name
        self._engine: StorageEngine | None = None

    @abstractmethod
    def open_engine(self, directory: str) -> StorageEngine: ...

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durable=True, evicts=False, power_safe=True)

    def make(self) -> StorageEngine:
        self._engine = self.open_engine(str(self._directory))
        return self._engine

    def reopen(self) -> StorageEngine:
        assert self._engine is not None
        self._engine.close()
        return self.make()

    def crash(self) -> StorageEngine:
        """A copy of the files while they are open is what a killed process leaves."""
        copy = self._directory.with_name(f"{self._directory.name}+")
        copy_at_rest(self._directory, copy)
        self.close()
        self._directory = copy
        return self.make()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        shutil.rmtree(self._directory, ignore_errors=True)


class RocksDBHarness(DirectoryHarness):
    name = "rocksdb"

    def open_engine(self, directory: str) -> StorageEngine:
        return RocksDBStorageEngine.open(directory, self.clock)


class SynchronousRocksDBHarness(RocksDBHarness):
    base_config = ShardConfig(flush=Flush.SYNC)


class SegmentHarness(DirectoryHarness):
    name = "segment"

    def open_engine(self, directory: str) -> StorageEngine:
        settings = SegmentSettings(
            sizes=SMALL_SIZES,
            record_size_max=RECORD_SIZE_MAX + RECORD_OVERHEAD_MAX,
            background=False,
            # However full the disk of the machine is that runs this.
            disk_max_used_space_ratio=101,
            disk_space_warning_level_ratio=101,
        )
        store = SegmentStore.open(directory, settings, clock=self.clock)
        return SegmentEngine(store)


class SynchronousSegmentHarness(SegmentHarness):
    base_config = ShardConfig(flush=Flush.SYNC)


class BatchSegmentHarness(SegmentHarness):
    base_config = ShardConfig(kind=QueueKind.BATCH)


ENGINES: Final[dict[str, Callable[[Path], EngineHarness]]] = {
    "memory": MemoryHarness,
    "rocksdb": RocksDBHarness,
    "rocksdb-sync": SynchronousRocksDBHarness,
    "segment": SegmentHarness,
    "segment-batch": BatchSegmentHarness,
    "segment-sync": SynchronousSegmentHarness,
}
