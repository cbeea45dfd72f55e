"""`TopicStorage`: every storage operation by topic, synchronous.

The core that both ways in share: the embedded store calls it directly and pays for no thread or
event loop, `StorageDriverManager` offers the same as coroutines. Methods may be called from any
thread.

Reads by key and tag go over all partitions of a topic. Records of one key lie in one partition when
the topic's partitioner is `key` (and its partitions never grew); otherwise they may lie in several,
and "newest" is by the time at which the store took them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.adapter.batch_parts import (
    check_all_written,
    check_batch,
    check_no_producer,
    check_records_are_records,
    cycle_to,
)
from penstock.adapter.locations import Locations, Message
from penstock.adapter.record_watch import RecordPositions, RecordWatch
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
from penstock.codec.validation import check_limit
from penstock.engine.contract import (
    RECORDS_PER_READ,
    SIZE_PER_READ,
    AdapterOffsetStrategy,
    ColumnQuery,
    Compacted,
    Isolation,
    ShardInfo,
    Written,
)
from penstock.engine.handler import StorageEngineHandler
from penstock.errors import PartialWriteError, StoreError
from penstock.meta.client import DEFAULT_NAMESPACE
from penstock.record import Location, Offset, Producer, Record, StoredRecord

if TYPE_CHECKING:
    import pyarrow as pa


class TopicStorage:
    def __init__(
        self,
        handler: StorageEngineHandler,
        routes: TopicRoutes,
        sequence: MessageSequence | None = None,
    ) -> None:
        self.handler: Final = handler
        self.routes: Final = routes
        self.sequence: Final = sequence if sequence is not None else MessageSequence()

    # Writing

    def write(
        self,
        topic: str,
        record: Record,
        *,
        partition: int | None = None,
        producer: Producer | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Location:
        """Append one record; return where it went."""
        route = self.routes.find(topic, namespace)
        if partition is not None:
            name = route.shard(partition)
        else:
            partition = self.choose(route, record, producer)
            name = route.shards[partition]
        return Location(partition, self.handler.write(name, record, producer=producer).first)

    def write_at_once(
        self,
        topic: str,
        record: Record,
        *,
        partition: int | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Location | None:
        """Append one record if that is a matter of microseconds; None: nothing was written."""
        route = self.routes.find(topic, namespace)
        if route.waits:
            return None
        if partition is None:
            partition = self.choose(route, record, None)
        written = self.handler.write_at_once(route.shard(partition), record)
        return None if written is None else Location(partition, written.first)

    def batch_write(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int | None = None,
        producer: Producer | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Locations:
        """Append records, each to a partition of its own choice unless `partition` is given; per
        shard all or none. Returns where they went, in their order. Raises `PartialWriteError`
        when some shards took theirs and others did not."""
        route = self.routes.find(topic, namespace)
        check_batch(records)
        if partition is None and route.partitions == 1:
            partition = 0
        if partition is not None:
            name = route.shard(partition)
            written = self.handler.batch_write(name, records, producer=producer)
            return Locations((partition,), written.offsets)
        check_no_producer(producer)
        if route.by_key:
            return self._write_by_key(route, records)
        first = self.sequence.take(len(records))
        parts = split_in_turn(records, first, route.turns)
        results = self._write_parts(route, parts)
        partitions = [partition for partition, _ in parts]
        chosen = cycle_to(partitions, len(records))
        firsts = check_all_written(route.topic.name, chosen, results)
        offsets = offsets_in_turn([firsts[one] for one in partitions], len(records))
        return Locations(chosen, offsets)

    def batch_write_topics(
        self, batch: Sequence[tuple[str, Record]], *, namespace: str = DEFAULT_NAMESPACE
    ) -> list[Location]:
        """Append records to several topics; per shard all or none. Returns where they went, in
        their order; see `batch_write` for failures."""
        check_batch(batch)
        by_topic: dict[str, list[int]] = {}
        for at, (topic, _) in enumerate(batch):
            by_topic.setdefault(topic, []).append(at)
        # An unknown topic is found before anything is written.
        for topic in by_topic:
            self.routes.find(topic, namespace)
        locations: list[Location | None] = [None] * len(batch)
        errors: dict[tuple[str, int], StoreError] = {}
        for topic, places in by_topic.items():
            records = [batch[at][1] for at in places]
            found: Sequence[Location | None] = [None] * len(records)
            try:
                found = self.batch_write(topic, records, namespace=namespace)
            except PartialWriteError as error:
                found = error.locations
                errors.update({(topic, int(at)): why for at, why in _by_partition(error)})
            except StoreError as error:
                errors[topic, -1] = error
            for at, location in zip(places, found, strict=True):
                locations[at] = location
        written = [location for location in locations if location is not None]
        if errors and not written:
            raise next(iter(errors.values()))
        if errors:
            raise PartialWriteError(locations, errors)
        return written

    def choose(self, route: TopicRoute, record: Record, producer: Producer | None) -> int:
        """Return the partition of a record for which the caller named none."""
        if route.partitions == 1:
            return 0
        check_no_producer(producer)
        if route.by_key and isinstance(record, Record):
            return choose_by_key(record, self.sequence, route.partitions, route.turns)
        return route.turns[self.sequence.take(1) % len(route.turns)]

    def _write_by_key(self, route: TopicRoute, records: Sequence[Record]) -> Locations:
        check_records_are_records(records)
        chosen = choose_all_by_key(records, self.sequence, route.partitions, route.turns)
        results = self._write_parts(route, group_by_partition(records, chosen))
        firsts = check_all_written(route.topic.name, chosen, results)
        return Locations(chosen, list(offsets_by_choice(chosen, firsts)))

    def _write_parts(self, route: TopicRoute, parts: Parts) -> dict[int, Written | StoreError]:
        named = [(route.shards[partition], part) for partition, part in parts]
        results = self.handler.batch_write_parts(named)
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
        name = self.routes.find(topic, namespace).shard(partition)
        return self.handler.read_by_offset(
            name, offset, max_records=max_records, max_size=max_size, isolation=isolation
        )

    def read_columns(
        self,
        topic: str,
        partition: int,
        wanted: ColumnQuery,
        *,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[pa.RecordBatch] | None:
        """Return records of one partition as Arrow columns; None where only rows can be had."""
        name = self.routes.find(topic, namespace).shard(partition)
        return self.handler.read_columns(name, wanted)

    def read_by_tag(
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
        """Return records that carry exactly `tag`, of one partition or partition after partition,
        `max_records` and about `max_size` in all. `start_offset` may differ by partition: to read
        on, pass what follows the last record of each."""
        check_limit(max_records, "max_records")
        check_limit(max_size, "max_size")
        route = self.routes.find(topic, namespace)
        found: list[Message] = []
        left_size = max_size
        for one in _partitions(route, partition):
            start = start_offset
            if isinstance(start, Mapping):
                start = start.get(one, Offset(0))
            page = self.handler.read_by_tag(
                route.shards[one],
                tag,
                start_offset=start,
                max_records=max_records - len(found),
                max_size=left_size,
            )
            found += [Message(topic, one, record) for record in page]
            left_size -= sum(len(record.value or b"") for record in page)
            if len(found) >= max_records or left_size <= 0:
                break
        return found

    def read_by_key(
        self, topic: str, key: bytes, *, namespace: str = DEFAULT_NAMESPACE
    ) -> Message | None:
        """Return the newest live record of `key`, or None."""
        newest: Message | None = None
        for partition, name in enumerate(self.routes.find(topic, namespace).shards):
            record = self.handler.read_by_key(name, key)
            if record is not None and (newest is None or _age(record) > _age(newest.record)):
                newest = Message(topic, partition, record)
        return newest

    def query_message_by_key(
        self,
        topic: str,
        key: bytes,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        limit: int = 64,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[Message]:
        """Return the live records of `key` in a range of time, newest first."""
        found = [
            Message(topic, partition, record)
            for partition, name in enumerate(self.routes.find(topic, namespace).shards)
            for record in self.handler.query_by_key(
                name, key, begin_ms=begin_ms, end_ms=end_ms, limit=limit
            )
        ]
        # The sort is stable: within a partition the order stays that of the offsets.
        found.sort(key=lambda message: message.record.store_timestamp_ms, reverse=True)
        return found[:limit]

    def get_offset_by_timestamp(
        self,
        topic: str,
        timestamp_ms: int,
        strategy: AdapterOffsetStrategy = AdapterOffsetStrategy.LATEST,
        *,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> dict[int, Offset]:
        """Return, for each partition, the offset of the first record that is not older."""
        shards = self.routes.find(topic, namespace).shards
        return {
            partition: self.handler.get_offset_by_timestamp(name, timestamp_ms, strategy)
            for partition, name in enumerate(shards)
        }

    def shard_info(
        self, topic: str, partition: int, *, namespace: str = DEFAULT_NAMESPACE
    ) -> ShardInfo:
        return self.handler.stable_info(self.routes.find(topic, namespace).shard(partition))

    def wait_for_records(
        self,
        positions: Mapping[tuple[str, int], Offset],
        seconds: float,
        *,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> bool:
        """Wait until one of the partitions, by topic and number, has a record at or behind its
        offset; return whether one has."""
        at = RecordPositions(self.handler, self._shards_at(positions, namespace))
        if at.has_records():
            return True
        return self.handler.wait_for_append(at.shards, at.has_news, seconds)

    def watch_records(
        self,
        positions: Mapping[tuple[str, int], Offset],
        wake: Callable[[], None],
        *,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> RecordWatch:
        """Call `wake` when one of the partitions may have a record at or after its offset: for a
        caller that must not wait in its thread."""
        return RecordWatch(self.handler, self._shards_at(positions, namespace), wake)

    def _shards_at(
        self, positions: Mapping[tuple[str, int], Offset], namespace: str
    ) -> dict[str, Offset]:
        return {
            self.routes.find(topic, namespace).shard(partition): offset
            for (topic, partition), offset in positions.items()
        }

    # Deleting

    def delete_by_key(self, topic: str, key: bytes, *, namespace: str = DEFAULT_NAMESPACE) -> int:
        """Delete every record of `key`; return how many there were."""
        shards = self.routes.find(topic, namespace).shards
        return sum(self.handler.delete_by_key(name, key) for name in shards)

    def delete_by_offset(
        self, topic: str, partition: int, offset: Offset, *, namespace: str = DEFAULT_NAMESPACE
    ) -> bool:
        """Delete one record; return whether it was there."""
        name = self.routes.find(topic, namespace).shard(partition)
        return self.handler.delete_by_offset(name, offset)

    def delete_records_before(
        self, topic: str, partition: int, offset: Offset, *, namespace: str = DEFAULT_NAMESPACE
    ) -> Offset:
        """Let a partition begin at `offset`; return where it does."""
        name = self.routes.find(topic, namespace).shard(partition)
        return self.handler.delete_records_before(name, offset)

    def compact(self, topic: str, *, namespace: str = DEFAULT_NAMESPACE) -> Compacted:
        """Remove superseded records of a topic with `cleanup = "compact"`."""
        done = [self.handler.compact(n) for n in self.routes.find(topic, namespace).shards]
        return Compacted(sum(one.records for one in done), sum(one.size for one in done))


def _by_partition(error: PartialWriteError) -> list[tuple[int, StoreError]]:
    return [(at, why) for at, why in error.errors.items() if isinstance(at, int)]


def _partitions(route: TopicRoute, partition: int | None) -> Sequence[int]:
    if partition is None:
        return range(route.partitions)
    route.shard(partition)
    return (partition,)


def _age(record: StoredRecord) -> tuple[int, int]:
    return record.store_timestamp_ms, record.timestamp_ms
