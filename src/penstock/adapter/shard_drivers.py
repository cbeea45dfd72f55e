"""`ShardDrivers`: the shards of a node with their drivers, for front ends that work by shard.

Kafka resolves each partition once and keeps what it gets; the service for other nodes of a cluster
resolves the shard of each request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.adapter.engine_adapter import DriverList
from penstock.adapter.shard_handle import ShardHandle
from penstock.adapter.topics.shard_name import build_storage_name
from penstock.engine.handler import StorageEngineHandler
from penstock.engine.routing.storage_cache import StorageCacheManager
from penstock.engine.transactions.stable_offsets import StableOffsets
from penstock.meta import Topic


class ShardDrivers:
    def __init__(self, driver_list: DriverList) -> None:
        self.driver_list: Final = driver_list
        self.node_id: Final = driver_list.handler.node_id
        self.storage_cache: Final[StorageCacheManager] = driver_list.handler.cache
        self._engine_storage_handler: Final[StorageEngineHandler] = driver_list.handler

    def open_partition(self, topic: Topic, partition: int) -> ShardHandle | None:
        """Return the shard of a partition; None while it is not created."""
        entry = self.storage_cache.shards.get(build_storage_name(topic.topic_id, partition))
        if entry is None:
            return None
        return ShardHandle(entry, self.driver_list[topic.config.storage_type])

    def open_shard(self, shard_name: str) -> ShardHandle:
        """Return a shard, or raise `UnknownShardError`."""
        entry = self._engine_storage_handler.find(shard_name)
        return ShardHandle(entry, self.driver_list[entry.topic.storage_type])

    # Transactions

    @property
    def limits(self) -> StableOffsets:
        """What open and aborted transactions hide from readers of committed records."""
        return self._engine_storage_handler.limits

    def serve_transaction_steps(self, serve: Callable[[str], str]) -> None:
        """Let `serve` do this node's part of transactions that other nodes coordinate."""
        self._engine_storage_handler.transaction_steps = serve

    def run_transaction_step(self, node_id: int, step: str) -> str:
        """Have a node, this one or another, do its part of a transaction; return its response."""
        return self._engine_storage_handler.take_transaction_step(node_id, step)

    def release_readers(self, shard_name: str) -> None:
        """Wake those that wait for records of a shard: a transaction that hid some has ended."""
        self._engine_storage_handler.note_released(shard_name)
