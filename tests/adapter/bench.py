"""A node's storage layer on simulated databases and a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Self

from tests.meta.simulated_database import SimulatedDatabase

from penstock.adapter.driver_manager import StorageDriverManager
from penstock.adapter.engine_adapter import DriverList
from penstock.adapter.topics.admin import TopicAdmin
from penstock.adapter.topics.cache import BrokerCacheManager
from penstock.adapter.topics.offsets import TopicOffsets
from penstock.adapter.topics.routes import TopicRoutes
from penstock.engine.contract import ShardConfig, StorageEngine
from penstock.engine.engine_set import EngineSet
from penstock.engine.handler import StorageEngineHandler
from penstock.engine.memory import MemoryStorageEngine
from penstock.engine.routing.storage_cache import StorageCacheManager
from penstock.errors import StoreError
from penstock.groups.coordinator import GroupCoordinator
from penstock.meta.client import Update
from penstock.meta.standalone.client import StandaloneMetaClient
from penstock.offsets.config import CACHE_FAMILY
from penstock.offsets.manager import OffsetManager
from penstock.platform.calls.blocking_pool import BlockingPool
from penstock.record import ShardId
from penstock.testing import ManualClock

EngineMaker = Callable[[ManualClock], StorageEngine]


async def until(condition: Callable[[], object]) -> None:
    """Wait, for a while, until a condition holds that another thread makes true."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("this takes too long")


class FlakyEngine(MemoryStorageEngine):
    """Fails to create, or delete, a shard of certain partitions."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.fails_at: dict[int, StoreError] = {}
        self.fails_to_delete: StoreError | None = None
        self.fails_to_delete_at: dict[int, StoreError] = {}

    def create_shard(self, shard: ShardId, config: ShardConfig) -> None:
        if shard.partition in self.fails_at:
            raise self.fails_at[shard.partition]
        super().create_shard(shard, config)

    def delete_shard(self, shard: ShardId) -> None:
        if self.fails_to_delete is not None:
            raise self.fails_to_delete
        if shard.partition in self.fails_to_delete_at:
            raise self.fails_to_delete_at[shard.partition]
        super().delete_shard(shard)


class Bench:
    def __init__(self, engines: Mapping[str, EngineMaker] | None = None) -> None:
        self.clock = ManualClock()
        self.engine = FlakyEngine(self.clock)
        self.is_deaf = False
        """True: the node hears nothing of changes of the metadata."""
        self.unheard: list[Update] = []
        self.meta = StandaloneMetaClient(SimulatedDatabase(), clock=self.clock)
        cache = SimulatedDatabase(families=(CACHE_FAMILY,))
        self.offset_manager = OffsetManager(self.meta, cache, clock=self.clock)
        self.storage_cache = StorageCacheManager(self.clock)
        self.broker_cache = BrokerCacheManager(self.clock)
        makers: Mapping[str, EngineMaker] = engines or {"EngineMemory": lambda _: self.engine}
        self.engines = EngineSet({kind: partial(make, self.clock) for kind, make in makers.items()})
        self.handler = StorageEngineHandler(
            self.storage_cache, self.engines, node_id=self.meta.node_id, clock=self.clock
        )
        self.drivers = DriverList(self.handler)
        self.routes = TopicRoutes(self.broker_cache, self.storage_cache, self.drivers)
        self.offsets = TopicOffsets(self.offset_manager, self.routes)
        self.admin = TopicAdmin(
            self.meta, self.handler, self.broker_cache, self.routes, self.offset_manager
        )
        self.pool = BlockingPool(threads=4)
        self.groups = GroupCoordinator(self.clock)
        self.manager = StorageDriverManager(
            self.routes,
            self.admin,
            self.offsets,
            self.pool,
            self.groups,
        )
        self.meta.watch(0, self.take_over)

    def take_over(self, update: Update) -> None:
        if self.is_deaf:
            self.unheard.append(update)
            return
        self.storage_cache.apply(update)
        self.broker_cache.apply(update)
        self.routes.apply(update)

    def create(self, name: str, partitions: int = 1, **options: object) -> str:
        """Create a topic in memory and return its id."""
        topic = self.admin.create_topic_full(name, partitions, {"storage": "memory", **options})
        return topic.topic_id

    def close(self) -> None:
        self.pool.close()
        self.offset_manager.stop()
        self.engines.close()
        self.meta.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
