"""The applied rows of a group: those of the database, overlaid by those that are not written yet.

    apply ──▶ publish: visible to readers, in memory ──▶ fill, written: in the database, in batches

After a crash the log has everything that was in memory, and the applied index in the database says
where to start applying again. Consumer groups commit the same shards over and over: of many commits
only the last one is written.

Readers may use any thread; they see each `publish` whole or not at all. All other methods belong to
the thread that applies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import merge
from operator import itemgetter
from typing import Final

from penstock.meta.state.view import Caches, Changes, Overlay, Row
from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.database import Batch, Database

_RECENT_ROWS: Final = 10_000
_MISSING: Final = b"\xff missing"
"""Distinguished from rows by identity."""


class UnflushedRows:
    """A `Reader` for clients; `working` is one for the state machine."""

    def __init__(self, database: Database, family: str, group: int, generation: int) -> None:
        self._database: Final = database
        self._family: Final = family
        self._group: Final = group
        # Replaced as one, so that no reader sees rows of one generation over those of another.
        self._now: tuple[bytes, Changes] = (fmt.state_prefix(group, generation), {})
        self._version = 0
        self._size_max = 0
        self.working: Final = WorkingRows(self)

    @property
    def pending(self) -> Changes:
        """What is not written yet."""
        return self._now[1]

    def get(self, key: bytes) -> bytes | None:
        while True:
            prefix, pending = self._now
            value = pending.get(key, _MISSING)
            if value is not _MISSING:
                return value
            value = self._database.get(self._family, prefix + key)
            if self._now[0] is prefix:
                return value

    def scan(self, start: bytes, end: bytes) -> Iterator[Row]:
        while True:
            version = self._version
            prefix, pending = self._now
            # The thread that applies goes on meanwhile. To copy a dictionary is one step; to list
            # its items is not, since the collector may come in between, and let others run.
            mine = [row for row in pending.copy().items() if start <= row[0] < end]
            rows = self._database.scan(self._family, prefix + start, prefix + end)
            first = next(rows, None)
            if version == self._version:
                break
        theirs = _behind_prefix(first, rows, len(prefix))
        if not mine:
            return theirs
        return _merged(dict(mine), theirs)

    def publish(self, changes: Mapping[bytes, bytes | None], size: int) -> None:
        """Make changes visible to readers, atomically."""
        self._now[1].update(changes)
        self._version += 1
        self._size_max += size

    def is_large(self, size: int) -> bool:
        """Return whether what is not written takes `size` bytes or more."""
        if self._size_max < 2 * size:
            return False
        # Most of what was published has been overwritten since: count what is left.
        pending = self._now[1]
        self._size_max = sum(map(len, pending)) + sum(map(len, filter(None, pending.values())))
        return self._size_max >= size

    def fill(self, batch: Batch) -> None:
        """Put what is not written into `batch`."""
        prefix, pending = self._now
        family = self._family
        for key, value in pending.items():
            if value is None:
                batch.delete(family, prefix + key)
            else:
                batch.put(family, prefix + key, value)

    def written(self) -> None:
        """The batch of the last `fill` is in the database."""
        prefix, pending = self._now
        self.working.add(pending)
        self._now = (prefix, {})
        self._version += 1
        self._size_max = 0

    def switch(self, generation: int) -> None:
        """From now on the rows are those of another generation, all of them written."""
        self._now = (fmt.state_prefix(self._group, generation), {})
        self._version += 1
        self._size_max = 0
        self.working.clear()


class WorkingRows:
    """The rows for the thread that applies, which remembers those that it met lately: what is not
    written, what was written last, and what it read since or before."""

    def __init__(self, rows: UnflushedRows) -> None:
        self._rows: Final = rows
        self._recent: Changes = {}
        self._older: Changes = {}

    def get(self, key: bytes) -> bytes | None:
        value = self._rows.pending.get(key, _MISSING)
        if value is _MISSING:
            value = self._recent.get(key, _MISSING)
            if value is _MISSING:
                value = self._older.get(key, _MISSING)
                if value is _MISSING:
                    value = self._rows.get(key)
                if len(self._recent) > _RECENT_ROWS:
                    self._older, self._recent = self._recent, {}
                self._recent[key] = value
        return value

    def scan(self, start: bytes, end: bytes) -> Iterator[Row]:
        return self._rows.scan(start, end)

    def overlay(self) -> Overlay:
        """Return where the next changes are made; of use until they are published."""
        caches: Caches = (self._rows.pending, self._recent)
        return Overlay(self, caches)

    def add(self, written: Changes) -> None:
        """What was written last is remembered as it is, without a copy."""
        self._older, self._recent = self._recent, written

    def clear(self) -> None:
        self._recent, self._older = {}, {}


def _behind_prefix(first: Row | None, rows: Iterator[Row], skipped: int) -> Iterator[Row]:
    while first is not None:
        yield first[0][skipped:], first[1]
        first = next(rows, None)


def _merged(mine: Changes, theirs: Iterator[Row]) -> Iterator[Row]:
    above = sorted(mine.items(), key=itemgetter(0))
    below = (row for row in theirs if row[0] not in mine)
    for key, value in merge(above, below, key=itemgetter(0)):
        if value is not None:
            yield key, value
