"""Operations on the records of a topic, each defined once: its arguments, their defaults, its work.

A request is a value. `StorageDriverManager.execute` runs it on this node; `penstock.remote` sends
it to another process, where the server runs it. Writes and reads by offset are methods of
`StorageDriverManager` instead: they are too frequent for an object per call.

Reads by key and tag cover all partitions of a topic. Records with one key are stored in one
partition when the topic's partitioner is `key` (and its partitions never grew); otherwise they may
be in several, and "newest" goes by the store's timestamp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec import Struct

from penstock.adapter.locations import Message
from penstock.adapter.topics.routes import TopicRoute
from penstock.codec.validation import check_limit
from penstock.engine.contract import (
    RECORDS_PER_READ,
    SIZE_PER_READ,
    AdapterOffsetStrategy,
    ColumnQuery,
    Compacted,
)
from penstock.meta import DEFAULT_NAMESPACE
from penstock.record import Offset, StoredRecord

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.adapter.driver_manager import StorageDriverManager

R_co = TypeVar("R_co", covariant=True)


class StoreRequest(Struct, Generic[R_co], frozen=True):
    """A request that the storage layer of a node runs; the parameter is the type of its result."""

    def run(self, drivers: StorageDriverManager) -> R_co:
        raise NotImplementedError


class NamespaceRequest(StoreRequest[R_co], frozen=True, kw_only=True):
    namespace: str = DEFAULT_NAMESPACE


class TopicRequest(NamespaceRequest[R_co], frozen=True):
    topic: str

    def route(self, drivers: StorageDriverManager) -> TopicRoute:
        return drivers.routes.find(self.topic, self.namespace)


class ReadColumns(TopicRequest["list[pa.RecordBatch] | None"], frozen=True):
    """Return records of one partition as Arrow columns, for bulk reads; None where only rows are
    available: other engines, tiers, shards with transactions, other nodes, no pyarrow."""

    partition: int
    offset: int
    until: int
    columns: tuple[str, ...]
    tag: str | None
    max_size: int

    def run(self, drivers: StorageDriverManager) -> list[pa.RecordBatch] | None:
        if find_spec("pyarrow") is None:
            return None
        route = self.route(drivers)
        query = ColumnQuery(self.offset, self.until, self.columns, self.tag, self.max_size)
        return route.driver.read_columns(route.shard(self.partition), query)


class ReadByTag(TopicRequest[list[Message]], frozen=True):
    """Return records that carry exactly `tag`, of one partition or partition after partition,
    `max_records` and about `max_size` in all. `start_offset` may differ by partition: to read on,
    pass what follows the last record of each."""

    tag: str
    partition: int | None = None
    start_offset: int | Mapping[int, int] = 0
    max_records: int = RECORDS_PER_READ
    max_size: int = SIZE_PER_READ

    def run(self, drivers: StorageDriverManager) -> list[Message]:
        check_limit(self.max_records, "max_records")
        check_limit(self.max_size, "max_size")
        route = self.route(drivers)
        messages: list[Message] = []
        left_size = self.max_size
        for partition in _partitions(route, self.partition):
            start = self.start_offset
            if isinstance(start, Mapping):
                start = start.get(partition, 0)
            page = route.driver.read_by_tag(
                route.shards[partition],
                self.tag,
                start_offset=Offset(start),
                max_records=self.max_records - len(messages),
                max_size=left_size,
            )
            messages += [Message(self.topic, partition, record) for record in page]
            left_size -= sum(len(record.value or b"") for record in page)
            if len(messages) >= self.max_records or left_size <= 0:
                break
        return messages


class ReadByKey(TopicRequest[Message | None], frozen=True):
    """Return the newest live record of `key`, or None."""

    key: bytes

    def run(self, drivers: StorageDriverManager) -> Message | None:
        newest: Message | None = None
        route = self.route(drivers)
        for partition, name in enumerate(route.shards):
            record = route.driver.read_by_key(name, self.key)
            if record is not None and (newest is None or _age(record) > _age(newest.record)):
                newest = Message(self.topic, partition, record)
        return newest


class QueryByKey(TopicRequest[list[Message]], frozen=True):
    """Return the live records of `key` in a range of time, newest first."""

    key: bytes
    begin_ms: int = 0
    end_ms: int | None = None
    limit: int = 64

    def run(self, drivers: StorageDriverManager) -> list[Message]:
        route = self.route(drivers)
        messages = [
            Message(self.topic, partition, record)
            for partition, name in enumerate(route.shards)
            for record in route.driver.query_by_key(
                name, self.key, begin_ms=self.begin_ms, end_ms=self.end_ms, limit=self.limit
            )
        ]
        # The sort is stable: within a partition the order stays that of the offsets.
        messages.sort(key=lambda message: message.record.store_timestamp_ms, reverse=True)
        return messages[: self.limit]


class OffsetsAt(TopicRequest[dict[int, Offset]], frozen=True):
    """Return, for each partition, the offset of the first record that is not older."""

    timestamp_ms: int
    strategy: AdapterOffsetStrategy = AdapterOffsetStrategy.LATEST

    def run(self, drivers: StorageDriverManager) -> dict[int, Offset]:
        route = self.route(drivers)
        return {
            partition: route.driver.get_offset_by_timestamp(name, self.timestamp_ms, self.strategy)
            for partition, name in enumerate(route.shards)
        }


class DeleteByKey(TopicRequest[int], frozen=True):
    """Delete every record of `key`; return how many there were."""

    key: bytes

    def run(self, drivers: StorageDriverManager) -> int:
        route = self.route(drivers)
        return sum(route.driver.delete_by_key(name, self.key) for name in route.shards)


class DeleteByOffset(TopicRequest[bool], frozen=True):
    """Delete one record; return whether it was there."""

    partition: int
    offset: int

    def run(self, drivers: StorageDriverManager) -> bool:
        route = self.route(drivers)
        return route.driver.delete_by_offset(route.shard(self.partition), Offset(self.offset))


class DeleteBefore(TopicRequest[Offset], frozen=True):
    """Delete the records of a partition before `offset`; return its new earliest offset."""

    partition: int
    offset: int

    def run(self, drivers: StorageDriverManager) -> Offset:
        route = self.route(drivers)
        return route.driver.delete_records_before(route.shard(self.partition), Offset(self.offset))


class Compact(TopicRequest[Compacted], frozen=True):
    """Remove superseded records of a topic with `cleanup = "compact"`."""

    def run(self, drivers: StorageDriverManager) -> Compacted:
        route = self.route(drivers)
        results = [route.driver.compact(name) for name in route.shards]
        return Compacted(
            sum(result.records for result in results), sum(result.size for result in results)
        )


def _partitions(route: TopicRoute, partition: int | None) -> Sequence[int]:
    if partition is None:
        return range(route.partitions)
    route.shard(partition)
    return (partition,)


def _age(record: StoredRecord) -> tuple[int, int]:
    return record.store_timestamp_ms, record.timestamp_ms
