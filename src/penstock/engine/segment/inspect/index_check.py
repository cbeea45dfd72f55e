"""Compares the key index with the log: each key findable, no entry to nowhere, chains intact.

Entries stand in the files in the order of the log, so both are read side by side once: what the
log says (hash and position of every key and tag), and what the files hold. Slots and chains follow
from the entries; they are built again in memory and compared.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Final, NamedTuple

from penstock.codec.format import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT_SIZE,
    Damage,
)
from penstock.codec.select import core
from penstock.engine.segment.inspect.report import DamagedSpans, Findings
from penstock.engine.segment.readonly.snapshot import Snapshot
from penstock.errors import CorruptionError

_COMPARED: Final = INDEX_ENTRY.position_of("seconds")
"""Bytes of an entry that follow from the log alone: its hash and its position."""
_SIZE: Final = INDEX_ENTRY.size
_CHUNK_SIZE: Final = 4096
_SLOW_STEPS: Final = 64
"""Entries matched one by one, when something is wrong, before many are tried together again."""


class _Place(NamedTuple):
    """An entry of a file."""

    path: str
    position: int
    data: bytes


class _File(NamedTuple):
    """An index file and where its entries lie."""

    path: str
    data: memoryview
    entries_at: int
    stop: int
    """The number that the next entry would get."""

    def entry(self, number: int) -> bytes:
        position = self.entries_at + number * _SIZE
        return bytes(self.data[position : position + _SIZE])

    def first_from(self, position: int) -> int:
        """Return the number of the first entry that points at or after `position`."""
        number = 1
        while number < self.stop and _position(self.entry(number)) < position:
            number += 1
        return number


class _Cursor:
    """Goes through the entries of all index files, one file after the other."""

    def __init__(self, files: Iterator[_File], log_start: int) -> None:
        self._files: Final = files
        self._log_start: Final = log_start
        self._loaded: list[_File] = []
        self._number = 1
        self._load(1)
        if self._loaded:
            self._number = self._loaded[0].first_from(log_start)
            self._load_ahead()

    @property
    def now(self) -> _Place | None:
        return self._place(self._number) if self._loaded else None

    @property
    def then(self) -> _Place | None:
        """The entry after this one."""
        if not self._loaded:
            return None
        if self._number + 1 < self._loaded[0].stop:
            return self._place(self._number + 1)
        self._load(2)
        if len(self._loaded) < 2:
            return None
        following = self._loaded[1]
        return _Place(following.path, following.entries_at + _SIZE, following.entry(1))

    def step(self, count: int = 1) -> None:
        self._number += count
        self._load_ahead()

    def match(self, entries: bytes) -> int:
        """Return how many of `entries` stand here just so; all that this file has, or none."""
        if not self._loaded:
            return 0
        file = self._loaded[0]
        count = min(len(entries) // _SIZE, file.stop - self._number)
        position = file.entries_at + self._number * _SIZE
        actual = bytes(file.data[position : position + count * _SIZE])
        expected = entries[: count * _SIZE]
        # Column by column: the other fields do not follow from the log alone.
        same = all(actual[n::_SIZE] == expected[n::_SIZE] for n in range(_COMPARED))
        return count if same else 0

    def _place(self, number: int) -> _Place:
        file = self._loaded[0]
        return _Place(file.path, file.entries_at + number * _SIZE, file.entry(number))

    def _load_ahead(self) -> None:
        while self._loaded and self._number >= self._loaded[0].stop:
            self._load(2)
            del self._loaded[0]
            self._number = 1
            if self._loaded:
                self._number = self._loaded[0].first_from(self._log_start)

    def _load(self, count: int) -> None:
        while len(self._loaded) < count:
            file = next(self._files, None)
            if file is None:
                return
            if file.stop > 1:
                self._loaded.append(file)


class IndexCheck:
    def __init__(self, snapshot: Snapshot, damaged: DamagedSpans, findings: Findings) -> None:
        self._snapshot: Final = snapshot
        self._findings: Final = findings
        self._damaged: Final = damaged
        self._directory: Final = snapshot.paths.index
        self._entries_at: Final = INDEX_HEADER.size + INDEX_SLOT_SIZE * snapshot.sizes.index_slots
        self._last_path = self._directory
        self._run: tuple[str, int, str, int] | None = None
        self._usable = True
        # Taken before the files are read: what is appended meanwhile may not be in them yet.
        self._limit: Final = _known_end(snapshot) if snapshot.unclosed else None
        self._entries: Final = _Cursor(self._read_all(), snapshot.files.start)

    # While the log is read

    def check_entries(self, entries: bytes) -> None:
        """Compare entries that the log calls for, in order, with those of the files."""
        entries = self._below_limit(entries)
        start = 0
        while start < len(entries):
            count = self._entries.match(entries[start:])
            if count:
                self._flush()
                self._findings.checked.index_entries += count
                self._entries.step(count)
                start += count * _SIZE
                continue
            for _ in range(_SLOW_STEPS):
                if start < len(entries):
                    following = entries[start + _SIZE : start + 2 * _SIZE]
                    self._match(entries[start : start + _SIZE], following)
                    start += _SIZE

    def _below_limit(self, entries: bytes) -> bytes:
        """Leave out entries of records that a writer has appended since the check began."""
        count = len(entries) // _SIZE
        if self._limit is None or not count:
            return entries
        if _position(entries[-_SIZE:]) < self._limit:
            return entries
        kept = (n for n in range(count) if _position(entries[n * _SIZE :]) >= self._limit)
        return entries[: next(kept) * _SIZE]

    def _match(self, expected: bytes, following: bytes) -> None:
        """Match one entry. Both sides ascend by position, which tells what is missing where."""
        record_position = _position(expected)
        while True:
            entry = self._entries.now
            if entry is not None and entry.data[:_COMPARED] == expected[:_COMPARED]:
                self._findings.checked.index_entries += 1
                self._entries.step()
                self._flush()
                return
            if entry is None or self._is_missing(entry, record_position):
                self._report_missing(entry, record_position)
                return
            then = self._entries.then
            replaced = (
                then is not None and following and then.data[:_COMPARED] == following[:_COMPARED]
            )
            self._report_stray(entry)
            self._entries.step()
            if replaced or (then is None and not following):
                return

    def _is_missing(self, entry: _Place, record_position: int) -> bool:
        """Say whether `entry` belongs further on: then none stands here for `record_position`."""
        position = _position(entry.data)
        then = self._entries.then
        # A damaged position may be anything; a good one is followed by one at or after it.
        sane = then is None or position <= _position(then.data)
        return position > record_position and sane and position < self._snapshot.files.stop

    def _report_missing(self, entry: _Place | None, record_position: int) -> None:
        if not self._usable:
            return
        if entry is None and self._last_path == self._directory:
            self._report(
                self._directory, 0, f"the record at {record_position} of the log has no entry here"
            )
            return
        path, position = (entry.path, entry.position) if entry else (self._last_path, 0)
        self._report(
            path, position, f"a key of the record at {record_position} of the log has no entry here"
        )

    def _report_stray(self, entry: _Place) -> None:
        position = _position(entry.data)
        if position < self._snapshot.files.start or position in self._damaged:
            return
        self._report(entry.path, entry.position, f"no record at {position} of the log has this key")

    def _report(self, path: str, position: int, reason: str) -> None:
        """Report the first of several neighbours, with their number."""
        if self._run is None or self._run[0] != path:
            self._flush()
            self._run = (path, position, reason, 1)
        else:
            self._run = (*self._run[:3], self._run[3] + 1)

    def _flush(self) -> None:
        if self._run is not None:
            path, position, reason, count = self._run
            more = f" (and {count - 1} more of this kind)" if count > 1 else ""
            self._findings.add(path, position, reason + more)
            self._run = None

    def finish(self) -> None:
        """Report what is left when the log has ended."""
        while self._entries.now is not None:
            if self._limit is None or _position(self._entries.now.data) < self._limit:
                self._report_stray(self._entries.now)
            self._entries.step()
        self._flush()

    # The files

    def _read_all(self) -> Iterator[_File]:
        names = [
            name
            for name in self._snapshot.disk.list(self._directory)
            if name.isascii() and name.isdigit()
        ]
        for name in names:
            path = f"{self._directory}/{name}"
            data = self._load(path)
            if data is None and self._snapshot.unclosed and name == names[-1]:
                # A spare that the writer is allocating: it holds no entries.
                continue
            if data is None:
                # Where its entries would be is not known, so what is missing is unknown.
                self._usable = False
                continue
            self._findings.checked.index_files += 1
            self._last_path = path
            self._check_file(path, data, newest=name == names[-1])
            count = min(INDEX_HEADER.unpack_from(data)[-1], self._snapshot.sizes.index_entries_max)
            yield _File(path, data, self._entries_at, count)

    def _load(self, path: str) -> memoryview | None:
        expected = self._snapshot.sizes.index_file_size
        with closing(self._snapshot.disk.open(path, writable=False)) as file:
            size = file.size()
            if size == expected:
                return file.map(writable=False).buffer
        if size == 0 and self._snapshot.unclosed:
            return None
        if self._snapshot.is_own or self._snapshot.has_properties:
            self._findings.add(path, 0, f"the file has {size} bytes, expected {expected}")
        else:
            self._findings.add_note(
                f"{path}: {size} bytes; without store.properties the numbers of its slots and "
                "entries are not known"
            )
        return None

    def _check_file(self, path: str, data: memoryview, *, newest: bool) -> None:
        """Check the header, slots and chains of one file."""
        if newest and self._snapshot.unclosed:
            self._findings.add_note(f"{path}: slots and chains, while the store is in use")
            return
        count = max(1, INDEX_HEADER.unpack_from(data)[-1])
        if count > self._snapshot.sizes.index_entries_max:
            position = INDEX_HEADER.position_of("entry_count")
            self._findings.add(path, position, f"the file cannot hold {count} entries")
            return
        rebuilt = bytearray(data)
        core.index_relink(
            rebuilt,
            self._snapshot.sizes.index_slots,
            self._snapshot.sizes.index_entries_max,
            count,
        )
        if rebuilt != data:
            position = _first_difference(rebuilt, data)
            self._findings.add(path, position, self._part_of(position))
        if count > 1:
            self._check_span(path, data, count)
        self._check_unused(path, data, count)
        if self._snapshot.is_own:
            self._check_mark(path, data)
        else:
            self._check_seconds(path, data, count)

    def _check_unused(self, path: str, data: memoryview, count: int) -> None:
        """Entry 0 is never used, and those after the last one are zeros."""
        first = self._entries_at
        for start, stop in ((first, first + _SIZE), (first + count * _SIZE, len(data))):
            for position in range(start, stop, _CHUNK_SIZE):
                chunk = bytes(data[position : min(position + _CHUNK_SIZE, stop)])
                if chunk.strip(b"\0"):
                    inside = len(chunk) - len(chunk.lstrip(b"\0"))
                    self._findings.add(
                        path, position + inside, "bytes of unused entries are not zero"
                    )
                    return

    def _part_of(self, position: int) -> str:
        if position < INDEX_HEADER.size:
            return "the header does not fit the entries"
        if position < self._entries_at:
            return "a slot does not lead to the newest entry of its hash"
        return "a chain of entries is broken"

    def _check_span(self, path: str, data: memoryview, count: int) -> None:
        """The header says from when to when, and from where to where, the entries reach."""
        header = INDEX_HEADER.unpack_from(data)
        for number, side in ((1, 0), (count - 1, 1)):
            entry_position = self._entries_at + number * _SIZE
            position = _position(bytes(data[entry_position : entry_position + _SIZE]))
            time_ms = self._store_time(position)
            for field, expected in ((side, time_ms), (side + 2, position)):
                if expected is not None and header[field] != expected:
                    name = _HEADER_NAMES[field]
                    reason = f"{name} is {header[field]}, that of the entry is {expected}"
                    self._findings.add(path, INDEX_HEADER.position_of(name), reason)

    def _check_seconds(self, path: str, data: memoryview, count: int) -> None:
        """Files of RocketMQ have no checksums: the times in them follow from the records. (Those of
        the first entry count from the end of the file before.)"""
        begin_ms = INDEX_HEADER.unpack_from(data)[0]
        for number in range(2, count):
            entry_position = self._entries_at + number * _SIZE
            _, position, seconds, _ = INDEX_ENTRY.unpack_from(data, entry_position)
            time_ms = self._store_time(position)
            if time_ms is not None and seconds != _seconds_since(begin_ms, time_ms):
                reason = f"the time of the entry is not that of the record at {position} of the log"
                self._findings.add(path, entry_position, reason)
                return

    def _check_mark(self, path: str, data: memoryview) -> None:
        """The checkpoint has a checksum of the entries of the newest file."""
        point = self._snapshot.point
        if point is None or path != f"{self._directory}/{point.index.name}":
            return
        count = max(1, INDEX_HEADER.unpack_from(point.index.header)[-1])
        first, stop = (self._entries_at + number * _SIZE for number in (1, count))
        if zlib.crc32(data[first:stop]) != point.index.entries_crc:
            self._findings.add(path, first, "the entries do not match the checkpoint")

    def _store_time(self, position: int) -> int | None:
        files = self._snapshot.files
        base = files.base_of(position)
        if not files.holds(position) or base not in files.bases:
            return None
        raw = core.decode_raw(files.buffer(base), base, position, True, files.strict)
        return None if isinstance(raw, Damage) else raw.store_timestamp_ms


_SECONDS_MAX: Final = (1 << 31) - 1
_HEADER_NAMES: Final = (
    "begin_timestamp_ms",
    "end_timestamp_ms",
    "begin_position",
    "end_position",
)


def _known_end(snapshot: Snapshot) -> int:
    """Return the end of what was published: every record below it had its entries by then."""
    ends = [0]
    for log in snapshot.shards.values():
        with suppress(CorruptionError):
            ends.append(snapshot.end_for(log))
    return max(ends)


def _seconds_since(begin_ms: int, time_ms: int) -> int:
    return min(max(0, time_ms - begin_ms) // 1000, _SECONDS_MAX)


def _first_difference(rebuilt: bytearray, other: memoryview) -> int:
    position = 0
    while rebuilt[position : position + _CHUNK_SIZE] == other[position : position + _CHUNK_SIZE]:
        position += _CHUNK_SIZE
    return next(n for n in range(position, len(rebuilt)) if rebuilt[n] != other[n])


def _position(entry: bytes) -> int:
    return int.from_bytes(entry[4:12], "big", signed=True)
