"""`StorageDriverManager`: what brokers call, by topic name, as coroutines.

    topic name ──▶ topic (BrokerCacheManager) ──▶ driver by storage type (created once, kept)
                       │
                       └──▶ shard by partition: given, in turn, or by key ──▶ driver

`core` has the same operations synchronously; both share routes, counter and engines. Operations on
one shard go through its driver, which decides what runs on the event loop; operations over all
shards of a topic take one thread for all of them, not one each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from penstock.adapter.batch_parts import (
    check_all_written,
    check_batch,
    check_no_producer,
    check_records_are_records,
    cycle_to,
)
from penstock.adapter.engine_adapter import MEMORY, EngineStorageAdapter
from penstock.adapter.locations import Locations, Message
from penstock.adapter.protocol import StorageAdapter
from penstock.adapter.topic_storage import TopicStorage
from penstock.adapter.topics.admin import TopicAdmin, TopicDescription, WantedTopic
from penstock.adapter.topics.cache import BrokerCacheManager
from penstock.adapter.topics.offsets import TopicOffsets, TopicPartition
from penstock.adapter.topics.partitioning import (
    choose_all_by_key,
    group_by_partition,
    offsets_by_choice,
    split_in_turn,
)
from penstock.adapter.topics.routes import TopicRoute
from penstock.adapter.topics.shard_name import build_storage_name
from penstock.engine.contract import (
    RECORDS_PER_READ,
    SIZE_PER_READ,
    AdapterOffsetStrategy,
    Compacted,
    Isolation,
    ShardInfo,
    Written,
)
from penstock.engine.handler import StorageEngineHandler
from penstock.errors import StoreError
from penstock.groups.coordinator import GroupCoordinator
from penstock.meta.client import DEFAULT_NAMESPACE, Topic
from penstock.offsets.manager import OffsetManager
from penstock.platform.blocking_pool import BlockingPool
from penstock.record import Location, Offset, Producer, Record, StoredRecord

T = TypeVar("T")


class StorageDriverManager:
    def __init__(
        self,
        core: TopicStorage,
        admin: TopicAdmin,
        broker_cache: BrokerCacheManager,
        offsets: TopicOffsets,
        pool: BlockingPool,
        groups: GroupCoordinator,
    ) -> None:
        self.core: Final = core
        self.admin: Final = admin
        self.broker_cache: Final = broker_cache
        self.groups: Final = groups
        self.offsets: Final = offsets
        self.offset_manager: Final[OffsetManager] = offsets.manager
        self.engine_storage_handler: Final[StorageEngineHandler] = core.handler
        self.driver_list: Final[dict[str, StorageAdapter]] = {}
        """By storage type."""
        self._pool: Final = pool
        self._building: Final = threading.Lock()

    @property
    def message_seq(self) -> int:
        """How many messages went round, or could have: those of topics with one partition, and
        those whose partition was named, are not counted."""
        return self.core.sequence.value

    async def run_blocking(self, call: Callable[[], T]) -> T:
        """Run a call that may wait for a device in the pool that this manager uses itself."""
        return await self._pool.run(call)

    # Drivers and topics

    def build_driver(self, topic: str, *, namespace: str = DEFAULT_NAMESPACE) -> StorageAdapter:
        """Return the driver of a topic's storage type; the first use makes it."""
        return self._driver(self.broker_cache.get_topic(topic, namespace))

    @staticmethod
    def build_storage_name(topic_id: str, partition: int) -> str:
        """Return the name of a shard: `{topic_id}_{partition}`."""
        return build_storage_name(topic_id, partition)

    async def create_topic_full(
        self,
        topic: str,
        partitions: int = 1,
        options: Mapping[str, object] | None = None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        request_id: str = "",
    ) -> Topic:
        """Create a topic; it can be written to when this returns. See `TopicAdmin`."""
        return await self._pool.run(
            partial(
                self.admin.create_topic_full,
                topic,
                partitions,
                options,
                namespace=namespace,
                request_id=request_id,
            )
        )

    async def create_topics(
        self, wanted: Sequence[WantedTopic], *, namespace: str = DEFAULT_NAMESPACE
    ) -> list[Topic | StoreError]:
        """Create several topics at once; see `TopicAdmin`."""
        return await self._pool.run(partial(self.admin.create_topics, wanted, namespace=namespace))

    async def create_storage_resource(
        self, topic: str, *, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        """Create the shards that a topic still lacks."""
        known = self.broker_cache.get_topic(topic, namespace)
        await self._pool.run(partial(self.admin.create_storage_resource, known))

    async def alter_topic(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        options: Mapping[str, object] | None = None,
        expected_revision: int | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Topic:
        return await self._pool.run(
            partial(
                self.admin.alter_topic,
                topic,
                partitions=partitions,
                options=options,
                expected_revision=expected_revision,
                namespace=namespace,
            )
        )

    async def delete_topic(self, topic: str, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        await self._pool.run(partial(self.admin.delete_topic, topic, namespace=namespace))

    async def describe_topic(
        self, topic: str, *, namespace: str = DEFAULT_NAMESPACE
    ) -> TopicDescription:
        return await self._pool.run(partial(self.admin.describe_topic, topic, namespace=namespace))

    # Writing

    async def write(
        self,
        topic: str,
        record: Record,
        *,
        partition: int | None = None,
        producer: Producer | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Location:
        """Append one record; return where it went."""
        route = self.core.routes.find(topic, namespace)
        if partition is None:
            partition = self.core.choose(route, record, producer)
        driver = self._driver(route.topic)
        written = await driver.write(route.shard(partition), record, producer=producer)
        return Location(partition, written.first)

    async def batch_write(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int | None = None,
        producer: Producer | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Locations:
        """Append records; see `TopicStorage.batch_write`."""
        route = self.core.routes.find(topic, namespace)
        check_batch(records)
        driver, sequence = self._driver(route.topic), self.core.sequence
        if partition is None and route.partitions == 1:
            partition = 0
        if partition is not None:
            name = route.shard(partition)
            written = await driver.batch_write(name, records, producer=producer)
            return Locations((partition,), written.offsets)
        check_no_producer(producer)
        if route.by_key:
            check_records_are_records(records)
            chosen = choose_all_by_key(records, sequence, route.partitions, route.turns)
            parts = group_by_partition(records, chosen)
        else:
            parts = split_in_turn(records, sequence.take(len(records)), route.turns)
            chosen = cycle_to([one for one, _ in parts], len(records))
        results: dict[int, Written | StoreError] = {}
        for one, part in parts:
            try:
                results[one] = await driver.batch_write(route.shards[one], part)
            except StoreError as error:
                results[one] = error
        firsts = check_all_written(route.topic.name, chosen, results)
        return Locations(chosen, list(offsets_by_choice(chosen, firsts)))

    async def batch_write_topics(
        self, batch: Sequence[tuple[str, Record]], *, namespace: str = DEFAULT_NAMESPACE
    ) -> list[Location]:
        """Append records to several topics; see `TopicStorage.batch_write_topics`."""
        return await self._pool.run(
            partial(self.core.batch_write_topics, batch, namespace=namespace)
        )

    # Reading

    async def read_by_offset(
        self,
        topic: str,
        partition: int,
        offset: Offset,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
        isolation: Isolation = Isolation.COMMITTED,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[StoredRecord]:
        route = self.core.routes.find(topic, namespace)
        return await self._driver(route.topic).read_by_offset(
            route.shard(partition),
            offset,
            max_records=max_records,
            max_size=max_size,
            isolation=isolation,
        )

    async def read_by_tag(
        self,
        topic: str,
        tag: str,
        *,
        partition: int | None = None,
        start_offset: Offset | Mapping[int, Offset] = Offset(0),
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[Message]:
        call = partial(
            self.core.read_by_tag,
            topic,
            tag,
            partition=partition,
            start_offset=start_offset,
            max_records=max_records,
            max_size=max_size,
            namespace=namespace,
        )
        return await self._over_all(topic, namespace, call)

    async def read_by_key(
        self, topic: str, key: bytes, *, namespace: str = DEFAULT_NAMESPACE
    ) -> Message | None:
        call = partial(self.core.read_by_key, topic, key, namespace=namespace)
        return await self._over_all(topic, namespace, call)

    async def query_message_by_key(
        self,
        topic: str,
        key: bytes,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        limit: int = 64,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[Message]:
        call = partial(
            self.core.query_message_by_key,
            topic,
            key,
            begin_ms=begin_ms,
            end_ms=end_ms,
            limit=limit,
            namespace=namespace,
        )
        return await self._over_all(topic, namespace, call)

    async def get_offset_by_timestamp(
        self,
        topic: str,
        timestamp_ms: int,
        strategy: AdapterOffsetStrategy = AdapterOffsetStrategy.LATEST,
        *,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> dict[int, Offset]:
        call = partial(
            self.core.get_offset_by_timestamp, topic, timestamp_ms, strategy, namespace=namespace
        )
        return await self._over_all(topic, namespace, call)

    async def shard_info(
        self, topic: str, partition: int, *, namespace: str = DEFAULT_NAMESPACE
    ) -> ShardInfo:
        route = self.core.routes.find(topic, namespace)
        return await self._driver(route.topic).shard_info(route.shard(partition))

    # Deleting

    async def delete_by_key(
        self, topic: str, key: bytes, *, namespace: str = DEFAULT_NAMESPACE
    ) -> int:
        call = partial(self.core.delete_by_key, topic, key, namespace=namespace)
        return await self._over_all(topic, namespace, call)

    async def delete_by_offset(
        self, topic: str, partition: int, offset: Offset, *, namespace: str = DEFAULT_NAMESPACE
    ) -> bool:
        route = self.core.routes.find(topic, namespace)
        return await self._driver(route.topic).delete_by_offset(route.shard(partition), offset)

    async def delete_records_before(
        self, topic: str, partition: int, offset: Offset, *, namespace: str = DEFAULT_NAMESPACE
    ) -> Offset:
        route = self.core.routes.find(topic, namespace)
        name = route.shard(partition)
        return await self._driver(route.topic).delete_records_before(name, offset)

    async def compact(self, topic: str, *, namespace: str = DEFAULT_NAMESPACE) -> Compacted:
        return await self._pool.run(partial(self.core.compact, topic, namespace=namespace))

    # Consumers' offsets, by topic and partition

    async def commit_offset(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        enable_cache: bool | None = None,
    ) -> None:
        """Commit the next offsets to read of a group, all or none."""
        await self._pool.run(
            partial(
                self.offsets.commit_offset,
                group,
                offsets,
                namespace=namespace,
                enable_cache=enable_cache,
            )
        )

    async def get_offset_by_group(
        self, group: str, topics: Sequence[str] | None = None, *, namespace: str = DEFAULT_NAMESPACE
    ) -> dict[TopicPartition, Offset]:
        """Return what a group has committed; partitions without an offset are left out."""
        call = partial(self.offsets.get_offset_by_group, group, topics, namespace=namespace)
        return await self._pool.run(call)

    # Inside

    def _driver(self, topic: Topic) -> StorageAdapter:
        storage_type = topic.config.storage_type
        driver = self.driver_list.get(storage_type)
        if driver is None:
            with self._building:
                driver = self.driver_list.get(storage_type)
                if driver is None:
                    driver = self.driver_list[storage_type] = EngineStorageAdapter(
                        self.engine_storage_handler, storage_type, self.offset_manager, self._pool
                    )
        return driver

    async def _over_all(self, topic: str, namespace: str, call: Callable[[], T]) -> T:
        route: TopicRoute = self.core.routes.find(topic, namespace)
        in_memory = route.topic.config.storage_type == MEMORY
        return call() if in_memory else await self._pool.run(call)
