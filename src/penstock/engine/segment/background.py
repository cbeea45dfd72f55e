"""What an open store does by itself: flushing, checkpoints, publishing, retention, warming.

Three threads, because each may wait for the device without the others:

    flusher   every `flush_interval_ms`: the log on the device
    keeper    queues to their files, bounds for other processes, checkpoints, retention
    prefaulter    the next log file allocated, the pages ahead of the writer faulted in; dispatchers
              woken when the log moved

An error of the background is logged and tried again next time; it never stops a thread. A failed
sync stops the log itself (`CommitLog`), and says so to every writer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from penstock.engine.segment.control.shard_gc import ShardGarbageCollector
from penstock.engine.segment.dispatch.pipeline import DispatchPipeline
from penstock.engine.segment.parts import StoreParts
from penstock.engine.segment.recovery.rebuild import rebuild_index
from penstock.engine.segment.retention import Retention
from penstock.engine.segment.rocketmq.topics_file import TopicsFile
from penstock.errors import StoreError
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)
_RETENTION_INTERVAL_S: Final = 10.0
_PREFAULT_INTERVAL_S: Final = 0.02
"""Also how long a dispatcher waits at most for the first record after a quiet time."""
_PREFAULT_IDLE_S: Final = 0.2
_LIVELY_S: Final = 2.0
"""For this long after the last record, or after opening, the prefaulter checks often."""
_SOME_SIZE: Final = 64 << 10
"""A store that is closed soon after it was opened, with less than this, is not prefaulted: the
pages ahead would only have to be written."""
_PREFAULT_INDEX_SIZE: Final = 8 << 20
_KEEPER_TICK_S: Final = 0.1
_SWEEP: Final = 50
"""Deleted shards whose files are removed in one turn of the keeper."""
_JOIN_S: Final = 60.0
_PUBLISH_PAUSE: Final = 6
"""From one publication to the next, at least this many times as long as it took."""


class Upkeep:
    def __init__(
        self,
        parts: StoreParts,
        retention: Retention,
        dispatch: DispatchPipeline,
        topics: TopicsFile,
        garbage: ShardGarbageCollector,
    ) -> None:
        self._parts: Final = parts
        self._retention: Final = retention
        self._dispatch: Final = dispatch
        self._topics: Final = topics
        self._garbage: Final = garbage
        self._stopping: Final = threading.Event()
        self._threads: list[threading.Thread] = []
        now = parts.clock.monotonic()
        self._checkpointed = self._retained = now
        self._publish_at = now + parts.settings.publish_interval_ms / 1000
        self._prefaulted = (0, 0)

    def start(self) -> None:
        for name, run in (
            ("flusher", self._run_flusher),
            ("keeper", self._run_keeper),
            ("prefaulter", self._run_prefaulter),
        ):
            thread = threading.Thread(target=run, name=f"penstock-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(_JOIN_S)
        self._threads.clear()

    def run_once(self) -> None:
        """Do everything that is due now or later: for tests and for `background = False`."""
        parts = self._parts
        parts.log.flush()
        parts.writer.save_index()
        parts.log.prepare_next()
        self._retention.run()
        parts.checkpointer.publish()
        self.checkpoint()
        while self._garbage.sweep(_SWEEP):
            pass
        self._dispatch.run_once()

    def checkpoint(self, *, frees_room: bool = False) -> None:
        if not frees_room:  # else the disk is full, and nothing is written that need not be
            self._topics.save()
            self._parts.writer.save_index()
        self._garbage.checkpoint(frees_room=frees_room)
        self._checkpointed = self._parts.clock.monotonic()

    def publish_soon(self) -> None:
        """Show other processes what changed: the background does so within `publish_interval_ms`,
        for all that changed meanwhile; without it, immediately."""
        if not self._threads:
            self._publish()

    def _publish(self) -> None:
        """Publish, and leave most of the time until the next to those who wait meanwhile: of
        thousands of shards that were created or deleted it takes long."""
        clock = self._parts.clock
        started = clock.monotonic()
        self._publish_at = started + _JOIN_S
        try:
            self._parts.checkpointer.publish()
        finally:
            now = clock.monotonic()
            interval_s = self._parts.settings.publish_interval_ms / 1000
            self._publish_at = started + max(interval_s, _PUBLISH_PAUSE * (now - started))

    def _run_flusher(self) -> None:
        interval_s = self._parts.settings.flush_interval_ms / 1000
        while not self._parts.clock.wait(self._stopping, interval_s):
            self._try("flush", self._flush)

    def _flush(self) -> None:
        if not self._parts.log.failed:
            self._parts.log.flush()

    def _run_keeper(self) -> None:
        while not self._parts.clock.wait(self._stopping, _KEEPER_TICK_S):
            self._try("upkeep", self._keep)

    def _keep(self) -> None:
        parts = self._parts
        settings = parts.settings
        now = parts.clock.monotonic()
        parts.writer.save_index()
        if now >= self._publish_at:
            self._publish()
        behind = parts.log.end - parts.checkpointer.position
        due = now - self._checkpointed >= settings.derived_interval_ms / 1000
        if not parts.log.failed and (
            (due and parts.checkpointer.is_due) or behind >= settings.derived_bytes_max
        ):
            self.checkpoint()
        self._garbage.sweep(_SWEEP)
        if now - self._retained >= _RETENTION_INTERVAL_S:
            self._retention.run()
            parts.log.files.unmap_idle()
            parts.index.unmap_idle()
            self._retained = now

    def _run_prefaulter(self) -> None:
        log, dispatch, clock = self._parts.log, self._dispatch, self._parts.clock
        opened, opened_end = clock.monotonic(), log.end
        lively_until = opened + _LIVELY_S
        while True:
            now = clock.monotonic()
            reached = (log.end, log.durable)
            if reached != self._prefaulted:
                # Here, because a call for every append would cost more than the append.
                dispatch.notify()
                lively_until = now + _LIVELY_S
            self._prefaulted = reached
            often = dispatch.names or now < lively_until
            if clock.wait(self._stopping, _PREFAULT_INTERVAL_S if often else _PREFAULT_IDLE_S):
                return
            if now - opened >= _PREFAULT_IDLE_S or log.end - opened_end >= _SOME_SIZE:
                self._try("prefault", self._prefault)

    def _prefault(self) -> None:
        self._parts.log.prepare_next()
        self._parts.log.prefault()
        self._parts.index.prefault(_PREFAULT_INDEX_SIZE)

    def _try(self, step_name: str, step: Callable[[], None]) -> None:
        try:
            step()
        except (OSError, StoreError) as error:
            _log.error("upkeep_failed", step=step_name, error=str(error))
        except Exception as error:  # noqa: BLE001 - without this thread nothing reaches the device
            _log.error("upkeep_failed", cause=error, step=step_name)

    def report_failed_close(self, error: Exception) -> None:
        _log.error("not_closed_cleanly", path=self._parts.paths.root, error=str(error))

    def rebuild_index(self) -> None:
        """Build the key index again from the log, unless another thread has just done so. Appends
        wait meanwhile."""
        parts = self._parts
        # Not beside a checkpoint: it would vouch for the index that was.
        with parts.checkpointer.pause, parts.log.lock:
            if not parts.index.damaged:
                return
            _log.warning("index_rebuilt", path=parts.paths.index)
            parts.metrics.rebuilt_files.inc()
            parts.checkpointer.remove_checkpoint()
            shards = [log for log in parts.table if not log.state.dropped]
            hurt = rebuild_index(parts.log, parts.index, shards, parts.clock.now_ms())
            parts.index.damaged = False
        for log in hurt:
            parts.checkpointer.touch(log)
        self.checkpoint()
