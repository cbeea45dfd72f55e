"""Harnesses of Penstock's own engines.

A line in `ENGINES` puts an engine through the conformance suite and through random histories beside
the memory engine (`tests/engine`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.engine.contract import Capabilities, StorageEngine
from penstock.engine.memory import MemoryStorageEngine
from penstock.testing.conformance.harness import EngineHarness


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


ENGINES: Final[dict[str, Callable[[Path], EngineHarness]]] = {
    "memory": MemoryHarness,
}
