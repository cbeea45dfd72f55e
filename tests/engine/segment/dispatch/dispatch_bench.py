"""What the tests of dispatching stand on: shards, a dispatcher, and a pipeline to break."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from penstock.engine.segment.dispatch.pipeline import DispatchPipeline
from penstock.platform.metrics import SegmentMetrics
from penstock.record import Offset, ShardId, StoredRecord
from penstock.testing import FaultyDisk, ManualClock

DIRECTORY = "penstock/dispatch"
ORDERS = ShardId("orders", 0)
EVENTS = ShardId("events", 1)


class Shards:
    """A store in the fewest lines: per shard its values, its bounds and its holes."""

    def __init__(self) -> None:
        self.values: dict[ShardId, list[bytes]] = {}
        self.earliest: dict[ShardId, int] = {}
        self.commit: dict[ShardId, int] = {}
        self.holes: set[tuple[ShardId, int]] = set()
        self.reads = 0

    def append(self, shard: ShardId, count: int = 1, *, commit: bool = True) -> None:
        values = self.values.setdefault(shard, [])
        values += [f"{shard.name}@{len(values) + n}".encode() for n in range(count)]
        self.earliest.setdefault(shard, 0)
        self.commit.setdefault(shard, 0)
        if commit:
            self.commit[shard] = len(values)

    def read(
        self, shard: ShardId, offset: int, max_records: int, max_size: int
    ) -> list[StoredRecord]:
        self.reads += 1
        values = self.values[shard]
        live = (n for n in range(offset, self.commit[shard]) if (shard, n) not in self.holes)
        return [
            StoredRecord(Offset(n), values[n], None, (), (), 0, None, 0, 0)
            for _, n in zip(range(max_records), live, strict=False)
        ]

    def bounds(self) -> Iterator[tuple[ShardId, int, int]]:
        for shard in list(self.values):
            yield shard, self.earliest[shard], self.commit[shard]

    def live(self, shard: ShardId) -> list[int]:
        first, end = self.earliest[shard], self.commit[shard]
        return [n for n in range(first, end) if (shard, n) not in self.holes]


class Collector:
    """A dispatcher that keeps what it got, by offset, and raises when told to."""

    def __init__(self, name: str = "collector") -> None:
        self._name = name
        self.got: dict[ShardId, dict[int, bytes | None]] = {}
        self.batches: list[tuple[ShardId, list[int]]] = []
        self.broken: set[ShardId] = set()
        self.called = threading.Semaphore(0)

    @property
    def name(self) -> str:
        return self._name

    def dispatch(self, shard: ShardId, records: Sequence[StoredRecord]) -> None:
        if shard in self.broken:
            raise ConnectionError(f"{shard.name} cannot be reached")
        self.batches.append((shard, [record.offset for record in records]))
        self.got.setdefault(shard, {}).update((each.offset, each.value) for each in records)
        self.called.release()

    def offsets(self, shard: ShardId) -> list[int]:
        return sorted(self.got.get(shard, {}))


class Bench:
    """A pipeline without threads, that can be closed, killed and opened again."""

    def __init__(self) -> None:
        self.disk = FaultyDisk()
        self.clock = ManualClock()
        self.shards = Shards()
        self.pipeline = self.open()

    def open(self, *, threads: bool = False) -> DispatchPipeline:
        self.metrics = SegmentMetrics()
        self.pipeline = DispatchPipeline(
            self.disk,
            DIRECTORY,
            read=self.shards.read,
            bounds=self.shards.bounds,
            threads=threads,
            clock=self.clock,
            metrics=self.metrics,
        )
        return self.pipeline
