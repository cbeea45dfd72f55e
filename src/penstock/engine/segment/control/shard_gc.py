"""Removes what deleted shards leave: their files soon, their states when nothing needs them.

A deletion is a line in the log and a mark in the shard's state. The files go in the background, so
that ten thousand topics are deleted as fast as lines are written, and not before a checkpoint has
saved the mark: until then a start, and readers in other processes, may take the shard for alive.

The state says that the shard's records in the log are dead: without it, a replay would bring them
back. When the last file of the log is gone in which the shard was named, nothing can, and its state
goes, too; else a store in which topics come and go would grow without a limit. Its directories are
removed before that, on the device: a file that came back after a power cut would be taken for one
of a later shard of that name.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Final

from penstock.engine.segment.control.shard_directories import remove_directories
from penstock.engine.segment.parts import StoreParts
from penstock.engine.segment.queue.shard import ShardLog
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)


class ShardGarbageCollector:
    """Removes the files, then the states, of deleted shards."""

    def __init__(self, parts: StoreParts) -> None:
        self._parts: Final = parts
        self._lock: Final = threading.Lock()
        self._marked: list[ShardLog] = []
        """Deleted, but no checkpoint says so."""
        self._left: Final = deque(log for log in parts.table if log.state.dropped)

    def mark_deleted(self, log: ShardLog) -> None:
        with self._lock:
            self._marked.append(log)

    def checkpoint(self, *, frees_room: bool = False) -> None:
        """Make a checkpoint, and let the files go of what was deleted before it."""
        with self._lock:
            marked, self._marked = self._marked, []
        try:
            self._parts.checkpointer.checkpoint(frees_room=frees_room)
        except BaseException:
            with self._lock:
                self._marked += marked
            raise
        self._left.extend(marked)

    def sweep(self, count_max: int) -> int:
        """Remove the files of deleted shards, at most so many; return of how many."""
        swept: list[ShardLog] = []
        for log in _pop_some(self._left, count_max):
            try:
                log.remove_files()
            except OSError:
                self._left.append(log)
                raise
            swept.append(log)
        self._remove_directories(swept)
        return len(swept)

    def run(self) -> int:
        """Remove the deleted shards of which the log holds nothing; return how many that were."""
        parts = self._parts
        start = parts.log.files.start
        gone = [log for log in parts.table if log.state.is_gone(start) and log.remove_files()]
        self._remove_directories(gone)
        with parts.checkpointer.pause:
            forgotten = [log for log in gone if self._remove_state(log, start)]
        if forgotten:
            _log.info("shards_forgotten", count=len(forgotten))
        return len(forgotten)

    def _remove_state(self, log: ShardLog, start: int) -> bool:
        parts = self._parts
        with parts.log.lock:
            if not log.state.is_gone(start):
                return False  # created again meanwhile
            parts.checkpointer.remove_later(log.shard)
            parts.table.remove(log)
        return True

    def _remove_directories(self, logs: list[ShardLog]) -> None:
        parts = self._parts
        remove_directories(parts.disk, parts.paths, [(log.shard, log.kind) for log in logs])


def _pop_some(left: deque[ShardLog], count_max: int) -> Iterator[ShardLog]:
    """Take shards from a queue that other threads take from, too."""
    for _ in range(count_max):
        try:
            yield left.popleft()
        except IndexError:
            return
