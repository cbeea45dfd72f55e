"""Filling index files from Python: for the Python backend, and for the keys inside batches.

See `pure.key_index` for how the files are laid out.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.codec.format import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT_SIZE,
    index_file_size,
)
from penstock.errors import BadRequestError

if TYPE_CHECKING:
    from typing_extensions import Buffer

SLOT: Final = struct.Struct(">i")
COUNT_AT: Final = INDEX_HEADER.position_of("entry_count")
USED_AT: Final = INDEX_HEADER.position_of("slots_used")
_SECONDS_MAX: Final = 0x7FFF_FFFF
_SPANS: Final = slice(0, USED_AT)  # the four begin and end fields


class IndexFile:
    """A buffer that holds an index file, and where things are in it.

    `next_entry` is the number that the next entry gets. It is read once: while the object lives,
    no other thread may change the buffer.
    """

    __slots__ = ("_entries_at", "entries_max", "next_entry", "slots", "view")

    def __init__(self, index: Buffer, slots: int, entries_max: int) -> None:
        self.view = memoryview(index).cast("B")
        self.slots = slots
        self.entries_max = entries_max
        size = index_file_size(slots, entries_max)
        if slots < 1 or entries_max < 1 or len(self.view) < size:
            raise BadRequestError(
                f"an index of {slots} slots and {entries_max} entries takes {size} bytes, "
                f"not {len(self.view)}"
            )
        self._entries_at = INDEX_HEADER.size + slots * INDEX_SLOT_SIZE
        count: int = SLOT.unpack_from(self.view, COUNT_AT)[0]
        self.next_entry = min(max(count, 1), entries_max)

    @property
    def room(self) -> int:
        return self.entries_max - self.next_entry

    @property
    def is_fresh(self) -> bool:
        return self.next_entry == 1 and not any(self.view[_SPANS])

    @property
    def span_end(self) -> tuple[int, int]:
        """STORETIMESTAMP and position of the last record indexed here."""
        _, timestamp_ms, _, position, _, _ = INDEX_HEADER.unpack_from(self.view)
        return timestamp_ms, position

    def slot_at(self, hashed: int) -> int:
        return INDEX_HEADER.size + hashed % self.slots * INDEX_SLOT_SIZE

    def entry_at(self, number: int) -> int:
        return self._entries_at + number * INDEX_ENTRY.size

    def seed(self, timestamp_ms: int, position: int) -> None:
        """Let a fresh file begin where the one before it ended, as RocketMQ does."""
        INDEX_HEADER.pack_into(
            self.view,
            0,
            *(max(timestamp_ms, 0), max(timestamp_ms, 0)),
            *(max(position, 0), max(position, 0)),
            *(0, 1),
        )

    def put(self, hashes: list[int], position: int, timestamp_ms: int) -> int:
        """Index one record under as many of `hashes` as there is room for; return how many."""
        view, slots, entries_at = self.view, self.slots, self._entries_at
        begin_ms, _, begin_position, _, used, _ = INDEX_HEADER.unpack_from(view)
        first = number = self.next_entry
        for hashed in hashes[: self.entries_max - number]:
            slot_at = INDEX_HEADER.size + hashed % slots * INDEX_SLOT_SIZE
            newest: int = SLOT.unpack_from(view, slot_at)[0]
            previous = newest if 0 < newest <= number else 0
            # The time of entry 1 is relative to the seeded one, which that entry then replaces.
            seconds = (timestamp_ms - begin_ms) // 1000 if 0 < begin_ms < timestamp_ms else 0
            seconds = min(seconds, _SECONDS_MAX)
            entry_at = entries_at + number * INDEX_ENTRY.size
            INDEX_ENTRY.pack_into(view, entry_at, hashed, position, seconds, previous)
            SLOT.pack_into(view, slot_at, number)
            if number == 1:
                begin_ms, begin_position = timestamp_ms, position
            if previous == 0:
                used += 1
            number += 1
        INDEX_HEADER.pack_into(
            view, 0, begin_ms, timestamp_ms, begin_position, position, used, number
        )
        self.next_entry = number
        return number - first


class IndexFiles:
    """The attached index files, oldest first. Entries go to the oldest that has room."""

    def __init__(self) -> None:
        self._files: deque[IndexFile] = deque()
        self._released_end = (0, 0)
        self.last = (-1, 0)
        """The record that the entries end with, and how many of them are its own."""
        self.room = 0
        """Free entries over all files."""

    def attach(self, file: IndexFile) -> None:
        self._files.append(file)
        self.room += file.room

    def release(self) -> None:
        if not self._files:
            raise BadRequestError("no index file is attached")
        file = self._files.popleft()
        self.room -= file.room
        self._released_end = self._end_of(file, self._released_end)

    @property
    def attached(self) -> int:
        return len(self._files)

    @property
    def full(self) -> int:
        count = 0
        for file in self._files:
            if file.room > 0:
                break
            count += 1
        return count

    @property
    def end_position(self) -> int:
        """Position of the last record indexed; older ones are in the index already."""
        end = self._released_end
        for file in self._files:
            end = self._end_of(file, end)
        return end[1]

    def count_of(self, position: int) -> int:
        """How many entries the record at a position, not below the end, is known to have."""
        return self.last[1] if self.last[0] == position else 0

    def put_all(self, hashes: list[int], position: int, timestamp_ms: int) -> None:
        """Index one record. The caller has made sure that there is room."""
        self.room -= len(hashes)
        while hashes:
            count = self.next_file().put(hashes, position, timestamp_ms)
            hashes = hashes[count:]

    def next_file(self) -> IndexFile:
        """Return the file that the next entry goes to. The caller has made sure of the room."""
        end = self._released_end
        for file in self._files:
            if file.next_entry < file.entries_max:
                if file.next_entry == 1 and file.is_fresh:
                    file.seed(*end)
                return file
            end = self._end_of(file, end)
        raise AssertionError("room was checked before")

    @staticmethod
    def _end_of(file: IndexFile, before: tuple[int, int]) -> tuple[int, int]:
        return before if file.is_fresh else file.span_end
