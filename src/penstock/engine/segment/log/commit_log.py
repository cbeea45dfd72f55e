"""The commit log of a node: all shards' records back to back, appended by one writer at a time.

Invariants, asserted where they are made and relied on:

  * bytes before `end` are whole records or blanks; nothing at or after `end` is ever read
  * `durable <= end`; only records before `durable` survive a power cut
  * once a sync has failed, nothing is appended any more: the kernel may have dropped the dirty
    pages and would report success the next time, so trying again could acknowledge lost records

Appends happen in the caller's thread under `lock`, which belongs to the codec backend: an append
that needs nothing but the appender takes it inside one native call. Of the writers that wait for
the device, one syncs for all that have appended by then (`group_commit`). On a local disk that is
done natively, by a dedicated thread while several wait, which reports to Python.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar
from weakref import WeakMethod

from penstock.codec.codes import NO_LOG_ROOM
from penstock.codec.select import Appender, core
from penstock.engine.segment.log.disk_errors import disk_errors, lacks_descriptors, store_error
from penstock.engine.segment.log.log_files import FileSet
from penstock.engine.segment.recovery.checkpoint import DurablePoint
from penstock.engine.segment.settings import SegmentSettings
from penstock.errors import DiskFailedError, DiskFullError, StoreError
from penstock.platform.log import get_logger
from penstock.platform.metrics import SegmentMetrics

_log: Final = get_logger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


_LARGE_PAGES_FROM: Final = 8 << 20
"""With as much between two syncs, pages ahead of the writer may be large. They cost less each, but
a sync writes all of a page: with little between two syncs, small ones are better."""


class CommitLog:
    """The writing end of the log. Reading goes through `files`."""

    def __init__(
        self,
        files: FileSet,
        appender: Appender,
        durable: DurablePoint,
        settings: SegmentSettings,
        metrics: SegmentMetrics,
    ) -> None:
        self.files: Final = files
        self.appender: Final = appender
        self.lock: Final = core.WriteLock()
        self.group_commit: Final = core.GroupCommit(durable.position)
        self.blocked: StoreError | None = None
        """Why appends are refused at the moment, or None; `DiskFailedError` is for good."""
        self._durable: Final = durable
        self._settings: Final = settings
        self._metrics: Final = metrics
        self._roll_lock: Final = threading.Lock()
        self._noting: Final = threading.Lock()
        self._refusal: Final = threading.Lock()
        self._current = 0
        self._prefaulted = 0
        self._filled = 0
        """After this position a look at a page brings no others."""
        self.group_commit.sync_natively(
            appender, weak_callback(self._record_syncs), weak_callback(self._stop_after_failed_sync)
        )

    @property
    def end(self) -> int:
        return self.appender.end

    @property
    def durable(self) -> int:
        """Every byte below this position is on the device."""
        return self.group_commit.durable

    @property
    def failed(self) -> bool:
        return self.failure() is not None

    def failure(self) -> DiskFailedError | None:
        """Return why nothing is appended any more, for good; None while it may be."""
        blocked = self.blocked
        return blocked if isinstance(blocked, DiskFailedError) else None

    def refusal(self) -> StoreError | None:
        """Return why nothing is appended at the moment; None while it is."""
        return self.blocked

    def refuse(self, error: StoreError) -> None:
        """Answer appends with `error` from now on. A log whose sync failed has its own answer."""
        with self._refusal:
            if not self.failed:
                self.blocked = error
                self.appender.accepting = False

    def accept(self) -> None:
        """Take appends again after the disk was full."""
        with self._refusal:
            if isinstance(self.blocked, DiskFullError):
                self.blocked = None
                self.appender.accepting = True

    def reset_durable(self, end: int) -> None:
        """Set the durable point after recovery, which has synced the log up to `end`."""
        self._durable.reset(end, self.appender.last_store_timestamp_ms)
        self.appender.durable = end
        self.group_commit.set_durable(end)

    def attach(self, end: int) -> None:
        """Go on writing at `end`; the file that holds it is created when it is missing."""
        base = self.files.base_of(end)
        if base not in self.files.bases:
            self._create(base)
        self._current = base
        self._prefaulted = self._filled = end
        self._attach(self.files.buffer(base, writable=True), base, end)

    def _attach(self, buffer: memoryview, base: int, end: int) -> None:
        self.files.set_readahead(end, base + self.files.file_size, enabled=False)
        self.appender.attach_log(buffer, base, end)
        descriptor = self.files.descriptor(base)
        if descriptor is not None:
            self.appender.attach_device(descriptor)

    def roll(self) -> None:
        """Close the current file with a blank record and go on in the next one.

        The caller holds `lock`. When the disk has no room, `DiskFullError` comes out, and the log
        is as it was: the same append succeeds once there is room.
        """
        self._wait_for_device()
        base = self._current + self.files.file_size
        with self._roll_lock:
            if base not in self.files.bases:
                self._create(base)
        with disk_errors(self.files.path_of(base)):
            buffer = self.files.buffer(base, writable=True)
        self.appender.finish_log()
        self.files.set_readahead(self._filled, base, enabled=True)
        self._filled = base
        self._attach(buffer, base, base)
        self._current = base
        self._prefaulted = max(self._prefaulted, base)

    def _create(self, base: int) -> None:
        with disk_errors(self.files.path_of(base)):
            self.files.create(base)

    def _wait_for_device(self) -> None:
        """Let a writer that is far ahead of the device do a flush itself: back-pressure."""
        if self.end - self.durable > self._settings.unflushed_bytes_max:
            self.flush()

    def prepare_next(self) -> None:
        """Allocate the next file when the current one is half full; a full disk is not yet an
        error here. For the background."""
        base = self._current + self.files.file_size
        if self.end - self._current < self.files.file_size // 2:
            return
        with self._roll_lock:
            if base in self.files.bases or base != self.files.stop:
                return
            try:
                self.files.create(base)
            except OSError as error:
                _log.warning("next_log_file_not_prepared", error=str(error))

    def prefault(self) -> None:
        """Fault in the pages that the writer will reach next: a cold page costs an append seven
        times as much. For the background."""
        end = self.end
        start = max(self._prefaulted, end)
        stop = min(end + self._settings.prefault_size, self.files.stop)
        if end - self.durable >= _LARGE_PAGES_FROM:
            self.files.set_readahead(start, stop, enabled=True)
        while start < stop:
            base = self.files.base_of(start)
            until = min(stop, base + self.files.file_size)
            buffer = self.files.buffer(base, writable=True)
            core.prefault(buffer, start - base, until - start)
            start = until
        self._prefaulted = max(self._prefaulted, stop)
        if end - self._filled >= self._settings.prefault_size:
            self.files.set_readahead(self._filled, end, enabled=True)
            self._filled = end

    def append(self, operation: Callable[[], int], more_index: Callable[[], None]) -> int:
        """Run an append of the appender until it found room. The caller holds `lock`."""
        self.check_writable()
        while True:
            offset = operation()
            if offset >= 0:
                return offset
            if offset == NO_LOG_ROOM:
                self.roll()
            else:
                more_index()

    def check_writable(self) -> None:
        if self.blocked is not None:
            raise _copy_of(self.blocked)

    def flush(self) -> int:
        """Put everything appended so far on the device; return the durable position."""
        target = self.end
        self.wait_durable(target)
        return max(target, self.durable)

    def wait_durable(self, position: int) -> None:
        """Return when the log is on the device up to `position`, syncing it if no other thread
        does."""
        self.group_commit.wait(position, self.sync_all)

    def sync_all(self) -> int:
        """Put everything appended so far on the device; return how far. One at a time may do so:
        whose turn it is."""
        target = self.end
        # What was synced natively may not be noted yet.
        start = max(self._durable.position, self.durable)
        if target > start:
            self._sync_range(start, target)
        return target

    def _sync_range(self, start: int, target: int) -> None:
        if isinstance(self.blocked, DiskFailedError):
            raise _copy_of(self.blocked)
        timestamp_ms = self.appender.last_store_timestamp_ms
        try:
            with self._metrics.flush_seconds.time():
                self.files.sync(start, target)
        except OSError as error:
            if lacks_descriptors(error):
                # A file could not be opened, so the device was not asked.
                raise store_error(self.files.path_of(start), error) from error
            raise self._stopped(start, str(error)) from error
        self.appender.durable = target
        self._save_durable(target, timestamp_ms)

    def _stopped(self, start: int, reason: str) -> DiskFailedError:
        failed = DiskFailedError(self.files.path_of(start), f"sync failed: {reason}")
        self.refuse(failed)
        _log.error("log_stopped", path=failed.path, error=reason)
        return failed

    def _stop_after_failed_sync(self, reason: str) -> None:
        """A native sync failed: no other thread syncs before this returns."""
        raise self._stopped(self.durable, reason)

    def _record_syncs(self, position: int, timestamp_ms: int, seconds: list[float]) -> None:
        """Native syncs are over; later ones may be, too, and may have been noted before."""
        for duration in seconds:
            self._metrics.flush_seconds.observe(duration)
        self._save_durable(position, timestamp_ms)

    def _save_durable(self, position: int, timestamp_ms: int) -> None:
        try:
            with self._noting:
                if position > self._durable.position:
                    self._durable.advance(position, timestamp_ms)
        except OSError as error:
            # The records are on the device; only the note about it is late, which costs the next
            # start a longer look and nothing else.
            _log.warning("durable_point_not_written", error=str(error))

    def close(self) -> None:
        self.appender.detach_log()
        self._durable.close()
        self.files.close()


def weak_callback(method: Callable[P, T]) -> Callable[P, T]:
    """Return a method for native code to call that does not keep its object: no collector sees
    what native code holds, and a log that holds itself that way would never be freed."""
    reference = WeakMethod(method)

    def call(*arguments: P.args, **named: P.kwargs) -> T:
        alive = reference()
        assert alive is not None, "who waits for the device holds the log"
        return alive(*arguments, **named)

    return call


def _copy_of(error: StoreError) -> StoreError:
    """Return the same error for another caller: one exception object per raise."""
    if isinstance(error, DiskFailedError):
        return DiskFailedError(error.path, "an earlier sync failed")
    return type(error)(*error.args)
