"""`rocketmq+file:///directory`: RocketMQ's own tieredstore layout, read in full and written.

    <md5(cluster)[:8]>_<cluster>/<broker>/<topic>/<queue>/<COMMIT_LOG|CONSUME_QUEUE>/<file>
    …/rmq_sys_INDEX/0/INDEX/<file>
    <file> = md5(decimal base)[:8] and the base with twenty digits

RocketMQ rewrites the position of a record and leaves its `__CRC32#` as it was, so only sizes,
identity and the body's checksum can be checked in what it wrote; in what is written here, the
record's checksum follows the position.

What is written are queues of simple topics: records and units. Batches are rejected; index files
and RocketMQ's own metadata (`tieredStoreMetadata.json`) are not written. Files grow, and one writer
at a time may use them: nothing here keeps a second one away.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterator
from contextlib import closing
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
from penstock.platform.disk import Disk
from penstock.platform.local_disk import LocalDisk
from penstock.record import ShardId, StoredRecord
from penstock.tiered.rocketmq.append_result import AppendResult
from penstock.tiered.rocketmq.composite_access import decode_message, request_of
from penstock.tiered.rocketmq.file_segment import FileSegment, FileSegmentMetadata, FileSegmentType
from penstock.tiered.rocketmq.flat_file import FlatFile
from penstock.tiered.rocketmq.index import IndexHit, lookup_index
from penstock.tiered.upload.relocate import relocate_record

INDEX_TOPIC: Final = "rmq_sys_INDEX"
_FILE: Final = re.compile(r"[0-9a-f]{8}(\d{20})")
_SIZES: Final = {FileSegmentType.COMMIT_LOG: 1 << 30, FileSegmentType.CONSUME_QUEUE: 100 << 20}
_BUFFER: Final = 4 << 20
_LENGTH_SIZE: Final = 4
"""A record begins with its size."""


def names_in(disk: Disk, path: str) -> list[str]:
    """Return the sorted names in a directory; none when it is not one."""
    return disk.list(path) if disk.is_directory(path) else []


def file_name(base: int) -> str:
    return f"{hashlib.md5(str(base).encode(), usedforsecurity=False).hexdigest()[:8]}{base:020d}"


def cluster_name(cluster: str) -> str:
    digest = hashlib.md5(cluster.encode(), usedforsecurity=False).hexdigest()
    return f"{digest[:8]}_{cluster}"


class _GrowingFile:
    """The bytes of a segment; those past its committed size were never acknowledged."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk: Final = disk
        self._path: Final = path

    def persist(self, position: int, data: bytes) -> None:
        with closing(self._disk.open(self._path, create=True)) as file:
            file.truncate(position)
            file.write_at(position, data)
            file.sync()
        if position == 0:
            self._disk.sync_directory(self._path.rpartition("/")[0])

    def read(self, position: int, size: int) -> bytes:
        with closing(self._disk.open(self._path, writable=False)) as file:
            data = file.read_at(position, size)
        if len(data) != size:
            raise CorruptionError(self._path, position=position, reason="the file is cut short")
        return data


