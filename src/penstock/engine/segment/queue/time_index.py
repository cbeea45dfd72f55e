"""Finds a time in a shard: the largest timestamp of every block of offsets.

    penstock/times/<topic>/<partition>     header · entry of block `first` · of block first + 1 · …

Records carry their producers' clocks, so timestamps come in any order. A block whose maximum is
below the time that is looked for cannot hold it; every other block is a candidate and is scanned.

The promise: `candidates` never leaves out a block that may hold the time. A block whose maximum is
not known, because its entry is damaged, lost or was never written, is a candidate, too. `unknown`
names such blocks, and the caller, who has the records, computes them again; until then lookups are
slower, never wrong.

Entries are written in place, each with a checksum over its number and its value. A cut is synced
before anything else is written, or a power cut could bring back an old entry for a block that has
other records now. Memory holds 8 bytes per block, from the first use on.

One thread writes at a time; others may look up beside it.
"""

from __future__ import annotations

import threading
import zlib
from array import array
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import pairwise
from typing import Final, NamedTuple

from penstock.engine.segment.recovery.checksummed_file import read_whole
from penstock.errors import NotSupportedError
from penstock.platform.disk import Disk
from penstock.platform.layout import Field, Layout
from penstock.record import ShardId

UNKNOWN: Final = (1 << 63) - 1
"""The maximum of a block about which nothing is known: no time is past it."""

TIMES_VERSION: Final = 1

TIMES_HEADER: Final = Layout(
    "time blocks header",
    Field("magic", "8 bytes", "PSTKTIME"),
    Field("version", "u32", "1"),
    Field("first_block", "u64", "the block of the first entry"),
    Field("checksum", "u32", "CRC-32 of the fields before"),
    size=24,
)
TIMES_ENTRY: Final = Layout(
    "time blocks entry",
    Field("maximum_ms", "i64", "the largest BORNTIMESTAMP of the block"),
    Field("checksum", "u32", "CRC-32 of the block's number, as u64, and the maximum"),
    size=12,
)
_CHECKED: Final = Layout(
    "what the checksum of a time blocks entry covers",
    Field("block", "u64", "number of the block"),
    Field("maximum_ms", "i64", "as in the entry"),
    size=16,
)

_MAGIC: Final = b"PSTKTIME"
_SCAN: Final = 512
"""Blocks searched in one step: the largest of a slice is found far faster than one by one."""
_SHRINK_MIN: Final = 1024
"""Entries that must be free at the front before the file is rewritten without them."""


class _Table(NamedTuple):
    """What the file says. `values` only ever grows or shrinks at its end; a change at the front
    makes a new table, so that a lookup going on beside it stays consistent."""

    first_block: int
    values: array[int]

    @property
    def end_block(self) -> int:
        return self.first_block + len(self.values)


