"""`StorageDriverManager`: the way in to the storage of a node, for every front end.

    embedded, gRPC   topic name ──▶ route (topic, driver, shards; kept until the topic changes)
                                      └──▶ driver (`EngineStorageAdapter`) ──▶ engine handler
    Kafka            topic, partition ──▶ shard handle (entry, driver), kept per partition
                                      └──▶ driver ──▶ engine handler

Frequent operations are methods; `execute` runs all others, which are defined in `requests` and
`penstock.api.requests`. Methods are synchronous and may be called from any thread. A front end with
an event loop runs what may wait for a device through `run_blocking`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from penstock.adapter.batch_parts import (
    check_all_written,
    check_batch,
    check_no_producer,
    check_records_are_records,
    cycle_to,
    gravest,
)
from penstock.adapter.leader_changes import UNDONE, LeaderChanges
from penstock.adapter.locations import Locations
from penstock.adapter.record_watch import RecordPositions, RecordWatch
from penstock.adapter.requests import StoreRequest
from penstock.adapter.shard_drivers import ShardDrivers
from penstock.adapter.topics.admin import TopicAdmin
from penstock.adapter.topics.cache import BrokerCacheManager
from penstock.adapter.topics.offsets import TopicOffsets
from penstock.adapter.topics.partitioning import (
    MessageSequence,
    Parts,
    choose_all_by_key,
    choose_by_key,
    group_by_partition,
    offsets_by_choice,
    offsets_in_turn,
    split_in_turn,
)
from penstock.adapter.topics.routes import TopicRoute, TopicRoutes
from penstock.engine.contract import (
    RECORDS_PER_READ,
    SIZE_PER_READ,
    Acks,
    Isolation,
    ShardInfo,
    Written,
)
from penstock.errors import PartialWriteError, StoreError
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.routing import GroupRouter
from penstock.meta import DEFAULT_NAMESPACE
from penstock.offsets import OffsetManager
from penstock.platform.calls.blocking_pool import BlockingPool
from penstock.record import Location, Offset, Producer, Record, StoredRecord

T = TypeVar("T")


class StorageDriverManager(ShardDrivers):
    def __init__(
        self,
        routes: TopicRoutes,
        admin: TopicAdmin,
        offsets: TopicOffsets,
        pool: BlockingPool,
        groups: GroupCoordinator,
    ) -> None:
        super().__init__(routes.drivers)
        self.broker_cache: Final[BrokerCacheManager] = routes.topics
        self.offset_manager: Final[OffsetManager] = offsets.manager
        self.routes: Final = routes
        self._resolved: Final = routes.resolved  # saves a call for each record
        self.admin: Final = admin
        self.offsets: Final = offsets
        self.groups: Final = groups
        self.group_router: Final = GroupRouter(groups)
        self._sequence: Final = MessageSequence()
        self._pool: Final = pool
        self._leader_changes: Final = LeaderChanges(self._engine_storage_handler)

    @property
    def message_seq(self) -> int:
        """How many messages were written without a partition that the caller named."""
        return self._sequence.value

    async def run_blocking(self, call: Callable[[], T]) -> T:
        """Run a call that may wait for a device in the node's pool of threads."""
        return await self._pool.run(call)

    def execute(self, request: StoreRequest[T]) -> T:
        """Run a request of any type."""
        return request.run(self)

    # Writing

    def write(
        self,
        topic: str,
        record: Record,
        *,
        partition: int | None = None,
        producer: Producer | None = None,
        acks: Acks = Acks.ALL,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Location:
        """Append one record; return where it went. On a replicated topic `acks` says which replicas
        have it then."""
        try:
            route = self._resolved[namespace, topic]
        except (KeyError, TypeError):
            route = self.routes.find(topic, namespace)
        if partition is not None:
            name = route.shard(partition)
        elif route.partitions == 1:
            self._sequence.next()
            partition, name = 0, route.shards[0]
        else:
            check_no_producer(producer)
            partition = _choose(self._sequence.next(), route, record)
            name = route.shards[partition]
        try:
            written = route.driver.write(name, record, producer=producer, acks=acks)
        except UNDONE as error:
            call = partial(route.driver.write, name, record, producer=producer, acks=acks)
            written = self._leader_changes.repeat(name, error, call)
        return Location(partition, written.first)

    def try_write(
        self,
        topic: str,
        record: Record,
        *,
        partition: int | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Location | None:
        """Append one record if that takes microseconds; None: nothing was written, and
        `message_seq` did not advance."""
        try:
            route = self._resolved[namespace, topic]
        except (KeyError, TypeError):
            route = self.routes.find(topic, namespace)
        if route.may_wait:
            return None
        is_named = partition is not None
        if partition is None:
            is_single = route.partitions == 1
            partition = 0 if is_single else _choose(self._sequence.value, route, record)
        written = route.driver.try_write(route.shard(partition), record)
        if written is None:
            return None
        if not is_named:
            self._sequence.next()
        return Location(partition, written.first)

    def batch_write(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int | None = None,
        producer: Producer | None = None,
        acks: Acks = Acks.ALL,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Locations:
        """Append records, each to a partition of its own choice unless `partition` is given; per
        shard all or none. Returns where they went, in their order. Raises `PartialWriteError`
        when some shards took theirs and others did not."""
        route = self.routes.find(topic, namespace)
        check_batch(records)
        if partition is None and route.partitions > 1:
            return self._batch_write_split(route, records, producer)
        if partition is None:
            self._sequence.add(len(records))
            partition = 0
        name = route.shard(partition)
        call = partial(route.driver.batch_write, name, records, producer=producer, acks=acks)
        try:
            written = call()
        except UNDONE as error:
            written = self._leader_changes.repeat(name, error, call)
        return Locations((partition,), written.offsets)

    def _batch_write_split(
        self, route: TopicRoute, records: Sequence[Record], producer: Producer | None
    ) -> Locations:
        check_no_producer(producer)
        if route.by_key:
            return self._write_by_key(route, records)
        first = self._sequence.advance(len(records))
        parts = split_in_turn(records, first, route.turns)
        results = self._write_parts(route, parts)
        partitions = [partition for partition, _ in parts]
        chosen = cycle_to(partitions, len(records))
        firsts = check_all_written(route.topic.name, chosen, results)
        offsets = offsets_in_turn([firsts[partition] for partition in partitions], len(records))
        return Locations(chosen, offsets)

    def batch_write_topics(
        self, batch: Sequence[tuple[str, Record]], *, namespace: str = DEFAULT_NAMESPACE
    ) -> list[Location]:
        """Append records to several topics; per shard all or none. Returns where they went, in
        their order; see `batch_write` for failures."""
        check_batch(batch)
        by_topic: dict[str, list[int]] = {}
        for position, (topic, _) in enumerate(batch):
            by_topic.setdefault(topic, []).append(position)
        # An unknown topic raises before anything is written.
        for topic in by_topic:
            self.routes.find(topic, namespace)
        locations: list[Location | None] = [None] * len(batch)
        errors: dict[tuple[str, int], StoreError] = {}
        for topic, positions in by_topic.items():
            records = [batch[position][1] for position in positions]
            written_to: Sequence[Location | None] = [None] * len(records)
            try:
                written_to = self.batch_write(topic, records, namespace=namespace)
            except PartialWriteError as error:
                written_to = error.locations
                errors.update({(topic, partition): e for partition, e in _by_partition(error)})
            except StoreError as error:
                errors[topic, -1] = error
            for position, location in zip(positions, written_to, strict=True):
                locations[position] = location
        written = [location for location in locations if location is not None]
        if errors and not written:
            raise gravest(errors.values())
        if errors:
            raise PartialWriteError(locations, errors)
        return written

    def _write_by_key(self, route: TopicRoute, records: Sequence[Record]) -> Locations:
        check_records_are_records(records)
        first = self._sequence.advance(len(records))
        chosen = choose_all_by_key(records, first, route.partitions, route.turns)
        results = self._write_parts(route, group_by_partition(records, chosen))
        firsts = check_all_written(route.topic.name, chosen, results)
        return Locations(chosen, list(offsets_by_choice(chosen, firsts)))

    def _write_parts(self, route: TopicRoute, parts: Parts) -> dict[int, Written | StoreError]:
        by_shard = [(route.shards[partition], part) for partition, part in parts]
        write = route.driver.batch_write_parts
        results = self._leader_changes.repeat_parts(by_shard, write(by_shard), write)
        return {partition: result for (partition, _), result in zip(parts, results, strict=True)}

    # Reading

    def read_by_offset(
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
        """Return records of one partition from `offset` on."""
        try:
            route = self._resolved[namespace, topic]
        except (KeyError, TypeError):
            route = self.routes.find(topic, namespace)
        name = route.shard(partition)
        try:
            return route.driver.read_by_offset(
                name, offset, max_records=max_records, max_size=max_size, isolation=isolation
            )
        except UNDONE as error:
            call = partial(
                route.driver.read_by_offset,
                name,
                offset,
                max_records=max_records,
                max_size=max_size,
                isolation=isolation,
            )
            return self._leader_changes.repeat(name, error, call)

    def shard_info(
        self, topic: str, partition: int, *, namespace: str = DEFAULT_NAMESPACE
    ) -> ShardInfo:
        """Return the bounds of a partition, as readers of committed records see them."""
        route = self.routes.find(topic, namespace)
        name = route.shard(partition)
        try:
            return route.driver.stable_info(name)
        except UNDONE as error:
            call = partial(route.driver.stable_info, name)
            return self._leader_changes.repeat(name, error, call)

    def wait_for_records(
        self,
        positions: Mapping[tuple[str, int], Offset],
        seconds: float,
        *,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> bool:
        """Wait until one of the partitions, by topic and number, has a record at or after its
        offset; return whether one has."""
        handler = self._engine_storage_handler
        watched = RecordPositions(handler, self._shards_at(positions, namespace))
        if watched.has_records():
            return True
        return handler.wait_for_append(watched.shards, watched.has_news, seconds)

    def watch_records(
        self,
        positions: Mapping[tuple[str, int], Offset],
        wake: Callable[[], None],
        *,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> RecordWatch:
        """Call `wake` when one of the partitions may have a record at or after its offset: for a
        caller that must not wait in its thread."""
        handler = self._engine_storage_handler
        return RecordWatch(handler, self._shards_at(positions, namespace), wake)

    def _shards_at(
        self, positions: Mapping[tuple[str, int], Offset], namespace: str
    ) -> dict[str, Offset]:
        return {
            self.routes.find(topic, namespace).shard(partition): offset
            for (topic, partition), offset in positions.items()
        }


def _choose(number: int, route: TopicRoute, record: Record) -> int:
    """Return the partition of the message with this number in `message_seq`."""
    key = record.key if route.by_key and isinstance(record, Record) else None
    return choose_by_key(key, number, route.partitions, route.turns)


def _by_partition(error: PartialWriteError) -> list[tuple[int, StoreError]]:
    return [(place, cause) for place, cause in error.errors.items() if isinstance(place, int)]
