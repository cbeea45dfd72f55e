"""Every append goes through here: one writer at a time, in the caller's own thread.

    caller ──▶ lock free? ── yes ──▶ append, return
                   │ no
                   └──▶ bounded queue ──▶ whoever has the lock next appends for all in the queue

Handing each message to a writer thread costs more than the append itself, so there is none. Under
contention, at a roll of the log, or while a large group is encoded, callers queue up; the first of
them to get the lock does the work of all, and each gets exactly its own offsets.

Bounds: at most `QUEUE_MAX` callers wait, the others wait for a place; a caller that found neither
place nor lock for `DEADLINE_S` gets `BusyError`, and its records were not written.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from penstock.clock import Clock, SystemClock
from penstock.engine.segment.commit_log import CommitLog
from penstock.engine.segment.disk_errors import disk_errors
from penstock.engine.segment.key_index import KeyIndex
from penstock.engine.segment.shard_log import ShardLog
from penstock.errors import BusyError, DiskFullError, ShardSealedError, UnknownShardError
from penstock.metrics import SegmentMetrics
from penstock.record import Flush, Producer, Record

QUEUE_MAX: Final = 1024
DEADLINE_S: Final = 30.0
_NATIVE_CLOCK: Final = -1


class _Request:
    __slots__ = ("_error", "_operation", "_result", "done")

    def __init__(self, operation: Callable[[], int]) -> None:
        self._operation = operation
        self._result = -1
        self._error: BaseException | None = None
        self.done = False

    def execute(self, append: Callable[[Callable[[], int]], int]) -> None:
        try:
            self._result = append(self._operation)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that asked
            self._error = error
        self.done = True

    def result(self) -> int:
        if self._error is not None:
            raise self._error
        return self._result


class WriteManager:
    def __init__(
        self, log: CommitLog, index: KeyIndex, clock: Clock, metrics: SegmentMetrics
    ) -> None:
        self._log: Final = log
        self._index: Final = index
        self._clock: Final = clock
        self._metrics: Final = metrics
        self._append_native: Final = log.appender.append
        self._system_time: Final = isinstance(clock, SystemClock)
        self._queue: deque[_Request] = deque()
        self._places: Final = threading.BoundedSemaphore(QUEUE_MAX)

    def now(self) -> int:
        """The time to stamp records with; native code reads the system's clock by itself."""
        return _NATIVE_CLOCK if self._system_time else self._clock.now_ms()

    def write(self, shard: ShardLog, record: Record) -> int:
        """Append one record; return its offset."""
        log = self._log
        if shard.quick and log.blocked is None and log.lock.acquire(False):
            try:
                now_ms = _NATIVE_CLOCK if self._system_time else self._clock.now_ms()
                offset = self._append_native(shard.handle, record, now_ms, shard.epoch)
            finally:
                log.lock.release()
            if offset >= 0:
                return offset
        return self.run(shard, lambda: self._append_one(shard, record))

    def _append_one(self, shard: ShardLog, record: Record) -> int:
        _check_not_sealed(shard)
        return self._log.appender.append(shard.handle, record, self.now(), shard.epoch)

    def write_many(
        self, shard: ShardLog, records: Sequence[Record], producer: Producer | None
    ) -> tuple[int, bool]:
        """Append a group, all or none; return the first offset, and whether it was a repeat."""
        appender = self._log.appender
        return self.run_for_producer(
            shard,
            producer,
            len(records),
            lambda text: appender.append_many(shard.handle, records, self.now(), shard.epoch, text),
        )

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
        _check_not_sealed(shard)
        return append(text)

    def run(self, shard: ShardLog, append: Callable[[], int]) -> int:
        """Run `append` as the only writer, then wait for the device if the shard wants that."""
        position = 0

        def checked() -> int:
            nonlocal position
            before = self._log.end
            offset = append()
            if offset >= 0:
                position = self._log.end
                if shard.flush is Flush.SYNC and position > before:
                    shard.note_pending(offset, position)
            return offset

        offset = self.submit(checked)
        if shard.flush is Flush.SYNC:
            self._log.wait_durable(position)
        return offset

    def submit(self, operation: Callable[[], int]) -> int:
        """Run an append under the log's lock, or let whoever has it next do so."""
        lock = self._log.lock
        if lock.acquire(False):
            try:
                return self._append(operation)
            finally:
                lock.release()
        if not self._places.acquire(timeout=DEADLINE_S):
            self._metrics.writes_refused.labels("busy").inc()
            raise BusyError(f"{QUEUE_MAX} writers are waiting for the log; nothing was written")
        try:
            request = _Request(operation)
            self._queue.append(request)
            self._wait(request)
            return request.result()
        finally:
            self._places.release()

    def _wait(self, request: _Request) -> None:
        lock = self._log.lock
        if not lock.acquire(timeout=DEADLINE_S):
            try:
                self._queue.remove(request)
            except ValueError:
                # Somebody is appending it at this moment: its outcome is near.
                lock.acquire()
            else:
                self._metrics.writes_refused.labels("busy").inc()
                raise BusyError(f"the log was busy for {DEADLINE_S:g} s; nothing was written")
        try:
            while not request.done:
                self._queue.popleft().execute(self._append)
        finally:
            lock.release()

    def _append(self, operation: Callable[[], int]) -> int:
        try:
            return self._log.append(operation, self.more_index)
        except DiskFullError:
            self._metrics.writes_refused.labels("disk_full").inc()
            raise

    def more_index(self) -> None:
        """Attach another index file; the log's lock is held, or nobody appends yet."""
        with disk_errors(self._index.directory):
            self._index.add_file(self._log.appender, self._clock.now_ms())

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


def _check_not_sealed(shard: ShardLog) -> None:
    if shard.state.dropped:
        raise UnknownShardError(shard.shard.name)
    if shard.state.sealed:
        raise ShardSealedError(shard.shard.name)
