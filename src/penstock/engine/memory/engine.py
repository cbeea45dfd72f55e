"""The memory engine: the meaning of the storage contract in the fewest lines.

It loses everything at exit. It is also what the other engines are compared with, so clarity wins
over speed here: when this package and another engine disagree, this package is right.

Every shard is bounded in records and in bytes. A write that would pass a bound first drops expired
records, then the oldest of the shard until it is filled by four fifths at most (`evict=True`), or
is refused with `BusyError`. A shard with replicas drops the oldest records when the replicas have
confirmed it; until then it may pass a bound by a quarter.
"""

from __future__ import annotations

from typing import Final

from penstock.codec.validation import check_limit
from penstock.engine.contract import (
    Capabilities,
    ShardConfig,
    TryWriteEngine,
    Written,
)
from penstock.engine.memory.shard import Bounds, MemoryShard
from penstock.engine.row_replica import RowEngine
from penstock.platform.clock import Clock
from penstock.record import Record, ShardId

RECORDS_MAX: Final = 1_000_000
BYTES_MAX: Final = 256 << 20


class MemoryStorageEngine(RowEngine[MemoryShard], TryWriteEngine):
    """`records_max` and `bytes_max` bound each shard whose own configuration says nothing."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        records_max: int = RECORDS_MAX,
        bytes_max: int = BYTES_MAX,
        evict: bool = True,
    ) -> None:
        super().__init__(clock)
        check_limit(records_max, "records_max")
        check_limit(bytes_max, "bytes_max")
        self._bounds: Final = Bounds(records_max, bytes_max, evict)
        self._capabilities: Final = Capabilities(durable=False, evicts=evict, power_safe=False)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def try_write(self, shard: ShardId, record: Record) -> Written | None:
        return self.write(shard, record)

    def sync(self) -> None:
        """Does nothing: memory has nothing to sync, and replicas count for what they have."""

    def _create(self, shard: ShardId, config: ShardConfig) -> MemoryShard:
        return MemoryShard(shard, config, self._bounds, self._clock, self._announce)

    def _delete(self, store: MemoryShard) -> None:
        store.delete()

    def _close(self) -> None:
        self._shards.clear()
