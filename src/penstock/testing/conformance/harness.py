"""How the conformance suite gets at an engine, and the few words its tests are written with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Final

import pytest
from msgspec.structs import replace

from penstock.engine.contract import (
    Capabilities,
    Cleanup,
    ShardConfig,
    ShardInfo,
    StorageEngine,
)
from penstock.record import Offset, Record, ShardId, StoredRecord
from penstock.testing.manual_clock import ManualClock

SHARD: Final = ShardId("orders", 0)
FIRST: Final = Offset(0)
FAR: Final = Offset(1 << 70)
"""An offset, limit or time past anything an engine can hold."""


class EngineHarness(ABC):
    """Makes engines for one test.

    The engines take `clock` for everything they do with time: stamping and expiry. `base_config`
    is what every shard of the suite is created with, but for what a test changes: a second
    subclass with another one (a batch queue, synchronous flush) runs the suite for that, too.
    """

    base_config: ShardConfig = ShardConfig()

    def __init__(self) -> None:
        self.clock = ManualClock()

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What the engine declares."""

    @abstractmethod
    def make(self) -> StorageEngine:
        """Return an engine without any shard; called once, first."""

    @abstractmethod
    def reopen(self) -> StorageEngine:
        """Close the engine and return another on the same data; only called when durable."""

    def crash(self) -> StorageEngine:
        """Return an engine on the data as the death of the process at this moment leaves it.

        Where that cannot be had in one process, a clean restart must do.
        """
        return self.reopen()

    @abstractmethod
    def close(self) -> None:
        """Close whichever engine is open, and remove the data."""

    def config(
        self,
        *,
        cleanup: Cleanup = Cleanup.DELETE,
        record_size_max: int | None = None,
        memory_records_max: int | None = None,
    ) -> ShardConfig:
        base = self.base_config
        return replace(
            base,
            cleanup=cleanup,
            record_size_max=record_size_max or base.record_size_max,
            memory_records_max=memory_records_max or base.memory_records_max,
        )


class Conformance:
    """The fixtures that every part of the suite uses."""

    @pytest.fixture
    def harness(self) -> EngineHarness:
        raise NotImplementedError("define a fixture `harness` that returns your EngineHarness")

    @pytest.fixture
    def engine(self, harness: EngineHarness) -> Iterator[StorageEngine]:
        """An engine with one empty shard."""
        engine = harness.make()
        engine.create_shard(SHARD, harness.config())
        yield engine
        harness.close()

    @pytest.fixture
    def compacted(self, harness: EngineHarness, engine: StorageEngine) -> ShardId:
        """An empty shard that keeps the newest record of each key."""
        shard = ShardId("compacted", 0)
        engine.create_shard(shard, harness.config(cleanup=Cleanup.COMPACT))
        return shard


def offsets(records: Iterable[StoredRecord]) -> list[int]:
    return [record.offset for record in records]


def values(records: Iterable[StoredRecord]) -> list[bytes | None]:
    return [record.value for record in records]


def put(engine: StorageEngine, *contents: bytes | Record, shard: ShardId = SHARD) -> int:
    """Write records one by one; return the offset of the last."""
    last = -1
    for content in contents:
        record = content if isinstance(content, Record) else Record(value=content)
        last = engine.write(shard, record).first
    return last


def read_all(
    engine: StorageEngine, shard: ShardId = SHARD, *, max_records: int = 1_000
) -> list[StoredRecord]:
    """Read a shard from its start, page by page."""
    records: list[StoredRecord] = []
    start = FIRST
    while page := engine.read_by_offset(shard, start, max_records=max_records):
        records += page
        start = Offset(page[-1].offset + 1)
    return records


def bounds(engine: StorageEngine, shard: ShardId = SHARD) -> tuple[int, int]:
    """Return the earliest and the next writable offset."""
    info: ShardInfo = engine.shard_info(shard)
    return info.earliest, info.latest
