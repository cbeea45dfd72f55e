"""One immutable object of a tier: records, and a footer that finds and checks them.

    data       whole records, as a log file whose base is the chunk's position in the tiered log
    units      queue units, 20 bytes each (46 for batches), their positions in the tiered log
    keys       (hash of a key, number of a unit), sorted by hash
    sums       CRC-32 of every block of 64 KiB of the data
    trailer    sizes, bounds, times, the CRC-32 of units, keys and sums, and its own

Everything is big-endian. A reader that has the footer verifies any block by itself; the records in
it have checksums of their own, which the store's reader checks again.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left
from collections.abc import Set
from itertools import zip_longest
from typing import Final, NamedTuple

from msgspec import Struct

from penstock.codec.format import BATCH_UNIT, KIND_BATCH, KIND_SIMPLE, QUEUE_UNIT
from penstock.codec.select import core
from penstock.engine.segment import UnitsRead
from penstock.errors import CorruptionError, NotSupportedError
from penstock.record import QueueKind, ShardId
from penstock.tiered.chunk.chunk_records import KEY_ENTRY, index_units

MAGIC: Final = b"PSTKCHNK"
VERSION: Final = 1
BLOCK_SIZE: Final = 64 << 10
FILTER_SIZE: Final = 512
"""Bytes of the filter of keys that a chunk's entry in the manifest holds."""

_TRAILER: Final = struct.Struct(">8sHBBqqqIIIIqqqqII")
_SUM: Final = struct.Struct(">I")
TRAILER_SIZE: Final = _TRAILER.size


class ChunkEntry(Struct, frozen=True, array_like=True):
    """What a manifest says of one chunk."""

    name: str
    first_offset: int
    end_offset: int
    """The chunk answers for [first_offset, end_offset); what it has no unit for was deleted."""
    units_offset: int
    """The offset of the first unit."""
    position: int
    data_size: int
    size: int
    units: int
    min_ms: int
    max_ms: int
    epoch: int
    created_ms: int
    keys: bytes = b""
    """A filter: a key whose bits are not all set is not in the chunk."""

    @property
    def footer_size(self) -> int:
        return self.size - self.data_size

    def may_hold_key(self, key: bytes) -> bool:
        return not self.keys or all(self.keys[n >> 3] >> (n & 7) & 1 for n in _bits(key))


class Footer(NamedTuple):
    """What a chunk's footer says."""

    units: bytes
    keys: bytes
    sums: bytes
    position: int
    data_size: int
    kind: QueueKind

    @property
    def unit_size(self) -> int:
        return BATCH_UNIT.size if self.kind is QueueKind.BATCH else QUEUE_UNIT.size

    @property
    def memory_size(self) -> int:
        return len(self.units) + len(self.keys) + len(self.sums)

    def units_of_key(self, key: bytes) -> list[int]:
        """Return the numbers of the units that may point at a record of `key`, descending."""
        hashed = key_hash(key)
        count = len(self.keys) // KEY_ENTRY.size
        index = bisect_left(range(count), hashed, key=self._hash_at)
        units: list[int] = []
        while index < count:
            entry_hash, unit = KEY_ENTRY.unpack_from(self.keys, index * KEY_ENTRY.size)
            if entry_hash != hashed:
                break
            units.append(unit)
            index += 1
        return sorted(units, reverse=True)

    def _hash_at(self, number: int) -> int:
        return int(KEY_ENTRY.unpack_from(self.keys, number * KEY_ENTRY.size)[0])

    def units_of_hashes(self, hashes: Set[int]) -> list[int]:
        """Return the numbers of the units that may point at a record of one of the keys."""
        return sorted(
            {unit for hashed, unit in KEY_ENTRY.iter_unpack(self.keys) if hashed in hashes}
        )

    def check_blocks(self, name: str, first_block: int, data: bytes | memoryview) -> None:
        """Raise `CorruptionError` unless `data`, which begins with a block, is what was written."""
        self.check_sums(name, first_block, core.block_checksums(data, BLOCK_SIZE))

    def check_sums(self, name: str, first_block: int, actual: bytes) -> None:
        """Raise `CorruptionError` unless these are the sums of the blocks from `first_block` on."""
        expected = self.sums[first_block * _SUM.size :][: len(actual)]
        if actual == expected:
            return
        sums = enumerate(zip_longest(_SUM.iter_unpack(actual), _SUM.iter_unpack(expected)))
        wrong = next(n for n, (left, right) in sums if left != right)
        raise CorruptionError(
            name,
            position=(first_block + wrong) * BLOCK_SIZE,
            reason="the checksum of this block is wrong",
        )


def key_hash(key: bytes) -> int:
    return zlib.crc32(key)


def derive_units(
    shard: ShardId, kind: QueueKind, data: bytes | bytearray, position: int, offset: int
) -> bytes:
    """Return the queue units of the records in `data`, which start at `position` of the tiered log
    and whose first has `offset`; offsets without a record get empty units."""
    appender = core.Appender(bytes(8), bytes(8), len(data))
    number = KIND_BATCH if kind is QueueKind.BATCH else KIND_SIMPLE
    handle = appender.add_queue(shard.topic, shard.partition, number, offset, 0)
    end = position + len(data)
    reached, _, status, damage, _ = appender.replay(
        data, position, position, end, False, "%ctl", False
    )
    if damage is not None or status != 0 or reached != end:
        reason = damage.reason if damage is not None else f"replay ended at {reached} ({status})"
        raise CorruptionError(shard.name, position=reached, reason=reason)
    return appender.peek_units(handle)[1]


