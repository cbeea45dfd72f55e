"""`KafkaBroker`: the services that handlers use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from penstock.adapter import StorageDriverManager
from penstock.adapter.topics import TopicAdmin
from penstock.brokers.kafka.context import RequestContext
from penstock.brokers.kafka.fetch.conversion_cache import ConversionCache
from penstock.brokers.kafka.metrics import KafkaMetrics
from penstock.brokers.kafka.transactions.interface import (
    NoTransactions,
    ProducerKey,
    Transactions,
)
from penstock.brokers.kafka.wire.fields import Fields, Response
from penstock.engine.contract import ShardInfo
from penstock.groups.coordinator import GroupCoordinator
from penstock.meta import DEFAULT_NAMESPACE, GroupCoordinators, MetaClient, Topic
from penstock.offsets import OffsetManager
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger
from penstock.settings import KafkaSettings, Settings

T = TypeVar("T")
NEW_TOPIC: Final[Mapping[str, object]] = {"queue": "batch", "partitioner": "key"}
"""Topics that Kafka clients create store batches unchanged."""

_log: Final = get_logger(__name__)


class KafkaBroker:
    def __init__(
        self,
        drivers: StorageDriverManager,
        meta: MetaClient,
        clock: Clock,
        settings: Settings,
        metrics: KafkaMetrics | None = None,
        coordinators: GroupCoordinators | None = None,
    ) -> None:
        """`coordinators` names the nodes that coordinate groups; None: there is only this one."""
        self.drivers: Final = drivers
        self.run_blocking = drivers.run_blocking
        """Runs a call that may block in a thread of the node's pool."""
        self.admin: Final[TopicAdmin] = drivers.admin
        self.offsets: Final[OffsetManager] = drivers.offset_manager
        self.groups: Final[GroupCoordinator] = drivers.groups
        self.meta: Final = meta
        self.clock: Final = clock
        self.all_settings: Final = settings
        self.settings: Final[KafkaSettings] = settings.kafka
        self.namespace: Final = DEFAULT_NAMESPACE
        self.node_id: Final = drivers.node_id
        self.rack: Final = settings.node.rack
        self.coordinators: Final = (
            coordinators
            if coordinators is not None
            else GroupCoordinators(self.node_id, is_alone=True)
        )
        self.advertised: tuple[str, int] = ("127.0.0.1", self.settings.port)
        """The address in responses; set when the server listens."""
        self.listening_port: int = self.settings.port
        self.conversion_cache: Final = ConversionCache(self.settings.converted_cache_size)
        self.transactions: Transactions = NoTransactions()
        self.enlist_shards: Callable[[ProducerKey, Sequence[str]], Awaitable[int]] | None = None
        """Lets a transaction write to shards that this node leads; returns an error code, or 0."""
        self.init_transactional: Callable[[RequestContext, Fields], Awaitable[Response]] | None = (
            None
        )
        """Serves InitProducerId for a transactional id; the coordinator sets it."""
        self.connection_count: Callable[[], int] = lambda: 0
        self.metrics: Final = metrics if metrics is not None else KafkaMetrics()
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._closers: Final[list[Callable[[], Coroutine[None, None, None]]]] = []

    async def create_topic(self, name: str) -> Topic:
        """Create a topic that a client named, with the configured number of partitions."""
        return await self.run_blocking(
            partial(
                self.admin.create_topic_full,
                name,
                self.all_settings.topics.partitions,
                NEW_TOPIC,
                namespace=self.namespace,
            )
        )

    def shard_info(self, shard_name: str) -> ShardInfo:
        """Return the bounds of a shard, or raise `UnknownShardError`."""
        return self.drivers.open_shard(shard_name).driver.shard_info(shard_name)

    def spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """Run `work` in the background; failures are logged, the server's stop cancels it."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("kafka_task_failed", cause=error, task=task.get_name())

    def on_close(self, close: Callable[[], Coroutine[None, None, None]]) -> None:
        """Await `close` when the server stops, after the last request; the last added first."""
        self._closers.append(close)

    async def close(self) -> None:
        for close in reversed(self._closers):
            await close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10.0)
