"""`StorageAdapter`: the storage operations of one storage type, on shards.

Front ends get a driver with a route or a shard handle from `StorageDriverManager`. The sentences
of `engine.contract` hold for every method here. All methods are synchronous and may be called from
any thread; most may wait for a device or another node. A front end with an event loop asks
`write_may_wait` or `read_may_wait` first, and calls what may wait through
`StorageDriverManager.run_blocking`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.engine.contract import (
    RECORDS_PER_READ,
    SIZE_PER_READ,
    AdapterOffsetStrategy,
    BatchEngine,
    ColumnQuery,
    Compacted,
    Isolation,
    ShardConfig,
    ShardInfo,
    StorageEngine,
    Written,
)
from penstock.engine.routing.storage_cache import ShardEntry
from penstock.errors import StoreError
from penstock.record import Offset, Producer, Record, ShardId, StoredRecord

if TYPE_CHECKING:
    import pyarrow as pa


class StorageAdapter(Protocol):
    """Methods that name a shard raise `UnknownShardError` when it does not exist."""

    # Waiting

    def write_may_wait(self, flush: str) -> bool:
        """Say whether a write to a topic with this flush mode may wait for a device."""
        ...

    def read_may_wait(self, entry: ShardEntry, offset: int) -> bool:
        """Say whether a read at `offset` may wait for a device."""
        ...

    # Shards

    def open_shard(self, entry: ShardEntry) -> StorageEngine:
        """Create a shard that this node leads in its engine, unless the engine has it."""
        ...

    def alter_shard(self, shard: ShardId, storage_type: str, config: ShardConfig) -> None: ...

    def seal_shard(self, shard_name: str) -> None: ...

    def check_led(self, entry: ShardEntry) -> None:
        """Raise `NotLeaderError` when another node leads the shard."""
        ...

    def shard_info(self, shard_name: str) -> ShardInfo: ...

    def stable_info(self, shard_name: str) -> ShardInfo:
        """Return bounds whose commit offset is that of readers of committed records."""
        ...

    # Writing

    def write(
        self, shard_name: str, record: Record, *, producer: Producer | None = None
    ) -> Written: ...

    def write_at_once(self, shard_name: str, record: Record) -> Written | None:
        """Append a record if that takes microseconds; None: nothing was written."""
        ...

    def batch_write(
        self, shard_name: str, records: Sequence[Record], *, producer: Producer | None = None
    ) -> Written: ...

    def batch_write_parts(
        self, parts: Sequence[tuple[str, Sequence[Record]]]
    ) -> list[Written | StoreError]:
        """Append to several shards, to each all or none, with one sync for all of them."""
        ...

    # Reading

    def read_by_offset(
        self,
        shard_name: str,
        offset: Offset,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
        isolation: Isolation = Isolation.COMMITTED,
    ) -> list[StoredRecord]: ...

    def read_columns(self, shard_name: str, wanted: ColumnQuery) -> list[pa.RecordBatch] | None:
        """Return committed records as Arrow columns; None where only rows can be had."""
        ...

    def read_by_tag(
        self,
        shard_name: str,
        tag: str,
        *,
        start_offset: Offset = Offset(0),
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
    ) -> list[StoredRecord]: ...

    def read_by_key(self, shard_name: str, key: bytes) -> StoredRecord | None: ...

    def query_by_key(
        self,
        shard_name: str,
        key: bytes,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        limit: int = 64,
    ) -> list[StoredRecord]: ...

    def get_offset_by_timestamp(
        self,
        shard_name: str,
        timestamp_ms: int,
        strategy: AdapterOffsetStrategy,
        *,
        isolation: Isolation = Isolation.COMMITTED,
    ) -> Offset: ...

    # Deleting

    def delete_by_key(self, shard_name: str, key: bytes) -> int: ...

    def delete_by_offset(self, shard_name: str, offset: Offset) -> bool: ...

    def delete_records_before(self, shard_name: str, offset: Offset) -> Offset: ...

    def compact(self, shard_name: str) -> Compacted: ...

    # Kafka batches and transactions, on shards that this node leads

    def bounds(self, entry: ShardEntry) -> tuple[int, int]:
        """Return the earliest and the commit offset."""
        ...

    def epoch_end(self, entry: ShardEntry, epoch: int) -> tuple[int, int]:
        """Return the greatest leader epoch that is not above `epoch`, and its end offset."""
        ...

    def write_batch(
        self,
        entry: ShardEntry,
        body: bytes | memoryview,
        count: int,
        *,
        timestamp_ms: int,
        producer: Producer | None = None,
    ) -> Written:
        """Append a checked Kafka batch unchanged; see `BatchEngine`."""
        ...

    def batch_reader(self, entry: ShardEntry) -> BatchEngine | None:
        """Return the reader of a shard's stored Kafka batches; None if it stores records."""
        ...

    def end_transaction(
        self, entry: ShardEntry, producer_id: int, start: Offset, *, is_commit: bool
    ) -> int:
        """Commit or abort what a producer wrote from `start` on."""
        ...
