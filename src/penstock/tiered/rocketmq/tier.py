"""`rocketmq+file:///directory`: RocketMQ's own tieredstore layout, read in full and written.

    <md5(cluster)[:8]>_<cluster>/<broker>/<topic>/<queue>/<COMMIT_LOG|CONSUME_QUEUE>/<file>
    …/rmq_sys_INDEX/0/INDEX/<file>
    <file> = md5(decimal base)[:8] and the base with twenty digits

RocketMQ rewrites the position of a record and leaves its `__CRC32#` as it was, so only sizes,
identity and the body's checksum can be checked in what it wrote; in what is written here, the
record's checksum follows the position.

What is written are queues of simple topics: records and units. Batches are refused; index files
and RocketMQ's own metadata (`tieredStoreMetadata.json`) are not written. Files grow, and one writer
at a time may use them: nothing here keeps a second one away.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote, urlsplit

from penstock.codec.format import CHECKSUM_MASK, QUEUE_UNIT, Damage, RawRecord
from penstock.codec.raw_message import stored_from_raw
from penstock.codec.select import core
from penstock.engine.segment import unreadable
from penstock.errors import (
    BadRequestError,
    CorruptionError,
    TierSetupError,
    UnreadableContentError,
)
from penstock.platform.local_disk import DIRECTORY_MODE, FILE_MODE
from penstock.record import ShardId, StoredRecord
from penstock.tiered.rocketmq.append_result import AppendResult
from penstock.tiered.rocketmq.composite_access import request_of
from penstock.tiered.rocketmq.file_segment import FileSegment, FileSegmentMetadata, FileSegmentType
from penstock.tiered.rocketmq.flat_file import FlatFile
from penstock.tiered.rocketmq.index import IndexHit, lookup_index
from penstock.tiered.upload.relocate import relocate_record

INDEX_TOPIC: Final = "rmq_sys_INDEX"
_FILE: Final = re.compile(r"[0-9a-f]{8}(\d{20})")
_SIZES: Final = {FileSegmentType.COMMIT_LOG: 1 << 30, FileSegmentType.CONSUME_QUEUE: 100 << 20}
_BUFFER: Final = 4 << 20


def file_name(base: int) -> str:
    return f"{hashlib.md5(str(base).encode(), usedforsecurity=False).hexdigest()[:8]}{base:020d}"


def cluster_name(cluster: str) -> str:
    digest = hashlib.md5(cluster.encode(), usedforsecurity=False).hexdigest()
    return f"{digest[:8]}_{cluster}"


class _PosixBytes:
    """A growing file; bytes past its committed size were never acknowledged."""

    def __init__(self, path: str) -> None:
        self._path: Final = path

    def persist(self, position: int, data: bytes) -> None:
        os.makedirs(os.path.dirname(self._path), DIRECTORY_MODE, exist_ok=True)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            os.ftruncate(descriptor, position)
            os.pwrite(descriptor, data, position)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, position: int, size: int) -> bytes:
        with open(self._path, "rb") as file:
            file.seek(position)
            found = file.read(size)
        if len(found) != size:
            raise CorruptionError(self._path, position=position, reason="the file is cut short")
        return found


class RocketMqTier:
    """One broker's part of a tier in RocketMQ's layout."""

    def __init__(self, url: str, *, cluster: str = "DefaultCluster", broker: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme != "rocketmq+file" or parts.netloc or not parts.path:
            raise TierSetupError(f"{url}: expected rocketmq+file:///directory")
        self.url: Final = url
        root = f"{unquote(parts.path).rstrip('/')}/{cluster_name(cluster)}"
        names = sorted(os.listdir(root)) if os.path.isdir(root) else []
        if not broker and len(names) != 1:
            raise TierSetupError(f"{url}: name the broker: {', '.join(names) or 'there is none'}")
        self._root: Final = f"{root}/{broker or names[0]}"

    def shards(self) -> list[ShardId]:
        found: list[ShardId] = []
        topics = os.listdir(self._root) if os.path.isdir(self._root) else []
        for topic in topics:
            if topic != INDEX_TOPIC:
                queues = os.listdir(f"{self._root}/{topic}")
                found += [ShardId(topic, int(queue)) for queue in queues if queue.isdigit()]
        return sorted(found)

    def queue(self, shard: ShardId) -> RocketMqQueue:
        return RocketMqQueue(f"{self._root}/{shard.topic}/{shard.partition}", shard)

    def lookup(self, topic: str, key: str, topic_id: int | None = None) -> list[IndexHit]:
        """Return what the index files say of a key, newest file first. With a topic's number (see
        RocketMQ's metadata) only its hits; hashes may collide either way: look at the records."""
        directory = f"{self._root}/{INDEX_TOPIC}/0/INDEX"
        found: list[IndexHit] = []
        for path in sorted(_files(directory), key=lambda each: each[0], reverse=True):
            with open(path[1], "rb") as file:
                hits = lookup_index(path[1], file.read(), f"{topic}#{key}")
            found += [hit for hit in hits if topic_id is None or hit.topic_id == topic_id]
        return found


