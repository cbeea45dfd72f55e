"""The key index: hash slots, each the head of a chain of entries from the newest to the oldest.

    header 40 · slot* (4 bytes: number of the newest entry) · entry* (20 bytes; entry 0 is unused)

Only hashes are stored, so an answer is a position to look at, never a proof. Everything read from
a file may be damaged: entry numbers are checked against the file, and a chain must go downwards,
which also makes every walk end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.codec.format import (
    INDEX_ENTRY,
    INDEX_HEADER,
    index_file_size,
    index_hash,
    java_hash,
)
from penstock.codec.index_writer import COUNT_AT, SLOT, USED_AT, IndexFile

if TYPE_CHECKING:
    from typing_extensions import Buffer


def index_lookup(
    index: Buffer,
    slots: int,
    entries_max: int,
    text: str,
    begin_ms: int,
    end_ms: int,
    count_max: int,
) -> list[int]:
    """Return positions of records that may have the key `text` (`topic#key`), newest first.

    This is RocketMQ's walk, and its times are whole seconds counted from the file's first record:
    a caller that needs exact times asks for a second more and looks at the records.
    """
    file = IndexFile(index, slots, entries_max)
    file_begin_ms, *_ = INDEX_HEADER.unpack_from(file.view)
    hashed = index_hash(java_hash(text))
    # Not bounded by the header's count: a writer sets the slot before the count, and a reader that
    # took such a slot for damage would miss all entries of the chain. Callers compare the key.
    above = entries_max
    (number,) = SLOT.unpack_from(file.view, file.slot_at(hashed))
    positions: list[int] = []
    while 0 < number < above and len(positions) < count_max:
        entry_hash, position, seconds, previous = INDEX_ENTRY.unpack_from(
            file.view, file.entry_at(number)
        )
        time_ms = file_begin_ms + seconds * 1000
        if seconds < 0:
            break
        if entry_hash == hashed and begin_ms <= time_ms <= end_ms:
            positions.append(position)
        if time_ms < begin_ms:
            break
        above, number = number, previous
    return positions


def index_relink(
    index: Buffer, slots: int, entries_max: int, keep: int, stop: int = 1 << 63
) -> None:
    """Keep the entries below number `keep`, clear the rest, and build slots and chains again. From
    byte `stop` on the file is known to be zeros."""
    file = IndexFile(index, slots, entries_max)
    view = file.view
    keep = min(max(keep, 1), entries_max)
    view[INDEX_HEADER.size : file.entry_at(1)] = bytes(file.entry_at(1) - INDEX_HEADER.size)
    first = file.entry_at(keep)
    end = max(first, min(index_file_size(slots, entries_max), stop))
    view[first:end] = bytes(end - first)
    used = 0
    for number in range(1, keep):
        entry_at = file.entry_at(number)
        hashed, position, seconds, _ = INDEX_ENTRY.unpack_from(view, entry_at)
        slot_at = file.slot_at(abs(hashed))
        (previous,) = SLOT.unpack_from(view, slot_at)
        INDEX_ENTRY.pack_into(view, entry_at, hashed, position, seconds, previous)
        SLOT.pack_into(view, slot_at, number)
        used += previous == 0
    SLOT.pack_into(view, USED_AT, used)
    SLOT.pack_into(view, COUNT_AT, keep)
