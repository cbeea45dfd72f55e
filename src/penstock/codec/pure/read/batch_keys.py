"""Keys of the messages inside batches, as entries of a key index."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from penstock.codec.format import (
    BATCH_UNIT,
    UNIQ_KEY,
    index_hash,
    index_strings,
    java_hash,
)
from penstock.codec.index_writer import IndexFile
from penstock.codec.interface import DeletedRanges, KeyPage
from penstock.codec.pure.read.reading import read_batches
from penstock.record import StoredRecord

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
    strict: bool = False,
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
        strict,
    )
    keyed = [(record, keys) for record in records if (keys := _keys_of(record))]
    packed = bytearray()
    for position, _, _, _, first, count, _, _ in BATCH_UNIT.iter_unpack(units):
        inside: set[tuple[int, int]] = set()
        while keyed and keyed[0][0].offset < first + count:
            record, keys = keyed.pop(0)
            for key in keys:
                text = f"{topic}#{index_strings(key)[0]}"
                inside.add((index_hash(java_hash(text)), record.store_timestamp_ms))
        for hashed, store_ms in sorted(inside):
            packed += _ENTRY.pack(hashed, position, store_ms)
    return bytes(packed), after, size, damage


def _keys_of(record: StoredRecord) -> list[bytes]:
    """Return what a message is found by: its key and, when a RocketMQ client sent it, each word of
    its KEYS and its UNIQ_KEY."""
    keys = [] if record.key is None else [record.key]
    if record.key is not None and b" " in record.key:
        keys += record.key.split(b" ")
    return keys + [value or b"" for name, value in record.headers if name == UNIQ_KEY]


def index_fill(index: Buffer, slots: int, entries_max: int, entries: bytes) -> int:
    file = IndexFile(index, slots, entries_max)
    added = 0
    for hashed, position, store_ms in _ENTRY.iter_unpack(entries):
        if file.room == 0:
            break
        added += file.put([hashed], position, store_ms)
    return added
