"""`EngineStorageAdapter`: the driver of one storage type over the engines of the cluster.

The operations are the bound methods of `StorageEngineHandler`, which defines and documents them, so
that the driver adds no call to a write or a read. Those that name a shard raise `UnknownShardError`
when it does not exist. What differs between storage types for a caller, namely what may wait for a
device, is decided here: a front end with an event loop asks `write_may_wait` or `read_may_wait`
first, and calls what may wait through `StorageDriverManager.run_blocking`.
"""

from __future__ import annotations

from typing import Final

from penstock.engine.handler import StorageEngineHandler
from penstock.engine.routing.storage_cache import ShardEntry

MEMORY: Final = "EngineMemory"
SEGMENT: Final = "EngineSegment"
_UNWAITING: Final = frozenset({MEMORY, SEGMENT})
"""Engines that append without a device, as far as the flush mode lets them."""
_ASYNC: Final = "ASYNC_FLUSH"


class EngineStorageAdapter:
    def __init__(self, handler: StorageEngineHandler, storage_type: str) -> None:
        self.storage_type: Final = storage_type
        # Shards
        self.open_shard: Final = handler.open_shard
        self.alter_shard: Final = handler.alter_shard
        self.alter_entry: Final = handler.alter_entry
        self.seal_shard: Final = handler.seal_shard
        self.check_led: Final = handler.check_led
        self.shard_info: Final = handler.shard_info
        self.stable_info: Final = handler.stable_info
        # Writing
        self.write: Final = handler.write
        self.try_write: Final = handler.try_write
        self.native_append: Final = handler.native_append
        self.batch_write: Final = handler.batch_write
        self.batch_write_parts: Final = handler.batch_write_parts
        # Reading
        self.read_by_offset: Final = handler.read_by_offset
        self.read_columns: Final = handler.read_columns
        self.read_by_tag: Final = handler.read_by_tag
        self.read_by_key: Final = handler.read_by_key
        self.query_by_key: Final = handler.query_by_key
        self.get_offset_by_timestamp: Final = handler.get_offset_by_timestamp
        # Deleting
        self.delete_by_key: Final = handler.delete_by_key
        self.delete_by_offset: Final = handler.delete_by_offset
        self.delete_records_before: Final = handler.delete_records_before
        self.compact: Final = handler.compact
        # Kafka batches and transactions
        self.bounds: Final = handler.bounds
        self.epoch_end: Final = handler.epoch_end
        self.write_batch: Final = handler.write_batch
        self.batch_reader: Final = handler.batch_reader
        self.following_engine: Final = handler.following_engine
        self.guard_read: Final = handler.guard_read
        self.end_transaction: Final = handler.end_transaction

    def write_may_wait(self, flush: str, replication: int = 1) -> bool:
        """Say whether a write to such a topic may wait for a device, or for other nodes."""
        return flush != _ASYNC or replication > 1 or self.storage_type not in _UNWAITING

    def read_may_wait(self, entry: ShardEntry, offset: int) -> bool:
        """Say whether a read at `offset` may wait for a device. Only for shards of Kafka batches
        does the segment engine know which positions are in memory."""
        if self.storage_type == MEMORY:
            return False
        reader = self.batch_reader(entry) if entry.topic.holds_batches else None
        return reader is None or not reader.is_hot(entry.id, offset)


class DriverList(dict[str, EngineStorageAdapter]):
    """The drivers by storage type; the first look-up of a type makes its driver."""

    def __init__(self, handler: StorageEngineHandler) -> None:
        super().__init__()
        self.handler: Final = handler

    def __missing__(self, storage_type: str) -> EngineStorageAdapter:
        # `setdefault` is one step: two threads that miss together get the same driver.
        return self.setdefault(storage_type, EngineStorageAdapter(self.handler, storage_type))