class ChunkRange(NamedTuple):
    """Where a chunk belongs: offsets [first, end) and its place in the tiered log."""

    first_offset: int
    end_offset: int
    position: int
    epoch: int
    created_ms: int


def build_chunk(
    shard: ShardId, kind: QueueKind, name: str, data: bytes, units: bytes, where: ChunkRange
) -> tuple[bytes, ChunkEntry]:
    """Return the object for records that have their final positions, each of them read back and
    checked, and its entry for the manifest. One that is whole and cannot be decoded is in it
    like any other, and has no keys."""
    unit_size = BATCH_UNIT.size if kind is QueueKind.BATCH else QUEUE_UNIT.size
    units_offset = _units_offset(data, where)
    read = UnitsRead(data, where.position, units, units_offset)
    keys, key_filter, min_ms, max_ms = index_units(shard, kind, read, FILTER_SIZE)
    sums = core.block_checksums(data, BLOCK_SIZE)
    count = len(units) // unit_size
    footer = units + keys + sums
    trailer = _TRAILER.pack(
        MAGIC,
        VERSION,
        kind is QueueKind.BATCH,
        0,
        where.first_offset,
        where.end_offset,
        where.position,
        len(data),
        count,
        len(keys) // KEY_ENTRY.size,
        len(sums) // _SUM.size,
        min_ms,
        max_ms,
        where.epoch,
        units_offset,
        _sum(footer),
        0,
    )
    trailer = trailer[:-4] + _SUM.pack(zlib.crc32(trailer[:-4]))
    whole = b"".join((data, footer, trailer))
    entry = ChunkEntry(
        name=name,
        first_offset=where.first_offset,
        end_offset=where.end_offset,
        units_offset=units_offset,
        position=where.position,
        data_size=len(data),
        size=len(whole),
        units=count,
        min_ms=min_ms,
        max_ms=max_ms,
        epoch=where.epoch,
        created_ms=where.created_ms,
        keys=key_filter,
    )
    return whole, entry


def read_footer(name: str, tail: bytes | memoryview) -> tuple[Footer, ChunkEntry]:
    """Return the footer that `tail`, the end of a chunk, holds, checked; and its entry, without
    the filter of keys."""
    if len(tail) < TRAILER_SIZE:
        raise CorruptionError(name, position=0, reason="not a chunk: it is too short")
    trailer = _TRAILER.unpack_from(tail, len(tail) - TRAILER_SIZE)
    magic, version, batch, _, first, end, position, data_size, units, keys, blocks = trailer[:11]
    if magic != MAGIC:
        raise CorruptionError(name, position=0, reason="not a chunk of Penstock")
    if version > VERSION:
        raise NotSupportedError(
            f"{name} has version {version}; this Penstock reads up to {VERSION}"
        )
    if zlib.crc32(tail[-TRAILER_SIZE:-4]) != trailer[-1]:
        raise CorruptionError(name, position=data_size, reason="the trailer is damaged")
    kind = QueueKind.BATCH if batch else QueueKind.SIMPLE
    unit_size = BATCH_UNIT.size if batch else QUEUE_UNIT.size
    sizes = (units * unit_size, keys * KEY_ENTRY.size, blocks * _SUM.size)
    start = len(tail) - TRAILER_SIZE - sum(sizes)
    if start < 0:
        raise CorruptionError(name, position=data_size, reason="the footer is cut short")
    body = memoryview(tail)[start:-TRAILER_SIZE]
    if _sum(body) != trailer[15]:
        raise CorruptionError(name, position=data_size, reason="the footer is damaged")
    keys_at, sums_at = sizes[0], sizes[0] + sizes[1]
    footer = Footer(
        bytes(body[:keys_at]),
        bytes(body[keys_at:sums_at]),
        bytes(body[sums_at:]),
        position,
        data_size,
        kind,
    )
    entry = ChunkEntry(
        name=name,
        first_offset=first,
        end_offset=end,
        units_offset=trailer[14],
        position=position,
        data_size=data_size,
        size=data_size + len(body) + TRAILER_SIZE,
        units=units,
        min_ms=trailer[11],
        max_ms=trailer[12],
        epoch=trailer[13],
        created_ms=0,
    )
    return footer, entry


def _sum(data: bytes | memoryview) -> int:
    """Return the CRC-32; natively that is many times as fast as by zlib."""
    return int.from_bytes(core.block_checksums(data, max(1, len(data))), "big")


def _units_offset(data: bytes, where: ChunkRange) -> int:
    raw = core.decode_raw(data, where.position, where.position, False) if data else None
    offset = getattr(raw, "queue_offset", None)
    return where.first_offset if offset is None else int(offset)


def _bits(key: bytes) -> tuple[int, int, int]:
    first, second = zlib.crc32(key), zlib.adler32(key) | 1
    bits = FILTER_SIZE * 8
    return first % bits, (first + second) % bits, (first + 2 * second) % bits
