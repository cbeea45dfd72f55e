"""The key index of a store that another process may be writing: which of it can be believed.

    the log      ────────────[begin ═════ end]──[begin ═════ end]───────────
    index files              oldest           newest

An index file answers for the part of the log between its first and its last entry. Where no file
that can be believed answers (files are missing, damaged, or of an unknown size), the caller scans
the queue instead: `gaps` names those parts. So a query is never wrong, only slower.

What can be believed: sealed files of ours that match their page checksums; the newest file of a
store of ours that was closed, when its entries match the checkpoint (its slots are then built again
in memory); a file that a running writer fills; and RocketMQ's files, which have no checksums.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from contextlib import closing
from typing import Final, NamedTuple

from penstock.codec.format import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT_SIZE
from penstock.codec.select import core
from penstock.engine.segment.index.sealed_files import SealedFiles
from penstock.engine.segment.paths import is_index_name
from penstock.engine.segment.recovery.checkpoint import DerivedPoint
from penstock.engine.segment.settings import MIB, FileSizes
from penstock.errors import CorruptionError
from penstock.platform.disk import Disk, Mapping

_COPY_SIZE_MAX: Final = 64 * MIB
"""Larger files are read where they lie, and their slots believed."""


class _Opened(NamedTuple):
    """An index file that can be believed. The mapping goes with the last reader."""

    mapping: Mapping | None
    copy: bytearray | None

    @property
    def buffer(self) -> memoryview:
        if self.copy is not None:
            return memoryview(self.copy)
        assert self.mapping is not None
        return self.mapping.buffer

    @property
    def span(self) -> tuple[int, int] | None:
        """The positions of the first and the last record with an entry here."""
        _, _, begin, end, _, count = INDEX_HEADER.unpack_from(self.buffer)
        return (begin, end) if count > 1 else None


class ReadOnlyIndex:
    """Implements `KeyLookup`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        sizes: FileSizes,
        sealed: SealedFiles,
        point: DerivedPoint | None,
        *,
        closed: bool,
        log_start: int,
    ) -> None:
        """`point` is the checkpoint of a store of ours; `closed` says that no process writes it."""
        self._disk: Final = disk
        self._directory: Final = directory
        self._sizes: Final = sizes
        self._sealed: Final = sealed
        self._point: Final = point
        self._closed: Final = closed
        self._log_start: Final = log_start
        self._opened: dict[str, _Opened] | None = None
        self._complete = False
        self._lock: Final = threading.Lock()

    def lookup(self, text: str, begin_ms: int, end_ms: int, count_max: int) -> Iterator[int]:
        """Yield positions of records that may carry `text`, newest first."""
        for opened in reversed(self._files().values()):
            yield from core.index_lookup(
                opened.buffer,
                self._sizes.index_slots,
                self._sizes.index_entries_max,
                text,
                begin_ms,
                end_ms,
                count_max,
            )

    def gaps(self, end: int) -> list[tuple[int, int]]:
        """Return the parts of the log below `end`, newest first, for which no file answers.

        The records at the rims of a file belong to the gaps, too: their entries may be in two
        files, of which one is missing.
        """
        spans = [opened.span for opened in self._files().values()]
        covered = sorted(span for span in spans if span is not None)
        if self._complete and self._point is not None:
            covered.insert(0, (-1, self._point.position))
        gaps: list[tuple[int, int]] = []
        start = 0
        for first, last in covered:
            if first >= start:
                gaps.append((start, first + 1))
            start = max(start, last)
        if start < end:
            gaps.append((start, end))
        return gaps[::-1]

    def _files(self) -> dict[str, _Opened]:
        with self._lock:
            if self._opened is None:
                self._opened = self._open_all()
            return self._opened

    def _open_all(self) -> dict[str, _Opened]:
        names = [n for n in self._disk.list(self._directory) if is_index_name(n)]
        opened: dict[str, _Opened] = {}
        for name in names:
            try:
                file = self._open(name)
            except (CorruptionError, FileNotFoundError):
                continue
            if file is not None:
                opened[name] = file
        self._complete = self._has_all(opened)
        return opened

    def _has_all(self, opened: dict[str, _Opened]) -> bool:
        """Say whether every file that the checkpoint names can be believed, but for those whose
        records are gone."""
        if self._point is None or not self._point.index.complete:
            return False
        mark = self._point.index
        needed = [name for name, end in mark.older if end >= self._log_start]
        return all(name in opened for name in [*needed, *([mark.name] if mark.name else [])])

    def _open(self, name: str) -> _Opened | None:
        """Return the file, or None when it cannot be believed."""
        path = f"{self._directory}/{name}"
        sealed = self._sealed.check(f"index/{name}", path)
        newest = None if self._point is None else self._point.index.name
        with closing(self._disk.open(path, writable=False)) as file:
            size = file.size()
            if size != self._sizes.index_file_size:
                return None
            if sealed or newest is None or (name >= newest and not self._closed):
                return _Opened(file.map(writable=False), None)
            if name != newest:
                return None
            if size > _COPY_SIZE_MAX:
                return _Opened(file.map(writable=False), None)
            copy = bytearray(file.read_at(0, size))
        self._relink(path, copy)
        return _Opened(None, copy)

    def _relink(self, path: str, copy: bytearray) -> None:
        """Build slots and chains anew from entries that match the checkpoint."""
        assert self._point is not None
        mark = self._point.index
        slots, entries_max = self._sizes.index_slots, self._sizes.index_entries_max
        base = INDEX_HEADER.size + INDEX_SLOT_SIZE * slots
        count = INDEX_HEADER.unpack(mark.header)[-1]
        first, stop = base + INDEX_ENTRY.size, base + INDEX_ENTRY.size * max(1, count)
        with memoryview(copy) as view, view[first:stop] as entries:
            good = zlib.crc32(entries) == mark.entries_crc
        if not good or copy[: INDEX_HEADER.size] != mark.header:
            reason = "the entries do not match the checkpoint"
            raise CorruptionError(path, position=0, reason=reason)
        core.index_relink(copy, slots, entries_max, count)