class TimeIndex:
    __slots__ = (
        "_created",
        "_damaged",
        "_disk",
        "_dropped",
        "_lock",
        "_root",
        "_shard",
        "_stale",
        "_table",
    )

    def __init__(self, disk: Disk, root: str, shard: ShardId) -> None:
        """`root` is the directory of all shards' tables."""
        self._disk = disk
        self._root = root
        self._shard = shard
        self._lock = threading.Lock()
        self._table: _Table | None = None
        self._dropped = 0
        self._damaged = False
        self._created = False
        # True while the file holds entries that were cut: the cut failed, and must be done first.
        self._stale = False

    @property
    def _path(self) -> str:
        return f"{self._root}/{self._shard.topic}/{self._shard.partition}"

    @property
    def damaged(self) -> bool:
        """Whether reading the file found damage that was not mended yet."""
        self._load()
        return self._damaged

    @property
    def first_block(self) -> int:
        """The first block that has a place here."""
        return max(self._load().first_block, self._dropped)

    @property
    def end_block(self) -> int:
        """The block after the last one that has a place here."""
        return max(self._load().end_block, self._dropped)

    def append(self, blocks: Iterable[tuple[int, int]]) -> None:
        """Note finished blocks: (number, maximum), ascending.

        A block that is here already replaces itself and all after it, as a record in the log
        replaces those of its shard from its offset on. Blocks left out are unknown.
        """
        items = list(blocks)
        if not items:
            return
        assert all(a[0] < b[0] for a, b in pairwise(items)), "blocks are appended in order"
        self.truncate_from(items[0][0])
        table = self._load()
        start = table.end_block if table.values else items[0][0]
        new = array("q", [UNKNOWN]) * (items[-1][0] + 1 - start)
        for block, maximum_ms in items:
            new[block - start] = maximum_ms
        with closing(self._disk.open(self._path, create=True)) as file:
            if not table.values:
                self._created = True
                file.write_at(0, _pack_header(start))
            file.write_at(_position(len(table.values)), _pack(start, new))
        if table.values:
            table.values.extend(new)
        else:
            self._table = table = _Table(start, new)
        self._update_damaged(table)

    def put(self, block: int, maximum_ms: int) -> None:
        """Mend the entry of one block that `unknown` named, and that has a place here."""
        table = self._load()
        assert table.first_block <= block < table.end_block, f"block {block} has no place"
        self._rebuild_stale()
        with closing(self._disk.open(self._path)) as file:
            file.write_at(_position(block - table.first_block), _pack(block, [maximum_ms]))
        table.values[block - table.first_block] = maximum_ms
        self._update_damaged(table)

    def candidates(
        self, timestamp_ms: int, first_block: int | None = None, end_block: int | None = None
    ) -> Iterator[int]:
        """Yield the blocks of `[first_block, end_block)` that may hold a record with this
        timestamp or a later one, ascending. Without bounds: of all blocks that have a place."""
        table = self._load()
        first = max(table.first_block, self._dropped) if first_block is None else first_block
        end = table.end_block if end_block is None else end_block
        yield from range(first, min(end, table.first_block))
        block = max(first, table.first_block)
        while block < min(end, table.end_block):
            until = min(block + _SCAN, end, table.end_block)
            part = table.values[block - table.first_block : until - table.first_block]
            if part and max(part) >= timestamp_ms:
                yield from (block + n for n, value in enumerate(part) if value >= timestamp_ms)
            block = until
        yield from range(block, end)

    def unknown(self, first_block: int, end_block: int) -> list[int]:
        """Return the blocks of `[first_block, end_block)` whose maximum is not known."""
        return list(self.candidates(UNKNOWN, first_block, end_block))

    def truncate_from(self, block: int) -> None:
        """Forget `block` and all after it; nothing of them can come back after a power cut."""
        table = self._load()
        header_lost = self._damaged and not table.values
        if block < table.end_block or header_lost:
            # Memory first: whatever becomes of the file, lookups are right, and the next write
            # begins with what is left to do.
            self._stale = True
            if block > table.first_block:
                del table.values[block - table.first_block :]
            else:
                self._table = table = _Table(0, array("q"))
        self._rebuild_stale()
        self._update_damaged(table)

    def drop_before(self, block: int) -> None:
        """Forget the blocks before `block`. The file is rewritten when half of it is of no use."""
        self._dropped = max(self._dropped, block)
        self._rebuild_stale()
        table = self._load()
        free = min(block, table.end_block) - table.first_block
        if free < _SHRINK_MIN or free * 2 < len(table.values):
            return
        kept = _Table(table.first_block + free, table.values[free:])
        data = _pack_header(kept.first_block) + _pack(kept.first_block, kept.values)
        self._disk.replace(self._path, data, durable=True)
        self._table = kept

    def drain_unsynced(self) -> tuple[list[str], list[str]]:
        """Write what waits, and return the file, and the directory that it was created in: the
        caller syncs them, or says `return_unsynced`."""
        self._rebuild_stale()
        if not self._load().values:
            return [], []
        directories = [self._path.rpartition("/")[0]] if self._created else []
        self._created = False
        return [self._path], directories

    def return_unsynced(self, taken: tuple[list[str], list[str]]) -> None:
        self._created |= bool(taken[1])

    def sync(self) -> None:
        """Put the file on the device."""
        taken = self.drain_unsynced()
        try:
            self._disk.sync_together(*taken)
        except BaseException:
            self.return_unsynced(taken)
            raise

    def clear(self) -> None:
        """Forget everything, to begin anew."""
        # Not by removing the file: a power cut could undo that, and bring old entries back.
        self._stale = self._disk.exists(self._path)
        self._table = _Table(0, array("q"))
        self._rebuild_stale()
        self._damaged = False

    def remove(self) -> None:
        """Remove the file, in a directory that the caller syncs."""
        self._disk.remove(self._path)
        self._table = None
        self._dropped = 0
        self._stale = self._damaged = False

    def unload(self) -> None:
        """Give the memory back; the next use reads the file again."""
        if not self._stale:
            self._table = None

    def _update_damaged(self, table: _Table) -> None:
        self._damaged = self._damaged and UNKNOWN in table.values

    def _rebuild_stale(self) -> None:
        """Take entries that were cut out of the file."""
        if not self._stale:
            return
        count = len(self._load().values)
        with closing(self._disk.open(self._path)) as file:
            file.truncate(_position(count) if count else 0)
            file.sync()
        self._stale = False

    def _load(self) -> _Table:
        table = self._table
        if table is None:
            with self._lock:
                # A lookup must not put what it read before an append in the place of the result.
                if self._table is None:
                    data = read_whole(self._disk, self._path)
                    self._table, self._damaged = _unpack(self._path, data or b"")
                table = self._table
        return table


def _position(index: int) -> int:
    return TIMES_HEADER.size + index * TIMES_ENTRY.size


def _pack_header(first_block: int) -> bytes:
    header = TIMES_HEADER.pack(_MAGIC, TIMES_VERSION, first_block, 0)
    checked = header[: TIMES_HEADER.position_of("checksum")]
    return TIMES_HEADER.pack(_MAGIC, TIMES_VERSION, first_block, zlib.crc32(checked))


def _pack(first_block: int, values: Iterable[int]) -> bytes:
    return b"".join(
        TIMES_ENTRY.pack(value, zlib.crc32(_CHECKED.pack(block, value)))
        for block, value in enumerate(values, first_block)
    )


def _unpack(path: str, data: bytes) -> tuple[_Table, bool]:
    """Return what the file holds, and whether it is damaged. No file is an empty table."""
    if not data:
        return _Table(0, array("q")), False
    checked_size = TIMES_HEADER.position_of("checksum")
    if len(data) < TIMES_HEADER.size:
        return _Table(0, array("q")), True
    magic, version, first_block, checksum = TIMES_HEADER.unpack_from(data)
    if magic != _MAGIC or zlib.crc32(data[:checked_size]) != checksum:
        return _Table(0, array("q")), True
    if version != TIMES_VERSION:
        raise NotSupportedError(f"{path}: version {version} needs a newer release of Penstock")
    entries = memoryview(data)[TIMES_HEADER.size :]
    torn_size = len(entries) % TIMES_ENTRY.size
    values = array("q")
    damaged = torn_size > 0
    for value, entry_checksum in TIMES_ENTRY.iter_unpack(entries[: len(entries) - torn_size]):
        if zlib.crc32(_CHECKED.pack(first_block + len(values), value)) == entry_checksum:
            values.append(value)
        else:
            values.append(UNKNOWN)
            damaged = True
    return _Table(first_block, values), damaged
