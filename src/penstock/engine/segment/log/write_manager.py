"""Every append goes through here: one writer at a time, in the caller's own thread.

    caller ──▶ append path: one native call ──▶ offset
                  │ needs more than the appender: a roll, an index file, an answer, a producer
                  └──▶ the log's lock ──▶ append here ──▶ offset

Handing each message to a writer thread costs more than the append itself, so there is none, and a
leader that appends for all waiting writers costs more than the lock. The append path holds the lock
while it encodes, never while it waits for the interpreter or the device. A caller that finds the
lock taken waits for it without the interpreter, then appends its own records.

A caller that found the lock taken for `DEADLINE_S` gets `BusyError`; its records were not written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.codec.codes import BUSY, TOO_LARGE
from penstock.codec.select import core
from penstock.codec.validation import check_records
from penstock.engine.segment.index.key_index import KeyIndex
from penstock.engine.segment.log.commit_log import CommitLog, weak_callback
from penstock.engine.segment.log.disk_errors import disk_errors, lacks_descriptors
from penstock.engine.segment.queue.shard import ShardLog
from penstock.errors import (
    BusyError,
    DiskFailedError,
    DiskFullError,
    NotLeaderError,
    ShardSealedError,
    UnknownShardError,
)
from penstock.platform.clock import Clock, shows_system_time
from penstock.platform.metrics import SegmentMetrics
from penstock.record import Flush, Producer, Record, ShardId

if TYPE_CHECKING:
    from penstock.engine.segment.read.arrow import RowColumns

DEADLINE_S: Final = 30.0
_NATIVE_CLOCK: Final = -1
_INDEX_FILES_MAX: Final = 8
"""Index files that are filled, or full and not sealed: an append that needs another waits."""


class WriteManager:
    def __init__(
        self,
        log: CommitLog,
        handles: Mapping[ShardId, int],
        find: Callable[[ShardId], ShardLog],
        index: KeyIndex,
        clock: Clock,
        metrics: SegmentMetrics,
    ) -> None:
        self._log: Final = log
        self._find: Final = find
        self._index: Final = index
        self._clock: Final = clock
        self._metrics: Final = metrics
        self._system_time: Final = shows_system_time(clock)
        now = None if self._system_time else clock.now_ms
        self.append_path: Final = core.AppendPath(
            log.appender,
            log.lock,
            log.group_commit,
            weak_callback(log.sync_all),
            handles,
            now,
            DEADLINE_S,
            weak_callback(self._write),
        )

    def now(self) -> int:
        """The time to stamp records with; native code reads the system's clock by itself."""
        return _NATIVE_CLOCK if self._system_time else self._clock.now_ms()

    def _write(self, name: ShardId, record: Record, size_max: int | None, answer: int) -> int:
        """Append one record, for which the append path returned `answer`; return its offset."""
        shard = self._find(name)
        self._check_answer(answer, shard, (record,), size_max)
        appender = self._log.appender

        def append(_: str | None) -> int:
            return appender.append(shard.handle, record, self.now(), shard.epoch)

        return self.run(shard, lambda: self._append_unsealed(shard, append, None))

    def write_many(
        self,
        shard: ShardLog,
        records: Sequence[Record],
        producer: Producer | None,
        size_max: int | None = None,
    ) -> tuple[int, bool]:
        """Append a group, all or none; return the first offset, and whether it was a repeat."""
        if producer is None:
            offset = self.append_path.append_many(shard.shard, records, size_max)
            if offset >= 0:
                return offset, False
            self._check_answer(offset, shard, records, size_max)
        appender = self._log.appender
        transaction = None
        if producer is not None and producer.is_transactional:
            transaction = str(producer.id)
        return self.run_for_producer(
            shard,
            producer,
            len(records),
            lambda text: appender.append_many(
                shard.handle, records, self.now(), shard.epoch, text, transaction
            ),
        )

    def write_batch(
        self,
        shard: ShardLog,
        body: bytes | memoryview,
        count: int,
        born_ms: int,
        producer: Producer | None,
        tag_header: str | None,
        *,
        kafka: bool = True,
    ) -> tuple[int, bool]:
        """Append a batch, Kafka's or an opaque one; return the first offset, and whether it was a
        repeat."""
        append_batch = self._log.appender.append_batch
        return self.run_for_producer(
            shard,
            producer,
            count,
            lambda text: append_batch(
                shard.handle, body, count, self.now(), shard.epoch, born_ms, text, kafka, tag_header
            ),
        )

    def write_columns(self, shard: ShardLog, columns: RowColumns, producer: Producer | None) -> int:
        """Append one record per row, all or none; return the first offset."""
        appender = self._log.appender
        return self.run_for_producer(
            shard,
            producer,
            columns.rows,
            lambda text: appender.append_columns(
                shard.handle,
                columns.rows,
                columns.values,
                columns.keys,
                columns.tags,
                columns.timestamps,
                self.now(),
                shard.epoch,
                text,
            ),
        )[0]

    def run_for_producer(
        self,
        shard: ShardLog,
        producer: Producer | None,
        count: int,
        append: Callable[[str | None], int],
    ) -> tuple[int, bool]:
        """Append under a producer's sequence: check, append and remember are one step. A repeat is
        answered even when the shard was sealed since."""
        if producer is None:
            return self.run(shard, lambda: self._append_unsealed(shard, append, None)), False
        text = f"{producer.id},{producer.epoch},{producer.sequence},{count}"
        repeated = False

        def once() -> int:
            nonlocal repeated
            if shard.is_following:
                check_led(shard)
            with shard.lock:
                first = shard.state.producers.check(producer, count, shard.shard.name)
                if first is not None:
                    repeated = True
                    return first
                offset = self._append_unsealed(shard, append, text)
                if offset >= 0:
                    now_ms = self._clock.now_ms()
                    shard.state.producers.remember(producer, count, offset, now_ms)
                return offset

        return self.run(shard, once), repeated

    def _append_unsealed(
        self, shard: ShardLog, append: Callable[[str | None], int], text: str | None
    ) -> int:
        check_not_sealed(shard)
        offset = append(text)
        if shard.epoch_is_new and offset >= 0:
            shard.begin_epoch(offset)
        return offset

    def write_unsynced(self, shard: ShardLog, records: Sequence[Record]) -> tuple[int, int]:
        """Append a group, all or none, and wait for no device; return the first offset, and the
        position up to which the caller has to wait."""
        append_many = self._log.appender.append_many

        def append(_: str | None) -> int:
            return append_many(shard.handle, records, self.now(), shard.epoch, None, None)

        return self.run_unsynced(lambda: self._append_unsealed(shard, append, None))

    def run(self, shard: ShardLog, append: Callable[[], int]) -> int:
        """Run `append` as the only writer, then wait for the device if the shard wants that."""
        offset, position = self.run_unsynced(append)
        if shard.flush is Flush.SYNC:
            self._log.wait_durable(position)
        return offset

    def run_unsynced(self, append: Callable[[], int]) -> tuple[int, int]:
        """Run `append` as the only writer; return the offset, and where the log ends then."""
        lock = self._log.lock
        if not lock.acquire(DEADLINE_S):
            self._check_patience(BUSY)
        try:
            return self._append(append), self._log.end
        finally:
            lock.release()

    def _check_answer(
        self, answer: int, shard: ShardLog, records: Sequence[Record], size_max: int | None
    ) -> None:
        if answer == TOO_LARGE and size_max is not None:
            check_records(records, shard.shard, size_max)
        self._check_patience(answer)

    def _check_patience(self, answer: int) -> None:
        if answer == BUSY:
            self._metrics.writes_refused.labels("busy").inc()
            raise BusyError(f"the log was busy for {DEADLINE_S:g} s; nothing was written")

    def _append(self, operation: Callable[[], int]) -> int:
        try:
            return self._log.append(operation, self.more_index)
        except DiskFullError:
            self._metrics.writes_refused.labels("disk_full").inc()
            raise
        except DiskFailedError:
            self._metrics.writes_refused.labels("disk_failed").inc()
            raise

    def more_index(self) -> None:
        """Attach another index file; the log's lock is held, or no append has begun."""
        with disk_errors(self._index.directory):
            try:
                self._add_index_file()
            except OSError as error:
                if not lacks_descriptors(error):
                    raise
                self._index.release_descriptors(self._log.appender)
                self._add_index_file()

    def _add_index_file(self) -> None:
        appender = self._log.appender
        if self._index.attached_count >= _INDEX_FILES_MAX:
            # The background seals full files. Writers that fill them faster wait for the device
            # here: files that are not sealed keep their descriptors and their memory.
            self._index.seal_full(appender)
        self._index.add_file(appender, self._clock.now_ms())

    def save_index(self) -> None:
        """Put full index files on the device with their checksums, and keep one ahead."""
        appender = self._log.appender
        self._index.seal_full(appender)
        if appender.index_attached and appender.index_room < self._index.entries_max // 4:
            try:
                with self._log.lock:
                    self._index.add_file(appender, self._clock.now_ms())
            except OSError:
                return  # An append that needs it will say so.


def check_led(shard: ShardLog) -> None:
    """Refuse records of clients for a shard that another node leads."""
    if shard.is_following and not shard.state.dropped:
        raise NotLeaderError(shard.shard.name, leader=None)


def check_not_sealed(shard: ShardLog) -> None:
    if shard.state.dropped:
        raise UnknownShardError(shard.shard.name)
    if shard.is_following:
        check_led(shard)
    if shard.state.sealed:
        raise ShardSealedError(shard.shard.name)
