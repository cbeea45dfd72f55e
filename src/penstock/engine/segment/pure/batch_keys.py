"""Keys of the messages inside batches, as entries of a key index."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from penstock.engine.segment.format import BATCH_UNIT, index_hash, index_strings, java_hash
from penstock.engine.segment.pure.key_index import IndexFile
from penstock.engine.segment.pure.reading import read_batches
from penstock.engine.segment.twin_interface import DeletedRanges, KeyPage

if TYPE_CHECKING:
    from typing_extensions import Buffer

_ENTRY: Final = struct.Struct(">Iqq")


def read_keys(
    log: Buffer,
    base: int,
    units: bytes,
    start_offset: int,
    topic: str,
    queue_id: int,
    max_records: int,
    max_size: int,
    deleted: DeletedRanges,
    now_ms: int,
) -> KeyPage:
    """Read the keys from `start_offset` on of consecutive batch-queue units."""
    records, after, size, damage = read_batches(
        log,
        base,
        units,
        start_offset,
        topic,
        queue_id,
        max_records,
        max_size,
        deleted,
        now_ms,
        None,
        None,
    )
    keyed = [record for record in records if record.key is not None]
    packed = bytearray()
    for position, _, _, _, first, count, _, _ in BATCH_UNIT.iter_unpack(units):
        inside: set[tuple[int, int]] = set()
        while keyed and keyed[0].offset < first + count:
            record = keyed.pop(0)
            assert record.key is not None, "others were left out"
            text = f"{topic}#{index_strings(record.key)[0]}"
            inside.add((index_hash(java_hash(text)), record.store_timestamp_ms))
        for hashed, store_ms in sorted(inside):
            packed += _ENTRY.pack(hashed, position, store_ms)
    return bytes(packed), after, size, damage


def index_fill(index: Buffer, slots: int, entries_max: int, entries: bytes) -> int:
    file = IndexFile(index, slots, entries_max)
    added = 0
    for hashed, position, store_ms in _ENTRY.iter_unpack(entries):
        if file.room == 0:
            break
        added += file.put([hashed], position, store_ms)
    return added
