"""`TieredMetadataStore` on RocksDB: one row for each topic, queue and file segment."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from rocksdict import Options, Rdict, WriteBatch

from penstock.errors import BadRequestError
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.local_disk import DIRECTORY_MODE, close_to_others
from penstock.record import ShardId
from penstock.tiered.object_names import shard_prefix, topic_prefix
from penstock.tiered.rocketmq.file_segment import FileSegmentMetadata, FileSegmentType
from penstock.tiered.rocketmq.metadata_store import (
    NO_RESERVE_TIME,
    QueueMetadata,
    TopicMetadata,
)

_MAX_ID: Final = b"m"

# Made here, for msgspec must not look at a type for the first time in two threads at a time.
_topics: Final = msgspec.msgpack.Decoder(TopicMetadata)
_queues: Final = msgspec.msgpack.Decoder(QueueMetadata)
_segments: Final = msgspec.msgpack.Decoder(FileSegmentMetadata)


class RocksDbMetadataStore:
    def __init__(self, path: str, *, clock: Clock | None = None) -> None:
        """Use the store at `path`; it is opened, or created, when it is first needed."""
        self._path: Final = path
        self._opened: Rdict | None = None
        self._opening: Final = threading.Lock()
        self._clock: Final = clock or SystemClock()
        self._lock: Final = threading.Lock()

    @property
    def _database(self) -> Rdict:
        with self._opening:
            if self._opened is None:
                os.makedirs(self._path, DIRECTORY_MODE, exist_ok=True)
                self._opened = Rdict(self._path, Options(raw_mode=True))
                close_to_others(self._path)
            return self._opened

    # Topics

    def set_max_topic_id(self, max_topic_id: int) -> None:
        with self._lock:
            self._database[_MAX_ID] = max_topic_id.to_bytes(8, "big")

    def get_topic(self, topic: str) -> TopicMetadata | None:
        row = self._database.get(_topic_key(topic))
        return None if row is None else _topics.decode(row)

    def iterate_topic(self, callback: Callable[[TopicMetadata], None]) -> None:
        for row in self._rows(b"t"):
            callback(_topics.decode(row))

    def add_topic(self, topic: str, reserve_time: int) -> TopicMetadata:
        with self._lock:
            topic_row = self.get_topic(topic)
            if topic_row is not None:
                return topic_row
            number = int.from_bytes(self._database.get(_MAX_ID) or b"", "big") + 1
            added = TopicMetadata(
                topic_id=number,
                topic=topic,
                reserve_time=reserve_time,
                update_ms=self._clock.now_ms(),
            )
            batch = WriteBatch(raw_mode=True)
            batch.put(_MAX_ID, number.to_bytes(8, "big"))
            batch.put(_topic_key(topic), msgspec.msgpack.encode(added))
            self._database.write(batch)
            return added

    def update_topic_reserve_time(self, topic: str, reserve_time: int) -> None:
        if reserve_time != NO_RESERVE_TIME and reserve_time <= 0:
            raise BadRequestError(
                f"reserve_time is {reserve_time} ms; expected more than 0, or {NO_RESERVE_TIME} "
                "for the retention of the topic's configuration"
            )
        self._change_topic(topic, "reserve_time", reserve_time)

    def update_topic_status(self, topic: str, status: int) -> None:
        self._change_topic(topic, "status", status)

    def _change_topic(self, topic: str, field: str, value: int) -> None:
        with self._lock:
            known = self.get_topic(topic)
            if known is None:
                raise BadRequestError(f"the tier's metadata has no topic {topic!r}")
            changed = {**msgspec.structs.asdict(known), field: value}
            changed["update_ms"] = self._clock.now_ms()
            self._database[_topic_key(topic)] = msgspec.msgpack.encode(changed)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, its queues and their segments, in one write; nothing if it is gone."""
        queues: list[QueueMetadata] = []
        self.iterate_queue(topic, queues.append)
        with self._lock:
            batch = WriteBatch(raw_mode=True)
            batch.delete(_topic_key(topic))
            for row in queues:
                self._delete_queue(batch, row.queue)
            self._database.write(batch)

    # Queues

    def get_queue(self, queue: ShardId) -> QueueMetadata | None:
        row = self._database.get(_queue_key(queue))
        return None if row is None else _queues.decode(row)

    def iterate_queue(self, topic: str, callback: Callable[[QueueMetadata], None]) -> None:
        for row in self._rows(b"q" + topic_prefix(topic).encode()):
            callback(_queues.decode(row))

    def add_queue(self, queue: ShardId, base_offset: int) -> QueueMetadata:
        self.add_topic(queue.topic, NO_RESERVE_TIME)
        with self._lock:
            known = self.get_queue(queue)
            if known is None:
                known = QueueMetadata(
                    queue=queue,
                    min_offset=base_offset,
                    max_offset=base_offset,
                    update_ms=self._clock.now_ms(),
                )
                self._database[_queue_key(queue)] = msgspec.msgpack.encode(known)
            return known

    def update_queue(self, metadata: QueueMetadata) -> None:
        changed = msgspec.structs.replace(metadata, update_ms=self._clock.now_ms())
        with self._lock:
            self._database[_queue_key(metadata.queue)] = msgspec.msgpack.encode(changed)

    def upsert_queue(self, queue: ShardId, min_offset: int, max_offset: int) -> None:
        self.add_queue(queue, min_offset)
        self.update_queue(QueueMetadata(queue=queue, min_offset=min_offset, max_offset=max_offset))

    def delete_queue(self, queue: ShardId) -> None:
        with self._lock:
            batch = WriteBatch(raw_mode=True)
            self._delete_queue(batch, queue)
            self._database.write(batch)

    def _delete_queue(self, batch: WriteBatch, queue: ShardId) -> None:
        batch.delete(_queue_key(queue))
        for key, _ in self._items(_segments_key(queue)):
            batch.delete(key)

    # File segments

    def get_file_segment(self, segment: FileSegmentMetadata) -> FileSegmentMetadata | None:
        row = self._database.get(_segment_key(segment))
        return None if row is None else _segments.decode(row)

    def iterate_file_segment(
        self,
        callback: Callable[[FileSegmentMetadata], None],
        type_: FileSegmentType | None = None,
        queue: ShardId | None = None,
    ) -> None:
        for row in self._rows(b"s" if queue is None else _segments_key(queue)):
            segment = _segments.decode(row)
            if type_ is None or segment.type is type_:
                callback(segment)

    def update_file_segment(self, segment: FileSegmentMetadata) -> FileSegmentMetadata:
        updated = msgspec.structs.replace(segment, update_ms=self._clock.now_ms())
        with self._lock:
            self._database[_segment_key(segment)] = msgspec.msgpack.encode(updated)
        return updated

    def delete_file_segment(self, segment: FileSegmentMetadata | ShardId) -> None:
        with self._lock:
            batch = WriteBatch(raw_mode=True)
            if isinstance(segment, FileSegmentMetadata):
                batch.delete(_segment_key(segment))
            else:
                for key, _ in self._items(_segments_key(segment)):
                    batch.delete(key)
            self._database.write(batch)

    def destroy(self) -> None:
        with self._lock:
            batch = WriteBatch(raw_mode=True)
            for key, _ in self._items(b""):
                batch.delete(key)
            self._database.write(batch)

    def close(self) -> None:
        with self._opening:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.flush_wal(True)
            opened.close()
            close_to_others(self._path)

    def _rows(self, prefix: bytes) -> Iterator[bytes]:
        return (value for _, value in self._items(prefix))

    def _items(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        items: list[tuple[bytes, bytes]] = []
        for key, value in self._database.items(from_key=prefix or b"\x00"):
            assert isinstance(key, bytes), "the database is opened in raw mode"
            if not key.startswith(prefix):
                break
            items.append((key, bytes(value)))
        return items


def _topic_key(topic: str) -> bytes:
    return b"t" + topic.encode("utf-8", "surrogateescape")


def _queue_key(queue: ShardId) -> bytes:
    return b"q" + shard_prefix(queue).encode()


def _segments_key(queue: ShardId) -> bytes:
    return b"s" + shard_prefix(queue).encode()


def _segment_key(segment: FileSegmentMetadata) -> bytes:
    """Paths begin with the shard's prefix, so that the segments of a queue are adjacent."""
    return f"s{segment.path}/{int(segment.type)}/{segment.base_offset:020d}".encode()
