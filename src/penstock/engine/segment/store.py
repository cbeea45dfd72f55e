"""The segment store: records of many shards in one commit log, in RocketMQ's own files.

    with SegmentStore.open("data") as store:
        orders = ShardId("orders", 0)
        store.create_shard(orders)
        store.append(orders, Record(b"3 apples", key=b"o-17", tags=("eu",)))
        store.read(orders, 0)

Every method may be called from any thread. Appends are acknowledged when they are in the page cache
(`Flush.ASYNC`, the default: they survive this process) or on the device (`Flush.SYNC`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from penstock.engine.segment.background import Upkeep
from penstock.engine.segment.bounds import Bounds
from penstock.engine.segment.control import control_records as control
from penstock.engine.segment.control.shard_commands import ShardCommands
from penstock.engine.segment.control.shard_gc import ShardGarbageCollector
from penstock.engine.segment.control.shard_lifecycle import ShardLifecycle
from penstock.engine.segment.dispatch.changed_shards import ChangedShards
from penstock.engine.segment.dispatch.pipeline import DispatchPipeline
from penstock.engine.segment.index.batch_key_shards import BatchShards
from penstock.engine.segment.log.disk_errors import disk_errors
from penstock.engine.segment.open import open_parts
from penstock.engine.segment.parts import StoreParts
from penstock.engine.segment.queue.shard import ShardLog
from penstock.engine.segment.queue.shard_state import ShardState
from penstock.engine.segment.queue.shard_table import ShardTable
from penstock.engine.segment.queue.unit_scans import estimate_size
from penstock.engine.segment.read.batch_validation import check_batch
from penstock.engine.segment.read.kafka_batches import KafkaBatches
from penstock.engine.segment.read.key_reader import Query, ReadableShard, ShardReader
from penstock.engine.segment.read.point_reader import PointReader
from penstock.engine.segment.recovery.rebuild import rebuild_queue
from penstock.engine.segment.recovery.report import Progress, RecoveryReport
from penstock.engine.segment.replica.range_reader import RangeReader
from penstock.engine.segment.replica.replica_log import ReplicaParts
from penstock.engine.segment.replica.replicas import ShardReplicas
from penstock.engine.segment.retention import Retention
from penstock.engine.segment.rocketmq.topics_file import TopicsFile
from penstock.engine.segment.settings import SegmentSettings
from penstock.engine.segment.store_reads import StoreReads, require_pyarrow
from penstock.errors import BadRequestError, ClosedError, StoreError
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.disk import Disk
from penstock.platform.local_disk import LocalDisk
from penstock.platform.metrics import SegmentMetrics
from penstock.record import (
    Flush,
    Offset,
    Position,
    Producer,
    QueueKind,
    Record,
    ShardId,
    StoredRecord,
)

if TYPE_CHECKING:
    from penstock.engine.segment.read.arrow import AnyRows


class SegmentStore(StoreReads[ShardLog]):
    """One open store directory. Use `open`."""

    _table: ShardTable

    def __init__(self, parts: StoreParts) -> None:
        super().__init__(
            parts.table,
            ShardReader(
                parts.log.files,
                parts.index,
                parts.clock,
                parts.metrics,
                self._repair_queue,
                self._repair_index,
            ),
            PointReader(parts.log.files, parts.index, parts.clock),
        )
        self._parts: Final = parts
        self._log: Final = parts.log
        self.log_failure: Final = parts.log.failure
        self.write_refusal: Final = parts.log.refusal
        self._writer: Final = parts.writer
        self.append_path: Final = parts.writer.append_path
        self.append: Final = self.append_path.append
        """Append one record, of at most `size_max` bytes if given; return its offset. One native
        call, and no other where it succeeds."""
        self._commands: Final = ShardCommands(parts)
        garbage = ShardGarbageCollector(parts)
        self._lifecycle: Final = ShardLifecycle(parts, self._commands, garbage)
        self.clock: Final = parts.clock
        self._topics: Final = TopicsFile(
            parts.disk, parts.paths.topics, parts.clock, parts.table.user_kinds
        )
        if not parts.report.was_in_order:
            self._topics.mark_stale()
        self.retention: Final = Retention(
            parts, garbage, self._raise_floor, self._reader.live_between, self._restate
        )
        self.dispatch: Final = DispatchPipeline(
            parts.disk,
            parts.paths.dispatch,
            read=self._read_for_dispatch,
            bounds=parts.table.user_bounds,
            find_changed=lambda: ChangedShards(parts.table, parts.log.appender).changed,
            threads=parts.settings.background,
            clock=parts.clock,
            metrics=parts.metrics,
        )
        self._upkeep: Final = Upkeep(parts, self.retention, self.dispatch, self._topics, garbage)
        self.replicas: Final = ShardReplicas(
            ReplicaParts(
                store=parts,
                commands=self._commands,
                ranges=RangeReader(parts.log, self._repair_queue),
                reader=self._reader,
                on_cut=self._on_truncated,
                on_commit=self.dispatch.notify,
                checkpoint=self.checkpoint,
            ),
            parts.clock,
        )
        self._closed = False
        self._batch_keys: Final = BatchShards(parts, self._reader, parts.table.user_bounds)
        self.kafka: Final = KafkaBatches(parts, self._reader)
        # Not only in the first round of upkeep: seconds of writes would go to a disk without room.
        self.retention.refuse_or_accept()
        if parts.settings.background:
            self._upkeep.start()

    @classmethod
    def open(
        cls,
        path: str,
        settings: SegmentSettings | None = None,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        metrics: SegmentMetrics | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Open the store in a directory, creating it when there is none; recover it if needed.

        Raises `LockedError` when another process has it open, `NotAStoreError` for a directory
        that holds something else, `SettingsError` for sizes other than the store's own.
        """
        parts = open_parts(
            path,
            settings or SegmentSettings(),
            disk=disk or LocalDisk(),
            clock=clock or SystemClock(),
            metrics=metrics or SegmentMetrics(),
            progress=progress,
        )
        try:
            with disk_errors(parts.paths.root):
                return cls(parts)
        except BaseException:
            parts.release()
            parts.lock.release()
            raise

    @property
    def report(self) -> RecoveryReport:
        """What opening found and did."""
        return self._parts.report

    @property
    def has_failed(self) -> bool:
        """Whether a sync has failed: what was written before it may be lost, and no more is."""
        return self._log.failed

    @property
    def metrics(self) -> SegmentMetrics:
        return self._parts.metrics

    # Shards

    def create_shard(
        self,
        shard: ShardId,
        kind: QueueKind = QueueKind.SIMPLE,
        flush: Flush = Flush.ASYNC,
        config: bytes = b"",
        start_offset: int = 0,
    ) -> None:
        """Create `shard` empty; do nothing when it exists with this kind of queue. `config` is an
        engine's own description of it, kept with its state. Its first record gets `start_offset`:
        what comes before is kept elsewhere."""
        control.check_shard(shard)
        self._check_open()
        if kind is QueueKind.BATCH:
            self._batch_keys.need()
        with disk_errors(self._parts.paths.root):
            if self._table.find(shard) is not None and not self._table.has_user_shard(shard):
                # Before its first record: the caller that deleted it may be slow.
                self._on_truncated(shard, 0)
            created = self._lifecycle.create(shard, kind, flush, config, start_offset)
        if created:
            self._topics.mark_stale()

    def set_flush(self, shard: ShardId, flush: Flush) -> None:
        self._table.get(shard).set_flush(flush)

    def set_config(self, shard: ShardId, config: bytes) -> None:
        """Keep an engine's own description of a shard with its state."""
        self._commands.set_config(self._table.get(shard), config)

    def delete_shard(self, shard: ShardId) -> None:
        """Forget `shard` and its records; a shard of that name may be created again, empty. That
        survives what an append to the shard survives."""
        if not self._table.has_user_shard(shard):
            return
        self._check_not_closed()
        flush = self._table.get(shard).flush
        written = self._lifecycle.delete(shard)
        if written is None:
            return
        self.replicas.remove(shard)
        self._on_truncated(shard, 0)
        self._topics.mark_deleted(shard.topic)
        if not written:
            self.checkpoint(frees_room=True)
            return
        if flush is Flush.SYNC:
            self._log.wait_durable(self._log.end)
        self._upkeep.publish_soon()

    def shards(self) -> list[ShardId]:
        return self._table.user_shards()

    def bounds(self, shard: ShardId) -> Bounds:
        log = self._table.get(shard)
        return Bounds(
            earliest=Offset(log.earliest),
            commit=Offset(log.commit),
            next=Offset(log.next_offset),
            start_position=Position(self._log.files.start),
            end_position=Position(self._log.end),
        )

    def live_size(self, shard: ShardId) -> int:
        return estimate_size(self._table.get(shard))

    def size_between(self, shard: ShardId, offset: int, until: int) -> int:
        """Return the bytes that the log holds of [offset, until), by queue entries, unchecked."""
        log, size = self._table.get(shard), 0
        while offset < until and (rows := log.rows(log.unit_of(offset), until - offset)):
            size += sum(row.size for row in rows if row.first_offset < until)
            offset = rows[-1].end_offset
        return size

    def is_following(self, shard: ShardId) -> bool:
        """Say whether another node leads this shard and decides what it holds."""
        log = self._table.find(shard)
        return log is not None and log.is_following

    def kind(self, shard: ShardId) -> QueueKind:
        return self._table.get(shard).kind

    def state(self, shard: ShardId) -> ShardState:
        """What is known of a shard: deleted ranges, epochs, producers. Not to be changed."""
        return self._table.get(shard).state

    # Appending

    def try_append(self, shard: ShardId, record: Record, size_max: int) -> Offset | None:
        """Append one record if nothing has to be waited for; None: nothing was appended."""
        offset = self._writer.append_path.try_append(shard, record, size_max)
        return Offset(offset) if offset >= 0 else None

    def append_many(
        self, shard: ShardId, records: Sequence[Record], producer: Producer | None = None
    ) -> int:
        """Append `records`, all or none, also across a crash; return the first offset."""
        return self.append_once(shard, records, producer)[0]

    def append_once(
        self,
        shard: ShardId,
        records: Sequence[Record],
        producer: Producer | None,
        size_max: int | None = None,
    ) -> tuple[int, bool]:
        """Like `append_many`; also say whether it was a repeat, so that nothing was written."""
        if not records:
            raise BadRequestError("an append needs at least one record")
        return self._writer.write_many(self._table.get(shard), records, producer, size_max)

    def append_unsynced(self, shard: ShardId, records: Sequence[Record]) -> tuple[int, int]:
        """Like `append_many`, but leave it to the caller to wait for the device (`wait_durable`),
        up to the position that is returned with the offset."""
        return self._writer.write_unsynced(self._table.get(shard), records)

    def wait_durable(self, position: int) -> None:
        self._log.wait_durable(position)

    def append_columns(
        self,
        shard: ShardId,
        values: AnyRows,
        *,
        keys: AnyRows | None = None,
        tags: AnyRows | None = None,
        timestamps: AnyRows | None = None,
        producer: Producer | None = None,
    ) -> int:
        """Append one record per row of Arrow arrays, all or none; return the first offset."""
        require_pyarrow()
        from penstock.engine.segment.read.arrow import columns_of

        columns = columns_of(values, keys, tags, timestamps)
        if columns.rows == 0:
            raise BadRequestError("an append needs at least one row")
        return self._writer.write_columns(self._table.get(shard), columns, producer)

    def append_batch(
        self,
        shard: ShardId,
        body: bytes | memoryview,
        count: int,
        *,
        kafka: bool = False,
        born_ms: int | None = None,
        producer: Producer | None = None,
    ) -> int:
        """Append a batch of `count` messages to a batch shard; return the first offset.

        With `kafka` it is one of Kafka's, of which base offset and leader epoch are set (both lie
        outside of its checksum); else one of RocketMQ's form, or opaque: raw reads return that,
        others raise `UnreadableContentError`, and it is found by no key or tag.
        """
        log = self._table.get(shard)
        check_batch(log, body, count, kafka=kafka)
        born = self._parts.clock.now_ms() if born_ms is None else born_ms
        return self._writer.write_batch(log, body, count, born, producer, None, kafka=kafka)[0]

    def append_encoded(self, shard: ShardId, data: bytes | memoryview) -> int:
        """Append whole records as another log holds them, keeping all their fields; return the
        first offset. They must follow on the shard's last record."""
        return self._commands.copy(self._table.get(shard), data)

    # Deleting

    def delete_offsets(self, shard: ShardId, offsets: Iterable[int]) -> int:
        """Delete records: gone from every read immediately, and for good. Returns how many of them
        there were, not deleted before: of several callers, each record counts for exactly one."""
        log = self._table.get(shard)
        if log.state.is_replicated:
            return self.replicas.delete_offsets(log, offsets)
        with log.deleting:
            end = log.next_offset
            fresh = log.state.not_deleted(sorted(n for n in set(offsets) if 0 <= n < end))
            for command in control.delete_offsets(fresh):
                self._commands.run(log, command)
        return len(fresh)

    def delete_before(self, shard: ShardId, offset: int) -> int:
        """Let the shard begin at `offset`, at most at its commit offset; return where it does."""
        log = self._table.get(shard)
        target = min(offset, log.commit)
        if log.state.is_replicated:
            if target > log.earliest:
                self.replicas.delete_before(log, target)
        elif target > log.earliest and not self._commands.delete_before(log, target):
            self.checkpoint(frees_room=True)
        return log.earliest

    def seal(self, shard: ShardId) -> None:
        """Take no more records for `shard`."""
        log = self._table.get(shard)
        if log.state.sealed:
            return
        if log.state.is_replicated:
            self.replicas.seal(log)
        else:
            self._commands.run(log, control.Seal())

    # Replication

    def set_epoch(self, shard: ShardId, epoch: int) -> None:
        """Write `epoch` as the leader's into the records from now on. It never goes back, whatever
        is cut off; after a crash it is that of the last checkpoint, or of a newer record."""
        log = self._table.get(shard)
        with self._log.lock, log.lock:
            if epoch < log.epoch:
                raise BadRequestError(f"epoch {epoch} of {shard.name!r} is before {log.epoch}")
            log.epoch = epoch
            log.begin_epoch(log.next_offset)
        self._parts.checkpointer.touch(log)

    def set_commit_offset(self, shard: ShardId, offset: int | None) -> None:
        """Show nothing at or past `offset`; None shows all that is on this node."""
        self._table.get(shard).limit_commit(None if offset is None else Offset(offset))
        self.dispatch.notify()

    def truncate(self, shard: ShardId, offset: int) -> int:
        """Cut the tail of a shard from `offset` on: a replica that went another way than its
        leader. The offsets are given out again. Returns where the shard ends now: a batch that
        reaches past `offset` goes whole."""
        log = self._table.get(shard)
        if offset < log.earliest:
            raise BadRequestError(
                f"shard {shard.name!r} begins at {log.earliest}, it cannot be truncated at {offset}"
            )
        self._check_open()
        with self._parts.checkpointer.pause:
            end, _ = self._commands.cut(log, offset)
        self._on_truncated(shard, end)
        self.checkpoint()
        with self._parts.checkpointer.pause, disk_errors(log.units.directory):
            log.trim_files()
        return end

    # Upkeep

    def flush(self, *, publish: bool = False) -> None:
        """Put everything appended so far on the device; `publish`: show it to readers outside."""
        self._check_not_closed()
        self._log.flush()
        if publish:
            with disk_errors(self._parts.paths.root):
                self._parts.checkpointer.publish()

    def checkpoint(self, *, frees_room: bool = False) -> None:
        """Put everything derived on the device, too: the next start begins here."""
        self._check_not_closed()
        with disk_errors(self._parts.paths.root):
            self._upkeep.checkpoint(frees_room=frees_room)

    def run_upkeep(self) -> None:
        """Run background maintenance now."""
        self._check_not_closed()
        with disk_errors(self._parts.paths.root):
            self._upkeep.run_once()
            self._batch_keys.run_once()

    def _repair_queue(self, damaged: ReadableShard) -> None:
        log = self._table.get(damaged.shard)
        self._parts.metrics.rebuilt_files.inc()
        with disk_errors(log.units.directory):
            rebuild_queue(self._log.files, log, self._log.end)
        self._parts.checkpointer.touch(log)

    def _repair_index(self) -> None:
        with disk_errors(self._parts.paths.index):
            self._upkeep.rebuild_index()

    def _read_for_dispatch(
        self, shard: ShardId, offset: int, max_records: int, max_size: int
    ) -> list[StoredRecord]:
        log = self._table.get(shard)
        return self._reader.read_some(log, Query(offset, log.commit, max_records, max_size))

    def _raise_floor(self, log: ShardLog, offset: int) -> bool:
        """Let a shard begin at `offset`, as retention wants it; see `ShardCommands`."""
        if log.state.is_replicated:
            self.replicas.ask_floor(log, offset)
            return True
        return self._commands.delete_before(log, offset)

    def _restate(self, log: ShardLog) -> None:
        self.replicas.restate(log)

    def _on_truncated(self, shard: ShardId, offset: int) -> None:
        """Let everything that follows the shard go back to `offset`: other records come there."""
        self.dispatch.cut(shard, offset)
        self._batch_keys.cut(shard, offset)
        self.retention.on_truncated(shard)

    def _check_open(self) -> None:
        self._check_not_closed()
        self._log.check_writable()

    def _check_not_closed(self) -> None:
        if self._closed:
            raise ClosedError(f"the store {self._parts.paths.root} was closed")

    def close(self) -> None:
        """Put everything on the device and release the directory. Safe to call again."""
        if self._closed:
            return
        self._closed = True
        self._upkeep.stop()
        self.dispatch.close()
        self._batch_keys.close()
        parts = self._parts
        try:
            with self._log.lock:
                self._log.refuse(ClosedError(f"the store {parts.paths.root} was closed"))
            if not self._log.failed:
                self._log.flush()
                self._topics.save()
                parts.checkpointer.checkpoint(clean=True)
                parts.checkpointer.remove_live()
                parts.disk.remove(parts.paths.abort)
                parts.disk.sync_directory(parts.paths.root)
        except (OSError, StoreError) as error:
            # Everything acknowledged is where it was promised to be; the abort file stays and
            # makes the next start look at the log.
            self._upkeep.report_failed_close(error)
        finally:
            self._release()

    def _release(self) -> None:
        parts = self._parts
        closed = ClosedError(f"the store {parts.paths.root} was closed")
        parts.checkpointer.stop(closed)
        self._table.close(closed)
        try:
            parts.index.detach(self._log.appender)
        except OSError as error:
            self._upkeep.report_failed_close(error)
        finally:
            parts.release()
            parts.lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
