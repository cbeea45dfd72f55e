"""The keys of all rows, in which order is everything.

    G                                                  the next generation
    S · topic size u32 · topic · partition u32         a shard: its generation, configuration, seal
    D · generation u64 · E                             where the shard ends
    D · generation u64 · R · offset u64                a record
    D · generation u64 · K · name · offset u64         a record's key
    D · generation u64 · T · name · offset u64         one of a record's tags
    D · generation u64 · X · moment u64 · offset u64   when a record expires
    D · generation u64 · B · level u8 · block u64      the newest timestamp of a block
    D · generation u64 · P · producer u64              a producer's last writes
    D · generation u64 · W · producer u64 · offset u64 a write in its open transaction
  and where the shard has replicas on other nodes (`penstock.engine.row_replica`):
    D · generation u64 · A · offset u64                the write of a client that begins there
    D · generation u64 · C                             commit offsets, the ends of the operations
    D · generation u64 · H                             which leader epoch began where
    D · generation u64 · O · index u64                 an operation
    name = size u32 · bytes, or FFFFFFFF · their BLAKE2 hash when there are many

Every shard that was ever created has a generation of its own: what a deleted shard left is
out of reach of one created later with its name, and all of it is one range to delete. Nothing is
concatenated without its size, so no bytes in a name can make it look like another. Integers are
big-endian and unsigned: their order as bytes is their order.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Final

from penstock.codec.validation import INT64_MIN
from penstock.record import ShardId

GENERATION_ROW: Final = b"G"
SHARDS: Final = (b"S", b"T")
NAME_SIZE_MAX: Final = 128
"""Longer names are hashed: RocksDB keeps whole keys in its indexes and filters."""

_HASHED: Final = b"\xff\xff\xff\xff"
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_pack_u32: Final = _U32.pack
_pack_u64: Final = _U64.pack
_unpack_u64: Final = _U64.unpack_from


def shard_row(shard: ShardId) -> bytes:
    topic = shard.topic.encode("utf-8", "surrogateescape")
    return b"S" + _pack_u32(len(topic)) + topic + _pack_u32(shard.partition)


def shard_of_row(key: bytes) -> ShardId:
    topic = key[5:-4].decode("utf-8", "surrogateescape")
    return ShardId(topic, _U32.unpack(key[-4:])[0])


def pack_generation(generation: int) -> bytes:
    return _pack_u64(generation)


def unpack_generation(row: bytes) -> int:
    generation: int = _unpack_u64(row)[0]
    return generation


def offset_of(key: bytes) -> int:
    """Return the offset that ends the key of a record, a name or an expiry."""
    offset: int = _unpack_u64(key, len(key) - 8)[0]
    return offset


class ShardKeys:
    """The keys of one generation."""

    __slots__ = (
        "_block",
        "_expiry",
        "_key",
        "_operation",
        "_prefix",
        "_producer",
        "_record",
        "_tag",
        "_transacted",
        "_write",
        "all",
        "copy",
        "end",
        "history",
    )

    def __init__(self, generation: int) -> None:
        prefix = b"D" + _pack_u64(generation)
        self.all: Final = (prefix, b"D" + _pack_u64(generation + 1))
        self.end: Final = prefix + b"E"
        self.copy: Final = prefix + b"C"
        self.history: Final = prefix + b"H"
        self._prefix: Final = prefix
        self._write: Final = prefix + b"A"
        self._operation: Final = prefix + b"O"
        self._record: Final = prefix + b"R"
        self._key: Final = prefix + b"K"
        self._tag: Final = prefix + b"T"
        self._expiry: Final = prefix + b"X"
        self._block: Final = prefix + b"B"
        self._producer: Final = prefix + b"P"
        self._transacted: Final = prefix + b"W"

    def record(self, offset: int) -> bytes:
        return self._record + _pack_u64(offset)

    def of_key(self, key: bytes) -> bytes:
        """Return what the rows of a key begin with; an offset follows."""
        return self._key + _name(key)

    def of_tag(self, tag: str) -> bytes:
        """Return what the rows of a tag begin with; an offset follows."""
        return self._tag + _name(tag.encode("utf-8", "surrogateescape"))

    def named(self, prefix: bytes, offset: int) -> bytes:
        """Return the row of an offset after what `of_key` or `of_tag` gave."""
        return prefix + _pack_u64(offset)

    def expiry(self, moment_ms: int, offset: int) -> bytes:
        return self._expiry + _pack_u64(moment_ms - INT64_MIN) + _pack_u64(offset)

    def block(self, level: int, block: int) -> bytes:
        return self._block + bytes((level,)) + _pack_u64(block)

    def producer(self, producer_id: int) -> bytes:
        return self._producer + _pack_u64(producer_id)

    def transacted(self, producer_id: int, offset: int) -> bytes:
        return self._transacted + _pack_u64(producer_id) + _pack_u64(offset)

    def write(self, offset: int) -> bytes:
        return self._write + _pack_u64(offset)

    def operation(self, index: int) -> bytes:
        return self._operation + _pack_u64(index)

    def every(self, kind: bytes) -> tuple[bytes, bytes]:
        """Return the bounds of all rows of a kind."""
        prefix = self._prefix + kind
        return prefix, _after_prefix(prefix)

    @property
    def every_key(self) -> tuple[bytes, bytes]:
        return self._key, _after_prefix(self._key)

    @property
    def every_producer(self) -> tuple[bytes, bytes]:
        return self._producer, _after_prefix(self._producer)


def _name(name: bytes) -> bytes:
    if len(name) <= NAME_SIZE_MAX:
        return _pack_u32(len(name)) + name
    return _HASHED + blake2b(name, digest_size=32).digest()


def _after_prefix(prefix: bytes) -> bytes:
    """Return the first key that is greater than all with this prefix."""
    assert prefix[-1] < 0xFF
    return prefix[:-1] + bytes((prefix[-1] + 1,))
