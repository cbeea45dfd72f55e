"""RocketMQ's tiered index files in their uploaded form: items grouped by slot, newest first.

head    magic 4 · begin 8 · end 8 · used slots 4 · items 4
slots   position 4 · length 4, both in bytes
items   hash 4 · topic id 4 · queue 4 · tiered offset 8 · size 4 · seconds after begin 4
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from penstock.codec.format import index_hash, java_hash
from penstock.errors import CorruptionError

MAGIC_UPLOADED: Final = 0xBCC50285
_HEAD: Final = struct.Struct(">Iqqii")
_SLOT: Final = struct.Struct(">ii")
_ITEM: Final = struct.Struct(">iiiqii")


class IndexHit(NamedTuple):
    topic_id: int
    queue_id: int
    position: int
    """In the tiered commit log of that queue."""
    size: int
    store_timestamp_ms: int


def lookup_index(path: str, data: bytes, text: str) -> list[IndexHit]:
    """Return the hits of `topic#key` in one index file, newest first."""
    if len(data) < _HEAD.size:
        raise CorruptionError(path, position=0, reason="the index file is cut short")
    magic, begin_ms, _, _, items = _HEAD.unpack_from(data)
    if magic != MAGIC_UPLOADED:
        raise CorruptionError(
            path, position=0, reason=f"the magic is {magic:#010x}, not {MAGIC_UPLOADED:#010x}"
        )
    left = len(data) - _HEAD.size - items * _ITEM.size
    if items < 0 or left <= 0 or left % _SLOT.size:
        raise CorruptionError(path, position=24, reason=f"{items} items do not fit into the file")
    slots = left // _SLOT.size
    hashed = index_hash(java_hash(text))
    start, size = _SLOT.unpack_from(data, _HEAD.size + hashed % slots * _SLOT.size)
    if start < 0 or size <= 0:
        return []
    if start + size > len(data) or size % _ITEM.size:
        raise CorruptionError(path, position=start, reason="a slot points out of the file")
    hits = []
    for item_hash, topic, queue, position, length, seconds in _ITEM.iter_unpack(
        data[start : start + size]
    ):
        if item_hash == hashed:
            hits.append(IndexHit(topic, queue, position, length, begin_ms + seconds * 1000))
    return hits
