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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final

from penstock.codec.format import (
    KIND_BATCH,
    KIND_SIMPLE,
    RECORD_HEAD,
)
from penstock.codec.select import core
from penstock.errors import (
    BadRequestError,
    StoreError,
    TierUnavailableError,
)
from penstock.platform.clock import Clock, SystemClock
from penstock.record import QueueKind, ShardId
from penstock.tiered.chunk import manifest_changes as changes
from penstock.tiered.chunk.manifest import Manifest
from penstock.tiered.chunk.shard_manifest import ShardManifest
from penstock.tiered.config import TierConfig
from penstock.tiered.maintenance.shard_upkeep import CompositeUpkeep
from penstock.tiered.providers.contract import TierProvider
from penstock.tiered.read.fetcher import Fetcher
from penstock.tiered.read.reader import TierReader
from penstock.tiered.rocketmq.append_result import AppendResult, BoundaryType
from penstock.tiered.rocketmq.composite_access import DispatchRequest, decode_message, offset_count
from penstock.tiered.rocketmq.composite_reads import CompositeReads
from penstock.tiered.rocketmq.file_segment import FileSegmentMetadata
from penstock.tiered.rocketmq.flat_file import FlatFile
from penstock.tiered.rocketmq.metadata_recorder import MetadataRecorder
from penstock.tiered.rocketmq.metadata_store import TieredMetadataStore
from penstock.tiered.upload.chunk_files import ChunkFiles
from penstock.tiered.upload.staged_chunks import StagedChunks

