"""`Topic`: a handle on one topic of a store.

    orders = store.topic("orders")
    orders.write(b"3 apples", key=b"o-17", tags=["eu"])
    for message in orders:
        print(message.partition, message.offset, message.value)

A handle is only a name: cheap, thread-safe, and valid after the topic is deleted and created again
(it then refers to the new topic).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeGuard, Unpack

from penstock.adapter import Message
from penstock.adapter.requests import (
    Compact,
    DeleteBefore,
    DeleteByKey,
    DeleteByOffset,
    OffsetsAt,
    QueryByKey,
    ReadByKey,
    ReadByTag,
)
from penstock.adapter.topics import AlterOptions
from penstock.api.backend import Backend
from penstock.api.long_poll import wait_for_records
from penstock.api.requests.topics import (
    AlterTopic,
    DeleteTopic,
    DescribePartition,
    DescribeTopic,
    LocateTopic,
)
from penstock.api.timestamps import to_timestamp_ms
from penstock.api.topic_info import TopicInfo
from penstock.api.validation import as_list, as_seconds, check_partition, check_start
from penstock.codec.validation import check_text
from penstock.engine.contract import (
    RECORDS_PER_READ,
    SIZE_PER_READ,
    Acks,
    Compacted,
)
from penstock.errors import BadRequestError
from penstock.platform.clock import SystemClock
from penstock.record import Header, Location, Offset, Producer, Record, StoredRecord

Headers = Mapping[str, bytes | None] | Iterable[Header]
_RECORDS_ONLY: Final = {Record}


class Topic:
    """Use `Store.topic` or `Store.create_topic`."""

    def __init__(self, backend: Backend, namespace: str, name: str) -> None:
        self._backend: Final = backend
        self._namespace: Final = namespace
        self.name: Final = name

    def __repr__(self) -> str:
        return f"<Topic {self.name!r}>"

    # Writing

    def write(  # noqa: PLR0913 - the fields of a record, and how to write it
        self,
        value: bytes | Record | None,
        *,
        key: bytes | None = None,
        tags: Iterable[str] = (),
        headers: Headers = (),
        timestamp: int | datetime | None = None,
        expires: int | datetime | None = None,
        partition: int | None = None,
        producer: Producer | None = None,
        acks: Acks = Acks.ALL,
    ) -> Location:
        """Append a record (`None` is a tombstone) and return its location.

        Times are datetimes or milliseconds since 1970; the default is the store's clock. On a
        replicated topic the record is on all replicas in sync when this returns; with
        `Acks.LEADER` it is on their leader, and lost if that node is.
        """
        if type(value) is bytes and not tags and not headers and timestamp is expires is None:
            record = Record(value, key)
        else:
            record = as_record(
                value, key=key, tags=tags, headers=headers, timestamp=timestamp, expires=expires
            )
        return self._backend.write(
            self.name,
            record,
            partition=partition,
            producer=producer,
            acks=acks,
            namespace=self._namespace,
        )

    def write_many(
        self,
        values: Iterable[bytes | Record | None],
        *,
        partition: int | None = None,
        producer: Producer | None = None,
        acks: Acks = Acks.ALL,
    ) -> Sequence[Location]:
        """Append many records; return their locations in the same order.

        The partitioner assigns each record unless `partition` is given. Records of one partition
        are appended atomically, also across a crash.
        """
        given = values if isinstance(values, list) else as_list(values, "values")
        records = (
            given
            if _are_records(given)
            else [Record(value) if type(value) is bytes else as_record(value) for value in given]
        )
        return self._backend.batch_write(
            self.name,
            records,
            partition=partition,
            producer=producer,
            acks=acks,
            namespace=self._namespace,
        )

    # Reading

    def read(
        self,
        partition: int = 0,
        offset: int = 0,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
    ) -> list[StoredRecord]:
        """Return records of one partition from `offset` on; none at its end. To continue, pass
        the offset after the last record."""
        return self._backend.read_by_offset(
            self.name,
            partition,
            Offset(offset),
            max_records=max_records,
            max_size=max_size,
            namespace=self._namespace,
        )

    def __iter__(self) -> Iterator[Message]:
        """Iterate over the present records, partition by partition."""
        return self.records()

    def records(
        self,
        partition: int | None = None,
        *,
        start: int | Mapping[int, int] = 0,
        tag: str | None = None,
    ) -> Iterator[Message]:
        """Iterate over the records of one partition, or of one after the other, up to what is there
        when each is begun; `start` may differ by partition. With `tag`: only those that carry it.
        """
        for page in self.pages(partition, start=start, tag=tag):
            yield from page

    def pages(
        self,
        partition: int | None = None,
        *,
        start: int | Mapping[int, int] = 0,
        tag: str | None = None,
    ) -> Iterator[list[Message]]:
        """Iterate over non-empty pages of records, as they are read."""
        check_start(start)
        if tag is not None:
            check_text(tag, "tag")
        for number in range(self.partitions) if partition is None else (partition,):
            offset = start.get(number, 0) if isinstance(start, Mapping) else start
            yield from self._pages(number, Offset(offset), tag)

    def read_by_tag(
        self,
        tag: str,
        *,
        partition: int | None = None,
        start_offset: int | Mapping[int, int] = 0,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
    ) -> list[Message]:
        """Return records that carry exactly `tag`; see `records(tag=…)` to iterate over all."""
        check_start(start_offset)
        return self._backend.execute(
            ReadByTag(
                self.name,
                tag,
                partition,
                start_offset,
                max_records,
                max_size,
                namespace=self._namespace,
            )
        )

    def read_by_key(self, key: bytes) -> Message | None:
        """Return the newest record of a key, or None."""
        return self._backend.execute(ReadByKey(self.name, key, namespace=self._namespace))

    def query(
        self,
        key: bytes,
        *,
        since: int | datetime = 0,
        until: int | datetime | None = None,
        limit: int = 64,
    ) -> list[Message]:
        """Return the records of a key within a time range, newest first."""
        end_ms = None if until is None else to_timestamp_ms(until)
        begin_ms = to_timestamp_ms(since)
        return self._backend.execute(
            QueryByKey(self.name, key, begin_ms, end_ms, limit, namespace=self._namespace)
        )

    query_message_by_key = query

    def offset_at(self, moment: int | datetime, partition: int = 0) -> Offset:
        """Return the offset of the first record at or after a timestamp; the next offset if there
        is none."""
        check_partition(partition)
        offset = self.offsets_at(moment).get(partition)
        if offset is None:
            raise BadRequestError(f"topic {self.name!r} has no partition {partition}")
        return offset

    def offsets_at(self, moment: int | datetime) -> dict[int, Offset]:
        """Return `offset_at` for every partition."""
        timestamp_ms = to_timestamp_ms(moment)
        return self._backend.execute(OffsetsAt(self.name, timestamp_ms, namespace=self._namespace))

    def wait(self, positions: Mapping[int, int], *, seconds: float) -> bool:
        """Wait until there is a record at or after one of the positions, by partition; return
        whether there is."""
        if not isinstance(positions, Mapping):
            raise BadRequestError(f"positions must be {{partition: offset}}, got {positions!r}")
        check_start(positions)
        wait_s = as_seconds(seconds, "seconds")
        offsets = {(self.name, number): Offset(offset) for number, offset in positions.items()}
        return wait_for_records(self._backend, self._namespace, offsets, wait_s, SystemClock())

    # Deleting

    def delete_by_key(self, key: bytes) -> int:
        """Delete every record of a key; return how many there were."""
        return self._backend.execute(DeleteByKey(self.name, key, namespace=self._namespace))

    def delete_by_offset(self, partition: int, offset: int) -> bool:
        """Delete one record; return whether it was there."""
        return self._backend.execute(
            DeleteByOffset(self.name, partition, offset, namespace=self._namespace)
        )

    def delete_before(self, partition: int, offset: int) -> Offset:
        """Delete the records before `offset`; return the new start of the partition."""
        return self._backend.execute(
            DeleteBefore(self.name, partition, offset, namespace=self._namespace)
        )

    def compact(self) -> Compacted:
        """Keep only the newest record of each key; for topics with `cleanup="compact"`."""
        return self._backend.execute(Compact(self.name, namespace=self._namespace))

    # The topic itself

    def describe(self) -> TopicInfo:
        """Return its configuration and the bounds of its partitions."""
        return self._backend.execute(DescribeTopic(self.name, namespace=self._namespace))

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return self._backend.execute(LocateTopic(self.name, namespace=self._namespace))[1]

    def alter(self, *, partitions: int | None = None, **options: Unpack[AlterOptions]) -> TopicInfo:
        """Change options of the topic; others keep their values. Partitions can only be added."""
        return self._backend.execute(
            AlterTopic(self.name, partitions, dict(options), namespace=self._namespace)
        )

    def delete(self) -> None:
        """Delete the topic with its records and the offsets of its consumer groups."""
        self._backend.execute(DeleteTopic(self.name, namespace=self._namespace))

    # Inside

    def _pages(self, partition: int, offset: Offset, tag: str | None) -> Iterator[list[Message]]:
        info = self._backend.execute(
            DescribePartition(self.name, partition, namespace=self._namespace)
        )
        while offset < info.commit:
            if tag is None:
                page = self.read(partition, offset)
            else:
                page = [
                    message.record
                    for message in self.read_by_tag(tag, partition=partition, start_offset=offset)
                ]
            within = [record for record in page if record.offset < info.commit]
            if not within:
                return
            yield [Message(self.name, partition, record) for record in within]
            offset = Offset(page[-1].offset + 1)


def try_write(topic: Topic, record: Record, partition: int | None) -> Location | None:
    """Append a record if that takes microseconds, without waiting for a device, a network or
    another writer; None: nothing was written. `penstock.aio` calls it in the event loop."""
    write = topic._backend.try_write
    if write is None:
        return None
    return write(topic.name, record, partition=partition, namespace=topic._namespace)


def as_record(
    value: bytes | Record | None,
    *,
    key: bytes | None = None,
    tags: Iterable[str] = (),
    headers: Headers = (),
    timestamp: int | datetime | None = None,
    expires: int | datetime | None = None,
) -> Record:
    """Return a record from its parts, or the given record."""
    if isinstance(value, Record):
        if key is not None or tags or headers or timestamp is not None or expires is not None:
            raise BadRequestError(
                "a Record carries its own key, tags, headers and times: drop the arguments"
            )
        return value
    if value is not None and not isinstance(value, bytes):
        raise BadRequestError(
            f"a value must be bytes, a Record or None, got {type(value).__name__}"
        )
    if isinstance(tags, str):
        raise BadRequestError(
            f"tags must be a list of strings such as [{tags!r}], got a single string"
        )
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return Record(
        value=value,
        key=key,
        tags=tuple(as_list(tags, "tags")),
        headers=tuple(as_list(pairs, "headers")),
        timestamp_ms=None if timestamp is None else to_timestamp_ms(timestamp),
        expires_at_ms=None if expires is None else to_timestamp_ms(expires),
    )


def _are_records(values: list[bytes | Record | None]) -> TypeGuard[list[Record]]:
    return set(map(type, values)) == _RECORDS_ONLY
