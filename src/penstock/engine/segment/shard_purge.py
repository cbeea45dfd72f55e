"""Removes what deleted shards leave behind: their files soon, their states when nothing needs them.

A deletion is a line in the log and a mark in the shard's state; from then on nobody looks at the
files, which go in the background, so that ten thousand topics are deleted as fast as lines are
written.

The state says that the shard's records in the log are dead: without it, a replay would bring them
back. When the last file of the log is gone in which the shard was named, nothing can, and its state
goes, too; else a store in which topics come and go would grow for ever. Its directories are gone
then, on the device: a file that came back after a power cut would be taken for one of a later shard
of that name.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from penstock.engine.segment.opening import StoreParts
from penstock.engine.segment.shard_directories import remove_directories
from penstock.engine.segment.shard_log import ShardLog
from penstock.log import get_logger

_log: Final = get_logger(__name__)


class ShardPurge:
    def __init__(self, parts: StoreParts) -> None:
        self._parts: Final = parts
        self._left: Final = deque(log for log in parts.table if log.state.dropped)

    def note_deleted(self, log: ShardLog) -> None:
        self._left.append(log)

    def sweep(self, count_max: int) -> int:
        """Remove the files of deleted shards, at most so many; return of how many."""
        swept: list[ShardLog] = []
        while self._left and len(swept) < count_max:
            log = self._left.popleft()
            try:
                log.remove_files()
            except OSError:
                self._left.append(log)
                raise
            swept.append(log)
        self._remove_directories(swept)
        return len(swept)

    def run(self) -> int:
        """Forget the deleted shards of which the log holds nothing; return how many that were."""
        parts = self._parts
        start = parts.log.files.start
        gone = [log for log in parts.table if log.state.is_gone(start) and log.remove_files()]
        self._remove_directories(gone)
        with parts.checkpointer.pause:
            forgotten = [log for log in gone if self._forget(log, start)]
        if forgotten:
            _log.info("shards_forgotten", count=len(forgotten))
        return len(forgotten)

    def _forget(self, log: ShardLog, start: int) -> bool:
        parts = self._parts
        with parts.log.lock:
            if not log.state.is_gone(start):
                return False  # created again meanwhile
            parts.checkpointer.note_gone(log.shard)
            parts.table.remove(log)
        return True

    def _remove_directories(self, logs: list[ShardLog]) -> None:
        parts = self._parts
        remove_directories(parts.disk, parts.paths, [(log.shard, log.kind) for log in logs])
