"""Records on their way into a tier: taken out of the log, put at their new place, indexed.

Whole records, as bytes. Each is verified before it is copied, and its checksum follows its new
position by linearity.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from penstock.codec.format import BATCH_UNIT, KIND_BATCH, KIND_SIMPLE, QUEUE_UNIT, Damage
from penstock.codec.interface import CopiedRecords, DeletedRanges, RecordIndex
from penstock.codec.properties import inner_range, lookup, parse
from penstock.codec.pure.copying import moved
from penstock.codec.pure.read.codec import view_of
from penstock.codec.pure.read.dispatching import facts_of
from penstock.codec.pure.read.located import RecordParts, find_damaged_part, find_parts
from penstock.codec.pure.read.reading import LogFile, read_batches, read_records
from penstock.errors import BadRequestError
from penstock.record import StoredRecord

if TYPE_CHECKING:
    from typing_extensions import Buffer

_ALL_TIMES: Final = -(1 << 62)
_UNLIMITED: Final = 1 << 62
_KEYS_PER_BYTE: Final = 4
"""Keys per byte of a filter beyond which it tells nothing apart."""


def copy_records(
    log: Buffer,
    base: int,
    units: bytes,
    kind: int,
    offset: int,
    topic: str,
    queue_id: int,
    deleted: DeletedRanges,
    max_size: int,
    strict: bool = False,
    whole_groups: bool = False,
) -> CopiedRecords:
    """Copy the records that units point at, one after the other, without those wholly deleted."""
    _check_kind(kind)
    file = LogFile(log, base, topic, queue_id, strict=strict)
    data = bytearray()
    after = group_offset = offset
    group_start = group_end = 0
    damage: Damage | None = None
    unit_size = _unit_size(kind)
    for unit_at in range(0, len(units) - unit_size + 1, unit_size):
        first, end, position, size = _row(units, unit_at, kind, after)
        start = max(first, offset)
        if any(begin <= start and end <= stop for begin, stop in deleted):
            after = max(after, end)
            continue
        if not file.holds(position):
            break
        parts = file.record_at(position, size)
        if isinstance(parts, RecordParts) and parts.queue_offset != first:
            parts = Damage(position, f"unit {first} points at offset {parts.queue_offset}")
        if isinstance(parts, Damage):
            damage = parts
            break
        if len(data) >= group_end:
            together = _group_size(file.view, parts) if whole_groups else size
            if data and len(data) + together > max_size:
                break
            group_start, group_end, group_offset = len(data), len(data) + together, after
        data += file.view[parts.start : parts.end]
        after = end
    if len(data) < group_end:
        del data[group_start:]
        after = group_offset
    return bytes(data), after, damage


def _group_size(view: memoryview, parts: RecordParts) -> int:
    """Return the bytes of the group that a record begins, or else of the record."""
    size = facts_of(view, parts).group_size()
    return max(size, parts.size) if isinstance(size, int) else parts.size


def place_records(
    data: Buffer,
    kind: int,
    position: int,
    offset: int,
    gap_max: int,
    max_size: int,
    topic: str | None = None,
    queue_id: int = 0,
) -> tuple[bytes, int, int]:
    """Move a run of records to `position`; see `Core.place_records`."""
    _check_kind(kind)
    view = view_of(data)
    placed = bytearray()
    first = end = offset
    name = None if topic is None else topic.encode("utf-8", "surrogateescape")
    while len(placed) < len(view):
        start = len(placed)
        parts = find_parts(view, start, len(view))
        fault = parts if isinstance(parts, str) else find_damaged_part(view, parts, strict=False)
        if fault is not None or isinstance(parts, str):
            raise BadRequestError(f"no record of a commit log at byte {start}: {fault}")
        begin, count = parts.queue_offset, 1
        if kind == KIND_BATCH:
            properties = parse(bytes(view[parts.properties : parts.end]))
            inner = inner_range(lookup(properties))
            if inner is None or inner[0] != begin:
                raise BadRequestError(
                    f"no record of a commit log at byte {start}: "
                    "it does not belong in a batch queue"
                )
            count = inner[1]
        if name is not None and not _is_of(view, parts, name, queue_id):
            break
        if len(placed) + parts.size > max_size or not 0 <= begin - end <= gap_max:
            break
        if not placed:
            first = begin
        placed += moved(view, parts, position + start)
        end = begin + count
    return bytes(placed), first, end


def _is_of(view: memoryview, parts: RecordParts, topic: bytes, queue_id: int) -> bool:
    return parts.queue_id == queue_id and bytes(view[parts.topic : parts.topic_end]) == topic


def block_checksums(data: Buffer, block_size: int) -> bytes:
    """Return the CRC-32 of every block, one after the other; see `Core.block_checksums`."""
    if block_size < 1:
        raise BadRequestError("a block has at least a byte")
    view = view_of(data)
    starts = range(0, len(view), block_size)
    sums = (zlib.crc32(view[start : start + block_size]) for start in starts)
    return b"".join(checksum.to_bytes(4, "big") for checksum in sums)


def index_records(
    data: Buffer,
    base: int,
    units: bytes,
    kind: int,
    offset: int,
    topic: str,
    queue_id: int,
    filter_size: int,
) -> RecordIndex:
    """Read everything that the units point at; see `Core.index_records`."""
    _check_kind(kind)
    if filter_size < 1:
        raise BadRequestError("a filter has at least a byte")
    read = read_batches if kind == KIND_BATCH else read_records
    records, _, _, damage = read(
        *(data, base, units, offset, topic, queue_id, _UNLIMITED, _UNLIMITED),
        *([], _ALL_TIMES, None, None),
    )
    rows = [
        _row(units, unit_at, kind, offset + n)[0]
        for n, unit_at in enumerate(range(0, len(units), _unit_size(kind)))
    ]
    pairs: set[tuple[int, int]] = set()
    keys: set[bytes] = set()
    for record in records:
        record_keys = keys_of(record)
        unit = (
            record.offset - offset if kind == KIND_SIMPLE else bisect_right(rows, record.offset) - 1
        )
        pairs.update((zlib.crc32(key), unit) for key in record_keys)
        keys |= record_keys
    packed = b"".join(a.to_bytes(4, "big") + b.to_bytes(4, "big") for a, b in sorted(pairs))
    times = [record.timestamp_ms for record in records] or [0]
    return packed, filter_of(keys, filter_size), min(times), max(times), damage


def keys_of(record: StoredRecord) -> set[bytes]:
    """Return everything that finds a record by key: its key, the words of a RocketMQ key, and the
    unique key that RocketMQ's producers add."""
    keys: set[bytes] = set()
    if record.key is not None:
        keys.add(record.key)
        keys.update(word for word in record.key.split(b" ") if word)
    for name, value in record.headers:
        if name == "UNIQ_KEY" and value:
            keys.add(value)
    return keys