GAP_MAX: Final = 4096
"""Offsets without a record that one chunk spans, at most."""
_BORN_AT: Final = RECORD_HEAD.position_of("born_timestamp_ms")


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
        self.metadata: Final = MetadataRecorder(metadata_store, shard)
        self._lock: Final = threading.RLock()
        self.upload_lock: Final = threading.Lock()
        """Held by a thread that appends and commits several messages in a row."""
        self.delete_lock: Final = threading.Lock()
        """Held while records are found and deleted: each counts for one caller."""
        self.epoch: int | None = None
        """Under which this process appends; None: it only reads."""
        self._staged: Final = StagedChunks(self.manifest, kind, config, self.clock)
        self._files = ChunkFiles(self, None)
        self.is_closed = False
        self._dispatch_offset = 0
        self._queue_offset = 0
        self._initialized = False

    # Bounds

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
        manifest = self.current()
        return 0 if manifest is None else manifest.start_offset

    @property
    def max_offset(self) -> int:
        """The offset after the last one appended, committed or not."""
        return max(self._dispatch_offset, self.commit_offset)

    @property
    def commit_offset(self) -> int:
        """The offset after the last one that readers of the tier see."""
        manifest = self.current()
        return 0 if manifest is None else manifest.end_offset

    def current(self) -> Manifest | None:
        """Return the manifest as last seen; a destroyed shard has none."""
        manifest = self.manifest.known()
        return None if manifest is None or manifest.destroyed_ms is not None else manifest

    def refresh(self) -> Manifest | None:
        """Read the manifest anew."""
        self.manifest.load()
        return self.current()

    # Writing

    def acquire(self, epoch: int | None = None) -> int:
        """Take the shard for appending, under the epoch of a lease, or the next free one. What was
        appended and not committed before is dropped."""
        with self._lock:
            manifest = self.manifest.load()
            if manifest is not None and manifest.destroyed_ms is not None:
                self.upkeep.start_over()
            self.epoch = self.manifest.acquire(self.kind, epoch)
            self.reset()
            return self.epoch

    def release(self) -> None:
        """Give the epoch up; `acquire` takes a new one."""
        with self._lock:
            self.epoch = None
            self.manifest.load()
            self.reset()

    def reset(self) -> None:
        """Drop everything that is not committed; the manifest says where to continue."""
        with self._lock:
            manifest = self.current()
            self._dispatch_offset = 0 if manifest is None else manifest.end_offset
            self._queue_offset = self._dispatch_offset
            self._staged.reset(self._dispatch_offset)
            self._files = ChunkFiles(self, manifest)
            self._initialized = manifest is not None and manifest.initialized

    def init_offset(self, offset: int) -> None:
        with self._lock:
            if not self._initialized:
                self._initialized = True
                self._staged.next_offset = offset
                self._queue_offset = offset
            self._dispatch_offset = offset

    def append_commit_log(self, message: bytes, commit: bool = False) -> AppendResult:
        with self._lock:
            result = self._append_data(message, may_skip=False)
            if result is AppendResult.SUCCESS and commit:
                return self._commit_now(self.commit_commit_log)
            return result

    def append_consume_queue(self, request: DispatchRequest, commit: bool = False) -> AppendResult:
        """Let the consume queue have a message of the commit log: the manifest refers to chunks
        up to here. The unit itself is derived from the record when its chunk is built."""
        with self._lock:
            if self.is_closed:
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
            result = self._append_data(message, may_skip=True)
            if result is AppendResult.SUCCESS:
                self._queue_offset = self._dispatch_offset
            return result

    def _append_data(self, message: bytes, *, may_skip: bool) -> AppendResult:
        if self.is_closed:
            return AppendResult.FILE_CLOSED
        raw = decode_message(message)
        if (raw.topic, raw.queue_id) != self.shard:
            return AppendResult.WRONG_QUEUE
        before = self._dispatch_offset
        gap = raw.queue_offset - before
        if gap < 0 or (gap > 0 and not may_skip):
            return AppendResult.OFFSET_INCORRECT
        if gap > GAP_MAX and before > self._staged.next_offset:
            return AppendResult.BUFFER_FULL
        self.init_offset(raw.queue_offset)
        position = self.commit_log.append_offset
        result = self._files.append_data(message, position, raw.born_timestamp_ms)
        if result is not AppendResult.SUCCESS:
            self._dispatch_offset = before
            return result
        self._dispatch_offset += 1 if self.kind is QueueKind.SIMPLE else offset_count(raw)
        return result

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
            if self.is_closed or not data:
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
            with self._reset_on_error():
                self._staged.wait()

    def stage(self) -> int:
        """Begin to put what was appended, as a chunk, and do not wait for it: a few are on their
        way at a time. Return how many chunks the next `commit` lets the manifest refer to."""
        with self._lock:
            self._check_epoch()
            with self._reset_on_error(), self._staged.concurrently():
                self.commit_log.commit()
            return len(self._staged)

    @contextmanager
    def _reset_on_error(self) -> Iterator[None]:
        """Drop what is not committed when a put fails: which chunks are there is not known, and
        all are made again from the log."""
        try:
            yield
        except StoreError:
            self.reset()
            raise

    def commit_consume_queue(self) -> None:
        """Let the manifest refer to the chunks whose messages the consume queue has."""
        with self._lock:
            epoch = self._check_epoch()
            with self._reset_on_error():
                self._staged.wait()
                entries = self._staged.ready(self._queue_offset)
            if not entries:
                return
            now_ms = self.clock.now_ms()
            self.manifest.change(
                lambda manifest: self.upkeep.sealed_if_due(
                    changes.add_chunks(manifest, entries), now_ms
                ),
                epoch=epoch,
            )
            self._staged.drop_first(len(entries))
            self.record_metadata()

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
            self.manifest.change(lambda manifest: changes.advance(manifest, offset), epoch=epoch)
            self.reset()

    def put_chunk(self, position: int, data: bytes) -> None:
        """Upload records that start at `position` of the tiered log; called by the commit log."""
        manifest = self.current()
        is_first = not self._staged and (manifest is None or not manifest.initialized)
        self._staged.put(position, data, self._check_epoch(), is_first=is_first)

    def _check_epoch(self) -> int:
        if self.epoch is None:
            raise BadRequestError(f"{self.shard.name!r} is open for reading; acquire it first")
        return self.epoch

    def record_metadata(self) -> None:
        self.metadata.record(self.current(), self.segments())

    # Reading

    def get_message_async(self, consume_queue_offset: int) -> Future[bytes]:
        return self.reads.submit(self.reads.message, consume_queue_offset)

    def get_commit_log_async(self, offset: int, length: int) -> Future[bytes]:
        return self.reads.submit(self.reads.data, offset, length)

    def get_consume_queue_async(self, consume_queue_offset: int, count: int = 1) -> Future[bytes]:
        return self.reads.submit(self.reads.units, consume_queue_offset, count)

    def get_commit_log_dispatch_commit_offset(self) -> int:
        return max(self.commit_offset, self._staged.end_offset)

    def get_offset_in_consume_queue_by_time(
        self, timestamp: int, boundary_type: BoundaryType
    ) -> int:
        """Return the first offset that is not older (lower), or the last one that is not younger
        (upper); the end, or the beginning, of the tier when there is none."""
        return self.reads.offset_by_time(timestamp, boundary_type)

    def segments(self) -> list[FileSegmentMetadata]:
        manifest = self.current()
        return [] if manifest is None else self._files.describe(manifest)

    # Deleting

    def clean_expired_file(self, expire_timestamp: int) -> None:
        self.upkeep.expire(expire_timestamp)
        self.record_metadata()

    def destroy_expired_file(self) -> None:
        self.upkeep.collect_garbage()

    def shutdown(self) -> None:
        """Stop. What is not committed is in the log that it came from."""
        with self._lock:
            self.is_closed = True
            self._staged.abandon()
            self._files.shutdown()

    def destroy(self) -> None:
        """Delete the shard: reads end now; its objects go after the grace period,
        with this call or a later one."""
        self.shutdown()
        self.upkeep.destroy()
        self.metadata.delete()
