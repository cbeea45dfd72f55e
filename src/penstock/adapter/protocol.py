"""`StorageAdapter`: the storage operations as brokers see them, on shard names.

The sentences of `engine.contract` hold for every method here; besides:

  * All methods are coroutines, to be awaited on one event loop. None of them holds the loop up for
    a device or another node.
  * Cancelling a call leaves the shard as it was, or as the finished call would have left it, never
    between. The canceller does not learn which.
  * A producer that repeats a cancelled write with the same sequence finds out, and writes it once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from penstock.engine.contract import (
    RECORDS_PER_READ,
    SIZE_PER_READ,
    AdapterOffsetStrategy,
    Compacted,
    Isolation,
    ShardConfig,
    ShardInfo,
    Written,
)
from penstock.meta.client import DEFAULT_NAMESPACE, CommittedOffset
from penstock.record import Offset, Producer, Record, StoredRecord


class StorageAdapter(Protocol):
    """Methods that name a shard raise `UnknownShardError` when it does not exist."""

    async def create_shard(self, shard_name: str, config: ShardConfig) -> None:
        """Create a shard empty; do nothing if it exists with this queue kind."""
        ...

    async def delete_shard(self, shard_name: str) -> None:
        """Forget a shard and its records; do nothing if it does not exist."""
        ...

    async def list_shard(self, topic_id: str | None = None) -> list[str]:
        """Return the names of the shards of a topic, or of all, sorted."""
        ...

    async def write(
        self, shard_name: str, record: Record, *, producer: Producer | None = None
    ) -> Written: ...

    async def batch_write(
        self, shard_name: str, records: Sequence[Record], *, producer: Producer | None = None
    ) -> Written: ...

    async def read_by_offset(
        self,
        shard_name: str,
        offset: Offset,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
        isolation: Isolation = Isolation.COMMITTED,
    ) -> list[StoredRecord]: ...

    async def read_by_tag(
        self,
        shard_name: str,
        tag: str,
        *,
        start_offset: Offset = Offset(0),
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
    ) -> list[StoredRecord]: ...

    async def read_by_key(self, shard_name: str, key: bytes) -> StoredRecord | None: ...

    async def query_by_key(
        self,
        shard_name: str,
        key: bytes,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        limit: int = 64,
    ) -> list[StoredRecord]: ...

    async def delete_by_key(self, shard_name: str, key: bytes) -> int: ...

    async def delete_by_offset(self, shard_name: str, offset: Offset) -> bool: ...

    async def delete_records_before(self, shard_name: str, offset: Offset) -> Offset: ...

    async def get_offset_by_timestamp(
        self, shard_name: str, timestamp_ms: int, strategy: AdapterOffsetStrategy
    ) -> Offset: ...

    async def get_offset_by_group(
        self, group: str, *, namespace: str = DEFAULT_NAMESPACE
    ) -> dict[str, CommittedOffset]:
        """Return what a group has committed, by shard name; unknown group: empty."""
        ...

    async def commit_offset(
        self,
        group: str,
        offsets: Mapping[str, int],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        enable_cache: bool | None = None,
    ) -> None:
        """Commit the next offsets to read of a group, by shard name, all or none."""
        ...

    async def compact(self, shard_name: str) -> Compacted: ...

    async def shard_info(self, shard_name: str) -> ShardInfo: ...