class RocketMqQueue:
    """The commit log and the consume queue of one queue."""

    def __init__(self, path: str, shard: ShardId) -> None:
        self.shard: Final = shard
        self._path: Final = path
        self.commit_log: Final = self._open(FileSegmentType.COMMIT_LOG)
        self.consume_queue: Final = self._open(FileSegmentType.CONSUME_QUEUE)

    def _open(self, type_: FileSegmentType) -> FlatFile:
        directory = f"{self._path}/{type_.name}"
        whole = QUEUE_UNIT.size if type_ is FileSegmentType.CONSUME_QUEUE else 1
        # A unit that a crash cut short was never acknowledged.
        found = [
            self._segment(type_, base, os.path.getsize(path) // whole * whole)
            for base, path in _files(directory)
        ]
        for segment in sorted(found, key=lambda one: one.base_offset)[:-1]:
            segment.seal(0)
        return FlatFile(directory, type_, found, lambda base: self._segment(type_, base, 0))

    def _segment(self, type_: FileSegmentType, base: int, size: int) -> FileSegment:
        path = f"{self._path}/{type_.name}/{file_name(base)}"
        metadata = FileSegmentMetadata(path=path, type=type_, base_offset=base, size=size)
        return FileSegment(metadata, _PosixBytes(path), size_max=_SIZES[type_], buffer_max=_BUFFER)

    @property
    def min_offset(self) -> int:
        return self.consume_queue.min_offset // QUEUE_UNIT.size

    @property
    def max_offset(self) -> int:
        """What the consume queue holds; the commit log may have more after a crash."""
        return self.consume_queue.commit_offset // QUEUE_UNIT.size

    # Reading

    def unit(self, offset: int) -> tuple[int, int, int]:
        """Return position, size and tags code of a queue offset."""
        data = self.consume_queue.read(offset * QUEUE_UNIT.size, QUEUE_UNIT.size)
        position, size, code = QUEUE_UNIT.unpack(data)
        return position, size, code

    def raw(self, offset: int) -> RawRecord:
        """Return the record of a queue offset, checked as far as RocketMQ's files allow."""
        position, size, _ = self.unit(offset)
        raw = self.raw_at(position, size)
        if (raw.topic, raw.queue_id, raw.queue_offset) != (*self.shard, offset):
            raise CorruptionError(self._path, position=position, reason="another record is here")
        return raw

    def raw_at(self, position: int, size: int) -> RawRecord:
        data = self.commit_log.read(position, size)
        raw = core.decode_raw(data, position, position, False)
        if isinstance(raw, Damage):
            raise CorruptionError(self._path, position=position, reason=raw.reason)
        if raw.size != size or raw.position != position:
            raise CorruptionError(self._path, position=position, reason="size or position is wrong")
        if zlib.crc32(raw.body) & CHECKSUM_MASK != raw.body_crc:
            raise CorruptionError(self._path, position=position, reason="the body is damaged")
        return raw

    def read(self, offset: int, max_records: int = 1000) -> list[StoredRecord]:
        """Return records from `offset` on, ascending, at most up to one that cannot be decoded,
        which raises `UnreadableContentError` when it is the first."""
        first = max(offset, self.min_offset)
        found: list[StoredRecord] = []
        for each in range(first, min(first + max_records, self.max_offset)):
            raw = self.raw(each)
            try:
                found.append(self._stored(raw))
            except UnreadableContentError:
                if not found:
                    raise
                break
        return found

    def records(self) -> Iterator[StoredRecord]:
        for offset in range(self.min_offset, self.max_offset):
            yield self._stored(self.raw(offset))

    def _stored(self, raw: RawRecord) -> StoredRecord:
        found = stored_from_raw(raw)
        if isinstance(found, Damage):
            raise unreadable(self.shard, raw, raw.queue_offset + 1, found.reason)
        return found

    # Writing

    def append(self, message: bytes) -> AppendResult:
        """Append a record of a simple queue to commit log and consume queue; `commit` makes both
        durable, the data first. A queue begins with the offset of its first record."""
        raw = core.decode_raw(message, 0, 0, False)
        if isinstance(raw, Damage) or raw.size != len(message):
            raise BadRequestError("not exactly one record of a commit log")
        if (raw.topic, raw.queue_id) != self.shard or raw.sys_flag & 128:
            raise BadRequestError(f"no record of the simple queue {self.shard.name!r}")
        self.consume_queue.init_offset(raw.queue_offset * QUEUE_UNIT.size)
        if raw.queue_offset * QUEUE_UNIT.size != self.consume_queue.append_offset:
            return AppendResult.OFFSET_INCORRECT
        position = self._next_position(len(message))
        result = self.commit_log.append(relocate_record(message, position), raw.store_timestamp_ms)
        if result is AppendResult.SUCCESS:
            request = request_of(raw, position)
            unit = QUEUE_UNIT.pack(position, len(message), request.tags_code)
            result = self.consume_queue.append(unit, raw.store_timestamp_ms)
        return result

    def _next_position(self, size: int) -> int:
        """Records never span files; the next file begins where this one ends."""
        assert size <= _SIZES[FileSegmentType.COMMIT_LOG], "a record fits in a file"
        return self.commit_log.append_offset

    def commit(self) -> None:
        self.commit_log.commit()
        self.consume_queue.commit()


def _files(directory: str) -> list[tuple[int, str]]:
    """Return base and path of the files that are named as RocketMQ names them."""
    found: list[tuple[int, str]] = []
    for name in os.listdir(directory) if os.path.isdir(directory) else []:
        match = _FILE.fullmatch(name)
        if match is not None and name == file_name(int(match[1])):
            found.append((int(match[1]), f"{directory}/{name}"))
    return sorted(found)
