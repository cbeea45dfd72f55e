"""The dispatch pipeline: hands committed records to the builders of derived data.

    commit log ──▶ queues and key index        at the append itself, natively
               ──▶ dispatchers                 up to the commit offset: tier, indexes, users

Each dispatcher has its own thread, its own position in every shard and its own failures: none can
hold up another, or the log. What each has still to see is `lag`. Positions are saved once a second,
or less often where that takes long, and at the end: after a restart a dispatcher goes on where it
was, or a little before.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Final

from penstock.engine.segment.dispatch.positions import DispatchPositions
from penstock.engine.segment.dispatch.worker import (
    Bounds,
    Dispatcher,
    DispatchWorker,
    FindChanged,
    Read,
    ReadingDispatcher,
    settled_position,
)
from penstock.errors import (
    AlreadyExistsError,
    BadRequestError,
    ClosedError,
    CorruptionError,
    NotSupportedError,
)
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.disk import Disk
from penstock.platform.log import get_logger
from penstock.platform.metrics import SegmentMetrics
from penstock.record import ShardId

__all__ = ["DispatchPipeline", "Dispatcher"]

STOP_TIMEOUT_S: Final = 10.0

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_log: Final = get_logger(__name__)


class DispatchPipeline:
    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        read: Read | None,
        bounds: Bounds,
        find_changed: Callable[[], FindChanged] | None = None,
        threads: bool = True,
        clock: Clock | None = None,
        metrics: SegmentMetrics | None = None,
    ) -> None:
        """Make a pipeline without dispatchers, before the store takes its first write.

        `find_changed` makes the function that returns the changed shards to one dispatcher; without
        it, all are looked at each time. With `threads=False` nothing happens by itself: `run_once`
        does what is due.
        """
        self._disk: Final = disk
        self._directory: Final = directory
        self._read: Final = read
        self._bounds: Final = bounds
        self._find_changed: Final = find_changed
        self._threads: Final = threads
        self._clock: Final = clock or SystemClock()
        self._metrics: Final = metrics or SegmentMetrics()
        self._lock: Final = threading.Lock()
        self._workers: dict[str, DispatchWorker] = {}
        self._closed = False
        self._idle: Final[dict[str, DispatchPositions]] = {}
        """Positions of dispatchers that have not registered: they are cut like the others."""
        self._bring_back_positions()

    def register(self, dispatcher: Dispatcher | ReadingDispatcher) -> None:
        """Hand every committed record to `dispatcher`, from where one of its name stopped, or from
        the earliest."""
        name = dispatcher.name
        if not _NAME.fullmatch(name):
            raise BadRequestError(
                f"dispatcher {name!r}: a name has 1 to 100 letters, digits, _ and -"
            )
        with self._lock:
            if self._closed:
                raise ClosedError("the dispatch pipeline was closed")
            if name in self._workers:
                raise AlreadyExistsError(f"there is a dispatcher {name!r} already")
            positions = self._idle.pop(name) if name in self._idle else self._load(name)
            worker = DispatchWorker(
                dispatcher,
                positions,
                self._read,
                self._bounds,
                self._clock,
                self._metrics,
                self._find_changed() if self._find_changed is not None else None,
            )
            self._workers[name] = worker
            if self._threads:
                worker.start()

    def notify(self) -> None:
        """Say that something may have been committed. Cheap; without it dispatchers look four
        times a second."""
        for worker in tuple(self._workers.values()):
            worker.wake()

    def cut(self, shard: ShardId, offset: int) -> None:
        """Hand the records of a shard from `offset` on over again: it was cut there."""
        with self._lock:
            workers = tuple(self._workers.values())
            for positions in self._idle.values():
                if positions.cut(shard, offset):
                    _save(positions)
        for worker in workers:
            worker.cut(shard, offset)

    def run_once(self) -> int:
        """Hand over everything that is committed now, except to dispatchers that wait for a retry;
        return the number of batches."""
        batches = 0
        for worker in tuple(self._workers.values()):
            while moved := worker.step():
                batches += moved
        return batches

    def lag(self, name: str) -> dict[ShardId, int]:
        """Return for every shard how many offsets a dispatcher has not seen."""
        worker = self._worker(name)
        return {
            shard: worker.lag_of(shard, earliest, commit)
            for shard, earliest, commit in self._bounds()
        }

    def position(self, name: str, shard: ShardId) -> int:
        """Return the offset of the next record of a shard that a dispatcher gets; 0 before it has
        come to that shard."""
        return self._worker(name).positions.get(shard) or 0

    def failures(self, name: str) -> dict[ShardId, str]:
        """Return the shards on which a dispatcher raised the last time, and what."""
        return self._worker(name).failures

    @property
    def names(self) -> list[str]:
        return sorted(self._workers)

    def close(self) -> None:
        """Stop every dispatcher after its batch and save the positions. Safe to call again."""
        with self._lock:
            self._closed = True
            workers = tuple(self._workers.values())
            for positions in self._idle.values():
                if positions.is_dirty:
                    _save(positions)
        for worker in workers:
            worker.stop(STOP_TIMEOUT_S)

    def _load(self, name: str) -> DispatchPositions:
        positions = DispatchPositions(self._disk, f"{self._directory}/{name}")
        try:
            positions.load()
        except CorruptionError as error:
            # Handing everything over again is always right, because dispatchers expect it.
            _log.error("dispatch_positions_lost", cause=error, dispatcher=name)
        return positions

    def _worker(self, name: str) -> DispatchWorker:
        try:
            return self._workers[name]
        except KeyError:
            raise BadRequestError(f"there is no dispatcher {name!r}") from None

    def _bring_back_positions(self) -> None:
        """Move positions back that lie past what is committed.

        A power cut may take records that a dispatcher had seen. Others will get their offsets, and
        must be handed over: so this happens before they are written, for dispatchers that register
        later, too.
        """
        names = [name for name in self._disk.list(self._directory) if _NAME.fullmatch(name)]
        if not names:
            return
        shards = list(self._bounds())
        for name in names:
            positions = DispatchPositions(self._disk, f"{self._directory}/{name}")
            try:
                positions.load()
            except (CorruptionError, NotSupportedError):
                continue  # `register` tells; without it the file does not matter
            for shard, earliest, commit in shards:
                position = positions.get(shard)
                if position is not None and position > commit:
                    positions.move(shard, settled_position(position, earliest, commit))
            if positions.is_dirty:
                _log.warning("dispatch_positions_brought_back", dispatcher=name)
                positions.save()
            self._idle[name] = positions


def _save(positions: DispatchPositions) -> None:
    try:
        positions.save()
    except OSError as error:
        _log.error("dispatch_position_not_saved", cause=error, path=positions.path)
