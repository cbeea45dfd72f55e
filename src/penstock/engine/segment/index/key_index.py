"""The key index: which records of the log carry a key or a tag, newest first.

    index/yyyyMMddHHmmssSSS      header · hash slots · entries, chained newest to oldest

One sequence of files for all shards of the node, as in RocketMQ. Each file is really allocated and
written through a mapping: slots are hit at random. A file is filled before the next one is begun; a
spare is attached ahead, so that an append never waits for one.

Only a hash is stored: a lookup must compare the true key, and take a hit only when the
queue unit of the record's offset points back to it (a truncated shard leaves dead records).

Entries never change once written, and slots and chains follow from them. So a checkpoint keeps the
checksum of the entries of the newest file, and opening rebuilds its slots from entries that pass
it. All older files are sealed, with page checksums (see `index_mappings` for when they are
checked); the checkpoint names them, so that a missing one is noticed, too. Whatever does not agree
is not repaired: the index is rebuilt from the log.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import dropwhile, islice
from typing import Final

from msgspec.structs import replace

from penstock.codec.append_interface import Appender, IndexSink
from penstock.codec.format import INDEX_ENTRY, INDEX_HEADER
from penstock.codec.select import core
from penstock.engine.segment.index.block_checksums import BlockChecksums
from penstock.engine.segment.index.index_file import IndexFile, IndexMark
from penstock.engine.segment.index.index_mappings import IndexMappings
from penstock.engine.segment.index.sealed_files import SealedFiles
from penstock.engine.segment.paths import is_index_name
from penstock.engine.segment.settings import FileSizes
from penstock.errors import ClosedError, CorruptionError
from penstock.platform.disk import Disk

_HITS_FIRST: Final = 8
_HITS_GROWTH: Final = 32
_TIME_MAX: Final = (1 << 63) - 1
_ALL: Final = 1 << 62


_NO_MARK: Final = IndexMark("", b"", 0)


class KeyIndex:
    """The index files of one node, and the part of them that the appender fills."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        sizes: FileSizes,
        sums: BlockChecksums,
        position_max: Callable[[], int] | None = None,
    ) -> None:
        """`position_max` says which position no entry is after, for an index whose entries are not
        added in the order of positions: else that is the last one's."""
        self._position_max: Final = position_max
        self._disk: Final = disk
        self.directory: Final = directory
        self._sizes: Final = sizes
        self._checksums: Final = sums
        self._sealed: Final = SealedFiles(disk, sums)
        self._mappings: Final = IndexMappings(disk, directory, sizes.index_file_size, self._sealed)
        self.names: list[str] = []
        self._attached: list[IndexFile] = []
        self._running_crc: tuple[str, int, int] = ("", 1, 0)
        self._ends: dict[str, int] = {}
        """A position of each sealed file after which it has no record."""
        self._misfits: Final[set[str]] = set()
        """Files of another size than they should have, when they were found."""
        self._last_sealed = _NO_MARK
        self.damaged = False
        """A file was found damaged: every look-up raises until the index was rebuilt."""
        self._generation = 0
        """How often all files were removed: a look-up must not go on in the files of another."""
        self._closed = False
        self._lock: Final = threading.RLock()
        self._sealing: Final = threading.Lock()
        """Acquired before `_lock`; held while files being filled are synced, sealed or released."""

    @property
    def entries_max(self) -> int:
        return self._sizes.index_entries_max

    @property
    def attached_count(self) -> int:
        """How many files are being filled, or are full and not sealed yet. Each has two
        descriptors."""
        return len(self._attached)

    def load(self) -> bool:
        """Find the files; return whether all of them have the right size."""
        self.names = [n for n in self._disk.list(self.directory) if is_index_name(n)]
        self._misfits.clear()
        for name in self.names:
            file = self._disk.open(f"{self.directory}/{name}", writable=False)
            size = file.size()
            header = file.read_at(0, INDEX_HEADER.size)
            file.close()
            if size != self._sizes.index_file_size:
                self._misfits.add(name)
            self._ends[name] = _end_of(header)
        return not self._misfits

    def restore(self, mark: IndexMark | None, appender: IndexSink, log_start: int) -> bool:
        """Bring the files back to `mark` and attach the newest; return False when they do not
        agree with it, so that the index must be rebuilt."""
        if mark is None or not mark.complete:
            return False
        if not mark.name:
            self.clear()
            return True
        with self._lock:
            if mark.name not in self.names or mark.name in self._misfits:
                return False
            if not self._restore_older(mark, log_start):
                return False
            newest = IndexFile(self._disk, self.directory, mark.name)
            count = max(1, int(INDEX_HEADER.unpack(mark.header)[-1]))
            buffer = newest.mapping.buffer
            if self._entries_crc(buffer, 1, count, 0) != mark.entries_crc:
                buffer.release()
                newest.release()
                return False
            if newest.header != mark.header or self._slots_crc(buffer) != mark.slots_crc:
                self._relink(newest, mark.header, count)
            newest.prefaulted = INDEX_HEADER.size
            self._attach(newest, appender)
            self._running_crc = (mark.name, count, mark.entries_crc)
            return True

    def _restore_older(self, mark: IndexMark, log_start: int) -> bool:
        """Return whether all files that the mark names are there, or went with the log's files;
        remove those that it does not name."""
        older = dict(mark.older)
        if not self._misfits.isdisjoint(older):
            return False
        if any(name not in self.names and end >= log_start for name, end in mark.older):
            return False
        self._ends = older
        for name in [n for n in self.names if n != mark.name and n not in older]:
            self._remove(name)
        return True

    def _relink(self, newest: IndexFile, header: bytes, count: int) -> None:
        buffer = newest.mapping.buffer
        buffer[: INDEX_HEADER.size] = header
        written = newest.file.written_ranges(0)
        stop = written[-1][1] if written else 0
        sizes = self._sizes
        core.index_relink(buffer, sizes.index_slots, sizes.index_entries_max, count, stop)

    def _slots_crc(self, buffer: memoryview) -> int:
        end = INDEX_HEADER.size + 4 * self._sizes.index_slots
        with buffer[INDEX_HEADER.size : end] as slots:
            return zlib.crc32(slots)

    def adopt(self, appender: Appender) -> bool:
        """Go on with the newest file as it is: the way to open a store without checkpoint. The
        older ones are believed as they are now. Return False when the last entries are not those
        of the record that the headers name, so that the index must be rebuilt."""
        if not self.names:
            return True
        last = self._find_last()
        if last is None:
            return False
        for name in self.names[:-1]:
            path = f"{self.directory}/{name}"
            with closing(self._disk.open(path, writable=False)) as file:
                self._checksums.seal(f"index/{name}", file)
            self._sealed.mark_sealed(path)
        self._ends.pop(self.names[-1], None)
        newest = IndexFile(self._disk, self.directory, self.names[-1])
        newest.prefaulted = INDEX_HEADER.size
        self._attach(newest, appender)
        appender.set_index_end(*last)
        return True

    def _find_last(self) -> tuple[int, int] | None:
        """Return the position of the last record in the index and how many entries it has, which
        may be in several files; None when headers and entries do not agree about it."""
        end = self._ends[self.names[-1]]
        count = 0
        for name in reversed(self.names):
            if self._ends[name] != end:
                break
            there, of_last = self._count_last(name, end)
            count += of_last
            if of_last < there:
                break
            if not there and len(self.names) == 1:
                return end, 0
        return (end, count) if count else None

    def _count_last(self, name: str, position: int) -> tuple[int, int]:
        """Return how many entries a file has, and how many at its end are of one record."""
        base = INDEX_HEADER.size + 4 * self._sizes.index_slots
        with closing(self._disk.open(f"{self.directory}/{name}", writable=False)) as file:
            count = int(INDEX_HEADER.unpack(file.read_at(0, INDEX_HEADER.size))[-1])
            there = min(max(1, count), self.entries_max) - 1
            for number in range(there, 0, -1):
                entry = file.read_at(base + INDEX_ENTRY.size * number, INDEX_ENTRY.size)
                if INDEX_ENTRY.unpack(entry)[1] != position:
                    return there, there - number
        return there, there

    def _attach(self, newest: IndexFile, appender: IndexSink) -> None:
        self._attached.append(newest)
        # A reader takes a named file that is not mapped for a sealed one, and misses its checksums.
        # So a new file is mapped before it is named, and named before it has entries.
        self._mappings.keep_filled(newest.name, newest.mapping)
        if newest.name not in self.names:
            self.names.append(newest.name)
        # Entries are written in order. Slots are hit at random: their pages may be large.
        slots_end = INDEX_HEADER.size + 4 * self._sizes.index_slots
        newest.mapping.set_readahead(slots_end, self._sizes.index_file_size, enabled=False)
        appender.attach_index(
            newest.mapping.buffer, self._sizes.index_slots, self._sizes.index_entries_max
        )

    def add_file(self, appender: IndexSink, now_ms: int) -> None:
        """Create the next file, allocated, and attach it after the one being filled."""
        with self._lock:
            if self._closed:
                raise ClosedError(f"the index {self.directory} was closed")
            name = _name_for(now_ms, self.names[-1] if self.names else "")
            path = f"{self.directory}/{name}"
            self._attach(self._create(name, path), appender)

    def _create(self, name: str, path: str) -> IndexFile:
        """Make a file, allocated and durable in its directory; nothing is left of a failure."""
        try:
            with closing(self._disk.open(path, create=True)) as file:
                file.allocate(self._sizes.index_file_size)
            self._disk.sync_directory(self.directory)
            return IndexFile(self._disk, self.directory, name)
        except OSError:
            self._disk.remove(path)
            raise

    def prefault(self, ahead_size: int) -> None:
        """Fault in the pages that the appender will reach next: all slots of a new file, which are
        hit at random, and the entries after the last. For the background."""
        slots_end = INDEX_HEADER.size + 4 * self._sizes.index_slots
        with self._lock:
            attached = [(index, index.mapping.buffer, index.count) for index in self._attached]
        for index, buffer, count in attached:
            if not index.prefaulted:
                core.prefault(buffer, 0, slots_end)
                index.prefaulted = slots_end
            end = slots_end + INDEX_ENTRY.size * count
            start = max(index.prefaulted, end)
            stop = min(end + ahead_size, self._sizes.index_file_size)
            # In steps: a page at a time costs the background more than it saves.
            if stop - start >= ahead_size // 4:
                core.prefault(buffer, start, stop - start)
                index.prefaulted = stop

    def seal_full(self, appender: IndexSink) -> None:
        """Put full files on the device with their checksums; they take no more entries."""
        with self._sealing:
            while appender.index_full and len(self._attached) > 1:
                full = self._attached[0]
                self._seal(full)
                with self._lock:
                    appender.release_index()
                    del self._attached[0]
                    self._mappings.mark_sealed(full.name)
                full.file.close()

    def release_descriptors(self, appender: IndexSink) -> None:
        """Close what can be opened again: sealed files between look-ups, and full ones."""
        self._mappings.unmap_all()
        self.seal_full(appender)
        self._mappings.unmap_all()

    def _seal(self, full: IndexFile) -> None:
        """Put a full file on the device, once. The caller holds `_sealing`."""
        if full.name in self._ends:
            return
        full.sync()
        self._checksums.seal(f"index/{full.name}", full.file)
        self._sealed.mark_sealed(f"{self.directory}/{full.name}")
        header = full.header
        with full.mapping.buffer as buffer:
            crc = self._entries_crc(buffer, 1, full.count, 0)
        self._last_sealed = IndexMark(full.name, header, crc)
        self._ends[full.name] = self._end_position(header)

    def _end_position(self, header: bytes) -> int:
        return _end_of(header) if self._position_max is None else self._position_max()

    def begin_mark(self) -> tuple[str, bytes, memoryview] | None:
        """Take name, header and bytes of the file being filled; the caller holds the log's lock,
        so that they fit a position of the log. `finish_mark` does the long part without it."""
        with self._lock:
            for index in reversed(self._attached):
                if index.count > 1:
                    return index.name, index.header, index.mapping.buffer
        return None

    def finish_mark(
        self, begun: tuple[str, bytes, memoryview] | None, *, clean: bool = False
    ) -> IndexMark:
        with self._sealing:
            if begun is None:
                # The file being filled has no entry yet: the one before it is the newest.
                last = self._last_sealed
                return self._with_older(last if last.name in self.names else _NO_MARK)
            newest, header, view = begun
            for index in [i for i in self._attached if i.name < newest]:
                self._seal(index)
            count = max(1, int(INDEX_HEADER.unpack(header)[-1]))
            name, done, crc = self._running_crc
            if name != newest or done > count:
                done, crc = 1, 0
            with view as buffer:
                crc = self._entries_crc(buffer, done, count, crc)
                slots_crc = self._slots_crc(buffer) if clean else None
            self._running_crc = (newest, count, crc)
            return self._with_older(IndexMark(newest, header, crc, slots_crc))

    def _with_older(self, mark: IndexMark) -> IndexMark:
        with self._lock:
            older = [(n, self._ends[n]) for n in self.names if n < mark.name and n in self._ends]
        return replace(mark, older=tuple(older))

    def _entries_crc(self, buffer: memoryview, first: int, stop: int, crc: int) -> int:
        base = INDEX_HEADER.size + 4 * self._sizes.index_slots
        start, end = base + INDEX_ENTRY.size * first, base + INDEX_ENTRY.size * stop
        with buffer[start:end] as entries:
            return zlib.crc32(entries, crc)

    def sync(self) -> None:
        with self._sealing:
            for index in list(self._attached):
                index.sync()

    def lookup(self, text: str, begin_ms: int, end_ms: int, count_max: int) -> Iterator[int]:
        """Yield positions of records that may carry `text`, newest first: of all that there were
        when the first was taken. They are read a few at a time, because most callers want the
        newest only. For an index whose entries were added in the order of their positions.

        A damaged or missing sealed file raises `CorruptionError`: the caller rebuilds the index.
        """
        for buffer in self._buffers():
            yield from islice(self._hits(buffer, text, (begin_ms, end_ms)), count_max)

    def lookup_all(self, text: str) -> list[int]:
        """Return positions of records that may carry `text`, in the order in which they were added,
        newest first; otherwise as `lookup`."""
        positions: list[int] = []
        for buffer in self._buffers():
            positions += self._look_into(buffer, text, (0, _TIME_MAX), _ALL)
        return positions

    def _buffers(self) -> Iterator[memoryview]:
        """Yield the bytes of all files, newest first."""
        generation = self._generation
        self._check_current(generation)
        for name in reversed(list(self.names)):
            buffer = self._buffer(name, generation)
            self._check_current(generation)
            if buffer is not None:
                yield buffer

    def _check_current(self, generation: int) -> None:
        if self.damaged or generation != self._generation:
            raise CorruptionError(self.directory, position=0, reason="it must be rebuilt")

    def _buffer(self, name: str, generation: int) -> memoryview | None:
        """Return the bytes of a file, or None when it was removed meanwhile, with the records it
        spoke of."""
        try:
            return self._mappings.buffer(name)
        except (CorruptionError, FileNotFoundError) as error:
            with self._lock:
                if generation != self._generation or name not in self.names:
                    return None
                self.damaged = True
            if isinstance(error, CorruptionError):
                raise
            path = f"{self.directory}/{name}"
            raise CorruptionError(path, position=0, reason="the file is missing") from error

    def newest(self, topic: str, key: bytes) -> int:
        """Return the newest position that there is for a plain key, quickly, or -1: then `lookup`
        knows better."""
        generation = self._generation
        if self.damaged:
            return -1
        slots, entries_max = self._sizes.index_slots, self._sizes.index_entries_max
        for name in reversed(self.names):
            try:
                buffer = self._mappings.buffer(name)
            except (OSError, CorruptionError):
                return -1
            position = core.index_newest(buffer, slots, entries_max, topic, key)
            if position >= 0:
                # An index that is being rebuilt has the older records first.
                return position if generation == self._generation else -1
        return -1

    def _hits(self, buffer: memoryview, text: str, span_ms: tuple[int, int]) -> Iterator[int]:
        below, limit = _ALL, _HITS_FIRST
        while True:
            hits = self._look_into(buffer, text, span_ms, limit)
            # Newer ones may have come meanwhile, before those that were seen already.
            yield from dropwhile(below.__le__, hits)
            if len(hits) < limit:
                return
            below, limit = min(below, hits[-1]), limit * _HITS_GROWTH

    def _look_into(
        self, buffer: memoryview, text: str, span_ms: tuple[int, int], count_max: int
    ) -> list[int]:
        slots, entries_max = self._sizes.index_slots, self._sizes.index_entries_max
        return core.index_lookup(buffer, slots, entries_max, text, *span_ms, count_max)

    def remove_before(self, position: int) -> None:
        """Remove the files whose entries all lie below `position` of the log."""
        with self._lock:
            attached = {index.name for index in self._attached}
            for name in list(self.names):
                if name in attached or self._ends.get(name, position) >= position:
                    return
                self._remove(name)

    def _remove(self, name: str) -> None:
        with self._lock:
            # First, so that a reader who comes too late knows why it finds nothing.
            self.names.remove(name)
            self._ends.pop(name, None)
            self._mappings.drop(name)
            self._disk.remove(f"{self.directory}/{name}")
            self._checksums.remove(f"index/{name}")

    def clear(self) -> None:
        """Remove all files; none may be attached."""
        with self._lock:
            self._generation += 1
        for name in list(self.names):
            self._remove(name)
        # A new file may get the name of an old one.
        self._running_crc = ("", 1, 0)
        self._last_sealed = _NO_MARK

    def detach(self, appender: IndexSink) -> None:
        """Release the files being filled; a spare that holds nothing is removed, because
        RocketMQ would take it for the newest."""
        with self._sealing, self._lock:
            for index in self._attached:
                appender.release_index()
                unused = index.count <= 1
                self._mappings.drop(index.name)
                index.file.close()
                if unused:
                    self._remove(index.name)
            self._attached.clear()

    def hand_over(self, old: IndexSink, new: IndexSink) -> None:
        """Let `new` fill the files that `old` filled."""
        with self._lock:
            for index in self._attached:
                old.release_index()
                new.attach_index(
                    index.mapping.buffer, self._sizes.index_slots, self._sizes.index_entries_max
                )

    def unmap_idle(self) -> None:
        """Unmap the files that were not read since the last call."""
        self._mappings.unmap_idle()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            # Only where opening failed are there any left.
            for index in self._attached:
                index.file.close()
        self._mappings.close()


def _end_of(header: bytes) -> int:
    """Return the position of the last record that a file has an entry for."""
    return int(INDEX_HEADER.unpack(header)[3]) if len(header) == INDEX_HEADER.size else 0


def _name_for(now_ms: int, newest: str) -> str:
    """Name a file after its time of creation, always after the newest there is."""
    moment = time.gmtime(now_ms / 1000)
    name = time.strftime("%Y%m%d%H%M%S", moment) + f"{now_ms % 1000:03d}"
    return name if name > newest else f"{int(newest) + 1:017d}"