class RocketMqTier:
    """One broker's part of a tier in RocketMQ's layout."""

    def __init__(
        self,
        url: str,
        *,
        cluster: str = "DefaultCluster",
        broker: str = "",
        disk: Disk | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme != "rocketmq+file" or parts.netloc or not parts.path:
            raise TierSetupError(f"{url}: expected rocketmq+file:///directory")
        self.url: Final = url
        root = f"{unquote(parts.path).rstrip('/')}/{cluster_name(cluster)}"
        self._disk: Final = disk or LocalDisk()
        names = names_in(self._disk, root)
        if not broker and len(names) != 1:
            raise TierSetupError(
                f"{url}: name the broker; the directory holds: {', '.join(names) or 'none'}"
            )
        self._root: Final = f"{root}/{broker or names[0]}"

    def shards(self) -> list[ShardId]:
        return sorted(
            ShardId(topic, int(queue))
            for topic in names_in(self._disk, self._root)
            if topic != INDEX_TOPIC
            for queue in names_in(self._disk, f"{self._root}/{topic}")
            if queue.isdigit()
        )

    def queue(self, shard: ShardId) -> RocketMqQueue:
        return RocketMqQueue(self._disk, f"{self._root}/{shard.topic}/{shard.partition}", shard)

    def lookup(self, topic: str, key: str, topic_id: int | None = None) -> list[IndexHit]:
        """Return what the index files say of a key, newest file first. With a topic's number (see
        RocketMQ's metadata) only its hits; hashes may collide either way: look at the records."""
        directory = f"{self._root}/{INDEX_TOPIC}/0/INDEX"
        matching: list[IndexHit] = []
        for _, path in reversed(_files(self._disk, directory)):
            with closing(self._disk.open(path, writable=False)) as file:
                hits = lookup_index(path, file.read_at(0, file.size()), f"{topic}#{key}")
            matching += [hit for hit in hits if topic_id is None or hit.topic_id == topic_id]
        return matching


class RocketMqQueue:
    """The commit log and the consume queue of one queue."""

    def __init__(self, disk: Disk, path: str, shard: ShardId) -> None:
        self.shard: Final = shard
        self._disk: Final = disk
        self._path: Final = path
        self.commit_log: Final = self._open(FileSegmentType.COMMIT_LOG)
        self.consume_queue: Final = self._open(FileSegmentType.CONSUME_QUEUE)

    def _open(self, type_: FileSegmentType) -> FlatFile:
        directory = f"{self._path}/{type_.name}"
        segments: list[FileSegment] = []
        for base, path in _files(self._disk, directory):
            status = self._disk.status(path)
            size = 0 if status is None else status.size
            segments.append(self._segment(type_, base, size))
        if segments and type_ is FileSegmentType.CONSUME_QUEUE:
            last = segments.pop()
            size = self._written_size(last)
            segments.append(self._segment(type_, last.base_offset, size))
        for segment in segments[:-1]:
            segment.seal(0)
        return FlatFile(directory, type_, segments, lambda base: self._segment(type_, base, 0))

    def _written_size(self, segment: FileSegment) -> int:
        """Return the bytes of whole units in the last file of a consume queue. A power cut may
        leave parts of units, or zeros, after those that were acknowledged. Records follow each
        other in the commit log, so that a unit is checked only where its neighbours disagree."""
        size = segment.commit_position // QUEUE_UNIT.size * QUEUE_UNIT.size
        data = segment.read(0, size)
        expected = -1
        for start in range(0, size, QUEUE_UNIT.size):
            position, length, _ = QUEUE_UNIT.unpack_from(data, start)
            if position != expected:
                for suspect in (start - QUEUE_UNIT.size, start):
                    if suspect >= 0 and not self._is_whole(segment, suspect, data):
                        return suspect
            expected = position + length
        last = size - QUEUE_UNIT.size
        return size if last < 0 or self._is_whole(segment, last, data) else last

    def _is_whole(self, segment: FileSegment, start: int, data: bytes) -> bool:
        """Say whether a unit points at the record of its offset, and its tags code is not torn."""
        position, size, code = QUEUE_UNIT.unpack_from(data, start)
        if position < self.commit_log.min_offset:
            return True  # of a file that was deleted before the consume queue's
        if size < _LENGTH_SIZE or position + size > self.commit_log.commit_offset:
            return False
        record = self.commit_log.read(position, size)
        if int.from_bytes(record[:_LENGTH_SIZE], "big") != size:
            return False
        raw = core.decode_raw(record, position, position, False)
        if isinstance(raw, Damage):
            return True  # the record is damaged, which its readers report, not its unit
        expected = request_of(raw, position).tags_code
        is_torn = code != expected and any(code == expected >> n << n for n in range(8, 72, 8))
        offset = (segment.base_offset + start) // QUEUE_UNIT.size
        return raw.queue_offset == offset and not is_torn

    def _segment(self, type_: FileSegmentType, base: int, size: int) -> FileSegment:
        path = f"{self._path}/{type_.name}/{file_name(base)}"
        metadata = FileSegmentMetadata(path=path, type=type_, base_offset=base, size=size)
        return FileSegment(
            metadata,
            _GrowingFile(self._disk, path),
            size_max=_SIZES[type_],
            buffer_max=_BUFFER,
        )

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
            raise CorruptionError(
                self._path,
                position=position,
                reason="the record has another offset or queue",
            )
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
        records: list[StoredRecord] = []
        for number in range(first, min(first + max_records, self.max_offset)):
            raw = self.raw(number)
            try:
                records.append(self._stored(raw))
            except UnreadableContentError:
                if not records:
                    raise
                break
        return records

    def records(self) -> Iterator[StoredRecord]:
        for offset in range(self.min_offset, self.max_offset):
            yield self._stored(self.raw(offset))

    def _stored(self, raw: RawRecord) -> StoredRecord:
        stored = stored_from_raw(raw)
        if isinstance(stored, Damage):
            raise unreadable(self.shard, raw, raw.queue_offset + 1, stored.reason)
        return stored

    # Writing

    def append(self, message: bytes) -> AppendResult:
        """Append a record of a simple queue to commit log and consume queue; `commit` makes both
        durable, the data first. A queue begins with the offset of its first record."""
        raw = decode_message(message)
        if (raw.topic, raw.queue_id) != self.shard or raw.sys_flag & 128:
            raise BadRequestError(f"not a record of the simple queue {self.shard.name!r}")
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


def _files(disk: Disk, directory: str) -> list[tuple[int, str]]:
    """Return base and path of the files that are named as RocketMQ names them, by base."""
    files: list[tuple[int, str]] = []
    for name in names_in(disk, directory):
        match = _FILE.fullmatch(name)
        if match is not None and name == file_name(int(match[1])):
            files.append((int(match[1]), f"{directory}/{name}"))
    return sorted(files)