def filter_of(keys: set[bytes], size: int) -> bytes:
    """Return a filter of the keys, `size` bytes; none when it could not tell any apart."""
    if len(keys) > size * _KEYS_PER_BYTE:
        return b""
    bits = bytearray(size)
    for key in keys:
        for n in filter_bits(key, size):
            bits[n >> 3] |= 1 << (n & 7)
    return bytes(bits)


def filter_bits(key: bytes, size: int) -> tuple[int, int, int]:
    first, second = zlib.crc32(key), zlib.adler32(key) | 1
    bits = size * 8
    return first % bits, (first + second) % bits, (first + 2 * second) % bits


def _check_kind(kind: int) -> None:
    if kind not in (KIND_SIMPLE, KIND_BATCH):
        raise BadRequestError(f"{kind} is not a kind of queue")


def _unit_size(kind: int) -> int:
    return BATCH_UNIT.size if kind == KIND_BATCH else QUEUE_UNIT.size


def _row(units: bytes, unit_at: int, kind: int, offset: int) -> tuple[int, int, int, int]:
    """Return what a unit says: offsets [first, end), position and size of its record."""
    if kind == KIND_SIMPLE:
        position, size, _ = QUEUE_UNIT.unpack_from(units, unit_at)
        return offset, offset + 1, position, size
    position, size, _, _, base, count, _, _ = BATCH_UNIT.unpack_from(units, unit_at)
    return base, base + count, position, size
