"""`CompositeFlatFile`: the commit log and the consume queue of one shard in a tier.

    append ──▶ buffers ──▶ commit_commit_log: a chunk, not referred to yet
                           commit_consume_queue: the manifest refers to it   = index, commit offset

So data is there before its index, and the index before the commit offset; after a crash at any
point only objects remain that nothing refers to. A writer holds an epoch (`acquire`); when
another takes the shard over, the next commit raises `LeaseLostError` and changes nothing. Reading
needs no epoch. All of it is synchronous and needs no node: Spark workers use it as brokers do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from msgspec.structs import replace

from penstock.codec.format import (
    BATCH_UNIT,
    KIND_BATCH,
    KIND_SIMPLE,
    QUEUE_UNIT,
    RECORD_HEAD,
    Damage,
    RawRecord,
)
from penstock.codec.select import core
from penstock.engine.segment import UnitsRead
from penstock.errors import (
    BadRequestError,
    ClosedError,
    StoreError,
    TierUnavailableError,
    UnreadableContentError,
)
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.log import get_logger
from penstock.record import QueueKind, ShardId, StoredRecord
from penstock.tiered.chunk import manifest_changes as changes
from penstock.tiered.chunk.chunk import ChunkEntry, ChunkRange, build_chunk, derive_units
from penstock.tiered.chunk.chunk_records import read_units
from penstock.tiered.chunk.manifest import Manifest
from penstock.tiered.chunk.shard_manifest import ShardManifest
from penstock.tiered.config import TierConfig
from penstock.tiered.maintenance.shard_upkeep import CompositeUpkeep
from penstock.tiered.object_names import chunk_name
from penstock.tiered.providers.contract import TierProvider
from penstock.tiered.read.async_reads import IsCancelled
from penstock.tiered.read.chunk_stream import FetchedChunk
from penstock.tiered.read.fetcher import Fetcher
from penstock.tiered.read.reader import TierReader
from penstock.tiered.rocketmq.append_result import AppendResult, BoundaryType
from penstock.tiered.rocketmq.composite_access import DispatchRequest, offset_count
from penstock.tiered.rocketmq.composite_reads import CompositeReads
from penstock.tiered.rocketmq.file_segment import FileSegmentMetadata
from penstock.tiered.rocketmq.flat_file import FlatFile
from penstock.tiered.rocketmq.metadata_store import QueueMetadata, TieredMetadataStore
from penstock.tiered.upload.chunk_files import ChunkFiles
from penstock.tiered.upload.upload_window import UploadWindow

GAP_MAX: Final = 4096
"""Offsets without a record that one chunk spans, at most."""
_BORN_AT: Final = RECORD_HEAD.position_of("born_timestamp_ms")

_log: Final = get_logger(__name__)


class CompositeFlatFile:
    """Implements `CompositeAccess`. One thread at a time appends and commits."""

    def __init__(
        self,
        config: TierConfig,
        shard: ShardId,
        kind: QueueKind = QueueKind.SIMPLE,
        *,
        provider: TierProvider | None = None,
        fetcher: Fetcher | None = None,
        metadata_store: TieredMetadataStore | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config: Final = config
        self.shard: Final = shard
        self.kind: Final = kind
        self.provider: Final = provider or config.open()
        self.fetcher: Final = fetcher or config.fetcher(self.provider)
        self.clock: Final = clock or SystemClock()
        self.manifest: Final = ShardManifest(self.provider, shard, config.owner)
        self.reader: Final = TierReader(self.manifest, self.fetcher, self.clock)
        self.reads: Final = CompositeReads(self)
        self.upkeep: Final = CompositeUpkeep(self.manifest, config, self.clock)
        self._metadata: Final = metadata_store
        self._recorded: dict[str, FileSegmentMetadata] | None = None
        """The rows of the metadata store by path; None before they were read."""
        self._lock: Final = threading.RLock()
        self.upload_lock: Final = threading.Lock()
        """Held by a thread that appends and commits several messages in a row."""
        self.delete_lock: Final = threading.Lock()
        """Held while records are found and deleted: each counts for one caller."""
        self._epoch: int | None = None
        self._staged: list[tuple[ChunkEntry, float]] = []
        self._window: Final = UploadWindow(self.provider, config.upload_window)
        self._put: Callable[[str, bytes], None] = self.provider.put_if_absent
        self._files = ChunkFiles(self, None)
        self._closed = False
        self._dispatch_offset = 0
        self._queue_offset = 0
        self._chunk_start = 0
        self._initialized = False

    # Bounds

    @property
    def epoch(self) -> int | None:
        return self._epoch

    @property
    def commit_log(self) -> FlatFile:
        return self._files.commit_log

    @property
    def is_initialized(self) -> bool:
        return self._initialized

    @property
    def dispatch_offset(self) -> int:
        """The queue offset of the next message to be appended."""
        return self._dispatch_offset

    @property
    def min_offset(self) -> int:
        """The first offset that the tier holds."""
        found = self.current()
        return 0 if found is None else found.start_offset

    @property
    def max_offset(self) -> int:
        """The offset after the last one appended, committed or not."""
        return max(self._dispatch_offset, self.commit_offset)

    @property
    def commit_offset(self) -> int:
        """The offset after the last one that readers of the tier see."""
        found = self.current()
        return 0 if found is None else found.end_offset

    def current(self) -> Manifest | None:
        """Return the manifest as last seen; a destroyed shard has none."""
        found = self.manifest.known()
        return None if found is None or found.destroyed_ms is not None else found

    def refresh(self) -> Manifest | None:
        """Read the manifest anew."""
        self.manifest.load()
        return self.current()

    # Writing

    def acquire(self, epoch: int | None = None) -> int:
        """Take the shard for appending, under the epoch of a lease, or the next free one. What was
        appended and not committed before is dropped."""
        with self._lock:
            found = self.manifest.load()
            if found is not None and found.destroyed_ms is not None:
                self.upkeep.start_over()
            self._epoch = self.manifest.acquire(self.kind, epoch)
            self.reset()
            return self._epoch

    def release(self) -> None:
        """Give the epoch up; `acquire` takes a new one."""
        with self._lock:
            self._epoch = None
            self.manifest.load()
            self.reset()

    def reset(self) -> None:
        """Drop everything that is not committed; the manifest says where to continue."""
        with self._lock:
            self._window.abandon()
            found = self.current()
            self._staged = []
            self._files = ChunkFiles(self, found)
            self._initialized = found is not None and found.initialized
            self._dispatch_offset = 0 if found is None else found.end_offset
            self._queue_offset = self._chunk_start = self._dispatch_offset

    def init_offset(self, offset: int) -> None:
        with self._lock:
            if not self._initialized:
                self._initialized = True
                self._chunk_start = offset
                self._queue_offset = offset
            self._dispatch_offset = offset

    def append_commit_log(self, message: bytes, commit: bool = False) -> AppendResult:
        with self._lock:
            if self._closed:
                return AppendResult.FILE_CLOSED
            position = self.commit_log.append_offset
            raw = _decode(message)
            if not self._is_own(raw):
                return AppendResult.WRONG_QUEUE
            if raw.queue_offset != self._dispatch_offset:
                return AppendResult.OFFSET_INCORRECT
            result = self._files.append_data(message, position, raw.born_timestamp_ms)
            if result is not AppendResult.SUCCESS:
                return result
            self._initialized = True
            self._dispatch_offset += self._count(raw)
            return self._commit_now(self.commit_commit_log) if commit else result

    def append_consume_queue(self, request: DispatchRequest, commit: bool = False) -> AppendResult:
        """Let the consume queue have a message of the commit log: the manifest refers to chunks
        up to here. The unit itself is derived from the record when its chunk is built."""
        with self._lock:
            if self._closed:
                return AppendResult.FILE_CLOSED
            end = request.queue_offset + request.count
            if request.queue_offset < self._queue_offset or end > self._dispatch_offset:
                return AppendResult.OFFSET_INCORRECT
            self._queue_offset = end
            if commit:
                return self._commit_now(lambda: self.commit(sync=True))
            return AppendResult.SUCCESS

    def append(self, message: bytes) -> AppendResult:
        """Append a message to the commit log and to the consume queue. Offsets between the last
        one and this one hold nothing any more: they become a hole."""
        with self._lock:
            if self._closed:
                return AppendResult.FILE_CLOSED
            raw = _decode(message)
            if not self._is_own(raw):
                return AppendResult.WRONG_QUEUE
            gap = raw.queue_offset - self._dispatch_offset
            if gap < 0:
                return AppendResult.OFFSET_INCORRECT
            if gap > GAP_MAX and self._dispatch_offset > self._chunk_start:
                return AppendResult.BUFFER_FULL
            before = self._dispatch_offset
            self.init_offset(raw.queue_offset)
            position = self.commit_log.append_offset
            result = self._files.append_data(message, position, raw.born_timestamp_ms)
            if result is not AppendResult.SUCCESS:
                self._dispatch_offset = before
                return result
            self._dispatch_offset += self._count(raw)
            self._queue_offset = self._dispatch_offset
            return AppendResult.SUCCESS

    def _is_own(self, raw: RawRecord) -> bool:
        return (raw.topic, raw.queue_id) == self.shard

    def _count(self, raw: RawRecord) -> int:
        return 1 if self.kind is QueueKind.SIMPLE else offset_count(raw)

    def append_many(self, messages: Sequence[bytes]) -> int:
        """Append messages as `append` does, as many as fit into the chunk; return how many."""
        size = self.append_range(b"".join(messages))
        count = 0
        while size > 0:
            size -= len(messages[count])
            count += 1
        return count

    def append_range(self, data: bytes) -> int:
        """Append whole messages, stored back to back, as `append` does each of them, as
        many as fit into the chunk; return how many bytes. No object is made of any of them."""
        with self._lock:
            if self._closed or not data:
                return 0
            position = self.commit_log.append_offset
            room = self.config.chunk_size - (position - self.commit_log.commit_offset)
            number = KIND_BATCH if self.kind is QueueKind.BATCH else KIND_SIMPLE
            placed, first, end = core.place_records(
                *(data, number, position, self._dispatch_offset, GAP_MAX, room),
                *(self.shard.topic, self.shard.partition),
            )
            if not placed:
                return self._append_first(data)
            born_ms = int.from_bytes(placed[_BORN_AT : _BORN_AT + 8], "big", signed=True)
            result = self.commit_log.append(placed, born_ms, now_ms=self.clock.now_ms())
            if result is not AppendResult.SUCCESS:
                return 0
            self.init_offset(first)
            self._dispatch_offset = self._queue_offset = end
            return len(placed)

    def _append_first(self, data: bytes) -> int:
        """Append the first of several messages: larger than a chunk, or after a wide gap."""
        size = int.from_bytes(data[:4], "big")
        return size if self.append(bytes(data[:size])) is AppendResult.SUCCESS else 0

    def _commit_now(self, commit: Callable[[], None]) -> AppendResult:
        try:
            commit()
        except TierUnavailableError:
            return AppendResult.IO_ERROR
        return AppendResult.SUCCESS

    def commit_commit_log(self) -> None:
        """Put what was appended into the tier, as a chunk that nothing refers to yet."""
        with self._lock:
            self._check_epoch()
            self.commit_log.commit()
            self._wait_for_puts()

    def stage(self) -> int:
        """Begin to put what was appended, as a chunk, and do not wait for it: a few are on their
        way at a time. Return how many chunks the next `commit` lets the manifest refer to."""
        with self._lock:
            self._check_epoch()
            self._put = self._window.put
            try:
                self.commit_log.commit()
            except StoreError:
                self.reset()
                raise
            finally:
                self._put = self.provider.put_if_absent
            return len(self._staged)

    def _wait_for_puts(self) -> None:
        try:
            self._window.wait()
        except StoreError:
            # Which of them are there is not known: all are made again, from the log.
            self.reset()
            raise

    def commit_consume_queue(self) -> None:
        """Let the manifest refer to the chunks whose messages the consume queue has."""
        with self._lock:
            epoch = self._check_epoch()
            self._wait_for_puts()
            ready = [pair for pair in self._staged if pair[0].end_offset <= self._queue_offset]
            if not ready:
                return
            late_s = self.config.grace_ms / 2000
            if late_s and self.clock.monotonic() - ready[0][1] > late_s:
                # The garbage collector may have deleted the chunks as orphans meanwhile.
                self.reset()
                raise TierUnavailableError(
                    f"a chunk of {self.shard.name!r} waited too long for its manifest; "
                    "it is uploaded again"
                )
            entries = [entry for entry, _ in ready]
            now_ms = self.clock.now_ms()
            self.manifest.change(
                lambda found: self.upkeep.sealed_if_due(changes.add_chunks(found, entries), now_ms),
                epoch=epoch,
            )
            self._staged = self._staged[len(ready) :]
            self._record_metadata()

    def commit(self, sync: bool) -> None:
        if sync:
            self.commit_commit_log()
            self.commit_consume_queue()
        else:
            threading.Thread(
                target=self._commit_quietly, name="penstock-tier-commit", daemon=True
            ).start()

    def _commit_quietly(self) -> None:
        """What fails here is still buffered, and raised by the next commit that waits."""
        try:
            self.commit(sync=True)
        except StoreError:
            return

    def advance(self, offset: int) -> None:
        """Answer for offsets up to `offset` which hold no record any more; everything appended
        must be committed."""
        with self._lock:
            epoch = self._check_epoch()
            self.manifest.change(lambda found: changes.advance(found, offset), epoch=epoch)
            self.reset()

    def put_chunk(self, position: int, data: bytes) -> None:
        """Upload records that start at `position` of the tiered log; called by the commit log."""
        epoch = self._check_epoch()
        raw = core.decode_raw(data, position, position, False)
        assert isinstance(raw, RawRecord), "what was appended is a record"
        units = derive_units(self.shard, self.kind, data, position, raw.queue_offset)
        start = self._chunk_start if self._manifest_started() else raw.queue_offset
        where = ChunkRange(
            start, self._end_of(units, raw.queue_offset), position, epoch, self.clock.now_ms()
        )
        name = chunk_name(epoch, where.first_offset)
        whole, entry = build_chunk(self.shard, self.kind, name, data, units, where)
        self._put(f"{self.manifest.prefix}{name}", whole)
        self._staged.append((entry, self.clock.monotonic()))
        self._chunk_start = entry.end_offset

    def _manifest_started(self) -> bool:
        found = self.current()
        return bool(self._staged) or (found is not None and found.initialized)

    def _end_of(self, units: bytes, first: int) -> int:
        if self.kind is QueueKind.SIMPLE:
            return first + len(units) // QUEUE_UNIT.size
        _, _, _, _, base, count, _, _ = BATCH_UNIT.unpack_from(units, len(units) - BATCH_UNIT.size)
        return int(base) + int(count)

    def _check_epoch(self) -> int:
        if self._epoch is None:
            raise BadRequestError(f"{self.shard.name!r} is open for reading; acquire it first")
        return self._epoch

    def _record_metadata(self) -> None:
        """Let the metadata store follow the manifest: bounds, and the rows of segments that were
        added, have grown or are gone, also while another process uploaded."""
        found = self.current()
        if self._metadata is None or found is None:
            return
        self._metadata.upsert_queue(self.shard, found.start_offset, found.end_offset)
        if self._recorded is None:
            rows: list[FileSegmentMetadata] = []
            self._metadata.iterate_file_segment(rows.append, queue=self.shard)
            # The manifest has no update times.
            self._recorded = {row.path: replace(row, update_ms=0) for row in rows}
        segments = {segment.path: segment for segment in self._files.describe(found)}
        for path, row in self._recorded.items():
            if path not in segments:
                self._metadata.delete_file_segment(row)
        for path, segment in segments.items():
            if self._recorded.get(path) != segment:
                self._metadata.update_file_segment(segment)
        self._recorded = segments

    def reserve_ms(self) -> int | None:
        """Return how long the metadata store says that the tier keeps the topic's records; None:
        it does not say."""
        topic = None if self._metadata is None else self._metadata.get_topic(self.shard.topic)
        return topic.reserve_time if topic is not None and topic.reserve_time > 0 else None

    # Reading

    def get_message_async(self, consume_queue_offset: int) -> Future[bytes]:
        return self._submit(lambda given_up: self.reads.message(consume_queue_offset, given_up))

    def get_commit_log_async(self, offset: int, length: int) -> Future[bytes]:
        return self._submit(lambda given_up: self.reads.data(offset, length, given_up))

    def get_consume_queue_async(self, consume_queue_offset: int, count: int = 1) -> Future[bytes]:
        return self._submit(
            lambda given_up: self.reads.units(consume_queue_offset, count, given_up)
        )

    def _submit(self, read: Callable[[IsCancelled], bytes]) -> Future[bytes]:
        def read_if_open(given_up: IsCancelled) -> bytes:
            if self._closed:
                raise ClosedError(f"the flat file of {self.shard.name!r} was shut down")
            return read(given_up)

        return self.fetcher.reads.submit(read_if_open)

    def get_commit_log_dispatch_commit_offset(self) -> int:
        staged = [entry.end_offset for entry, _ in self._staged]
        return max([self.commit_offset, *staged])

    def get_offset_in_consume_queue_by_time(
        self, timestamp: int, boundary_type: BoundaryType
    ) -> int:
        """Return the first offset that is not older (lower), or the last one that is not younger
        (upper); the end, or the beginning, of the tier when there is none."""
        if boundary_type is BoundaryType.LOWER:
            found = self.reader.offset_by_time(timestamp)
            return self.commit_offset if found is None else found
        younger = self.reader.offset_by_time(timestamp + 1)
        end = self.commit_offset if younger is None else younger
        found = self.reads.last_before(end)
        return self.min_offset if found is None else found

    def segments(self) -> list[FileSegmentMetadata]:
        """Return the segments that the manifest speaks of."""
        found = self.current()
        return [] if found is None else self._files.describe(found)

    def live_records(self, chunk: FetchedChunk, manifest: Manifest) -> list[StoredRecord]:
        """Return the records of a fetched chunk that are not deleted; a warning names those that
        cannot be decoded."""
        entry, footer = chunk.entry, chunk.footer
        if not footer.units:
            return []
        deleted = self.reader.deleted(manifest)
        read = UnitsRead(chunk.data, entry.position, footer.units, entry.units_offset)
        found = read_units(self.shard, footer.kind, read, self._warn)
        return [
            one
            for one in found
            if one.offset >= manifest.start_offset and one.offset not in deleted
        ]

    def _warn(self, passed_over: UnreadableContentError) -> None:
        _log.warning("content_passed_over", shard=self.shard.name, error=str(passed_over))

    # Going

    def clean_expired_file(self, expire_timestamp: int) -> None:
        self.upkeep.expire(expire_timestamp)
        self._record_metadata()

    def destroy_expired_file(self) -> None:
        self.upkeep.collect_garbage()

    def shutdown(self) -> None:
        """Stop. What is not committed is in the log that it came from."""
        with self._lock:
            self._closed = True
            self._window.abandon()
            self._files.shutdown()

    def destroy(self) -> None:
        """Delete the shard: reads end now; its objects go after the grace period,
        with this call or a later one."""
        self.shutdown()
        self.upkeep.destroy()
        if self._metadata is not None:
            self._metadata.delete_queue(self.shard)
            self._recorded = {}
            queues: list[QueueMetadata] = []
            self._metadata.iterate_queue(self.shard.topic, queues.append)
            if not queues:
                self._metadata.delete_topic(self.shard.topic)


def _decode(message: bytes) -> RawRecord:
    raw = core.decode_raw(message, 0, 0, False)
    if isinstance(raw, Damage) or raw.size != len(message):
        reason = raw.reason if isinstance(raw, Damage) else "more bytes than one record"
        raise BadRequestError(f"not a record of a commit log: {reason}")
    return raw
