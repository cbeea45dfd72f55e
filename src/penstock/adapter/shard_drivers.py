"""`ShardDrivers`: the shards of a node with their drivers, for front ends that work by shard.

Kafka resolves each partition once and keeps what it gets; the service for other nodes of a cluster
resolves the shard of each request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from penstock.adapter.engine_adapter import DriverList
from penstock.adapter.shard_handle import ShardHandle
from penstock.adapter.topics.shard_name import build_storage_name
from penstock.engine.handler import StorageEngineHandler
from penstock.engine.routing.storage_cache import StorageCacheManager
from penstock.engine.transactions import StableOffsets
from penstock.meta import Topic


class ShardDrivers:
    def __init__(self, driver_list: DriverList) -> None:
        self.driver_list: Final = driver_list
        self.node_id: Final = driver_list.handler.node_id
        self.storage_cache: Final[StorageCacheManager] = driver_list.handler.cache
        self._engine_storage_handler: Final[StorageEngineHandler] = driver_list.handler
        self.limits: Final[StableOffsets] = driver_list.handler.limits
        """What open and aborted transactions hide from readers of committed records."""
        self.run_transaction_step: Final = driver_list.handler.run_transaction_step
        self.release_readers: Final = driver_list.handler.release_readers
        self.end_waits: Final = driver_list.handler.end_waits

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

    def serve_transaction_steps(
        self, serve: Callable[[str], str], resume: Callable[[Collection[str]], None]
    ) -> None:
        """Let `serve` do this node's part of transactions that other nodes coordinate; `resume`
        is called with shards that this node leads newly."""
        self._engine_storage_handler.transaction_steps = serve
        self._engine_storage_handler.resume_transactions = resume
