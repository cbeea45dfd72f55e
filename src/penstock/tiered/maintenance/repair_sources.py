"""Where the records of a damaged chunk can still be found: in the object itself, in an older
generation of it that was not deleted yet, and in the log of the node that uploaded it.

Every record is checked by its own checksum, and must be one of the shard.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from penstock.codec.format import PRE_BLANK, QUEUE_UNIT, RECORD_HEAD, Damage, RawRecord
from penstock.codec.properties import inner_range, lookup
from penstock.codec.select import core
from penstock.engine.segment import ReadOnlyStore, split_raw_range
from penstock.engine.transactions import StableOffsets
from penstock.errors import CorruptionError, NotSupportedError
from penstock.meta.offline import read_transactions
from penstock.record import QueueKind, ShardId
from penstock.tiered.chunk.chunk import ChunkEntry, Footer, read_footer
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.object_names import is_penstock_object
from penstock.tiered.providers.contract import ObjectMissingError
from penstock.tiered.read.unit_selection import offsets_of
from penstock.tiered.upload.committed_log import LsoBoundedLog

RecordsByOffset = dict[int, tuple[int, bytes]]
"""Records (batches) by their first offset: the end offset, and the bytes."""
_RUN_SIZE: Final = 4 << 20
_POSITION_AT: Final = RECORD_HEAD.position_of("position")


class LocalLog:
    """The log of a node that may run or be stopped; nothing is changed in its directory."""

    def __init__(self, data: str) -> None:
        root = f"{data}/segment"
        self._view: Final = ReadOnlyStore.open(root if os.path.isdir(root) else data)
        limits = StableOffsets()
        if os.path.isfile(f"{data}/meta/CURRENT"):
            known = read_transactions(f"{data}/meta")
            limits.load_aborted(known.aborted)
            for state in known.open:
                for partition in state.partitions:
                    limits.hold_written(partition.shard, state.producer_id, partition.first_offset)
        self._log: Final = LsoBoundedLog(self._view, lambda: limits, self._view)

    def records(self, shard: ShardId, kind: QueueKind, first: int, end: int) -> RecordsByOffset:
        """Return what the log still holds of the offsets [first, end)."""
        records: RecordsByOffset = {}
        if shard not in self._view.shards():
            return records
        bounds = self._log.bounds(shard)
        offset, end = max(first, int(bounds.earliest)), min(end, int(bounds.commit))
        while offset < end:
            run, after = self._log.read_raw_range(shard, offset, max_size=_RUN_SIZE)
            for message in split_raw_range(run) if run else ():
                offsets = checked(shard, kind, message)
                if offsets is not None and offsets[0] < end:
                    records[offsets[0]] = (offsets[1], message)
            if after <= offset:
                break
            offset = after
        return records

    def close(self) -> None:
        self._view.close()


def checked(
    shard: ShardId, kind: QueueKind, message: bytes, expected_position: int | None = None
) -> tuple[int, int] | None:
    """Return the offsets [first, end) of a record that is whole, of the shard and, if it must be,
    for the position `at`; else None."""
    position = int.from_bytes(message[_POSITION_AT : _POSITION_AT + 8], "big", signed=True)
    if expected_position is not None and position != expected_position:
        return None
    raw = core.decode_raw(message, position, position, True)
    if isinstance(raw, Damage) or raw.size != len(message):
        return None
    if (raw.topic, raw.queue_id) != shard:
        return None
    return _offsets(kind, raw)


def _offsets(kind: QueueKind, raw: RawRecord) -> tuple[int, int]:
    inner = inner_range(lookup(raw.properties)) if kind is QueueKind.BATCH else None
    first, count = (raw.queue_offset, 1) if inner is None else inner
    return first, first + count


def sound_records(
    flat: CompositeFlatFile, entry: ChunkEntry
) -> tuple[RecordsByOffset, Footer | None]:
    """Return the records of a damaged chunk that are whole, and its footer if that is."""
    try:
        footer = flat.fetcher.footer(flat.manifest.prefix, entry)
    except (CorruptionError, ObjectMissingError):
        return _scanned(flat, entry), None
    records: RecordsByOffset = {}
    data = _data_of(flat, entry)
    for position, size in _places(footer):
        start = position - entry.position
        # By its own checksum: in a block whose sum is wrong, most records are what was written.
        _add_if_whole(flat, data[start : start + size], position, records)
    return records, footer


def _data_of(flat: CompositeFlatFile, entry: ChunkEntry) -> bytes:
    """Return the records' bytes of a chunk, not checked; none when they cannot be read."""
    try:
        return flat.provider.get_range(f"{flat.manifest.prefix}{entry.name}", 0, entry.data_size)
    except ObjectMissingError:
        return b""


def _scanned(flat: CompositeFlatFile, entry: ChunkEntry) -> RecordsByOffset:
    """Return the records from the beginning of a chunk without a footer, up to the first that is
    not whole."""
    records: RecordsByOffset = {}
    data = _data_of(flat, entry)
    start = 0
    while start + 4 <= len(data):
        size = int.from_bytes(data[start : start + 4], "big")
        if not 4 <= size <= len(data) - start:
            break
        if not _add_if_whole(flat, data[start : start + size], entry.position + start, records):
            break
        start += size
    return records


def _add_if_whole(
    flat: CompositeFlatFile, message: bytes, position: int, records: RecordsByOffset
) -> bool:
    offsets = checked(flat.shard, flat.kind, message, position)
    if offsets is not None:
        records[offsets[0]] = (offsets[1], message)
    return offsets is not None


def _places(footer: Footer) -> Iterator[tuple[int, int]]:
    size = footer.unit_size
    for start in range(0, len(footer.units), size):
        if footer.units[start : start + size] != PRE_BLANK:
            position, length = QUEUE_UNIT.unpack_from(footer.units, start)[:2]
            yield position, length


def offsets_in(footer: Footer, entry: ChunkEntry) -> list[tuple[int, int]]:
    """Return the offsets [first, end) of every record that a footer knows of."""
    size = footer.unit_size
    return [
        offsets_of(footer, entry, n)
        for n in range(entry.units)
        if footer.units[n * size : (n + 1) * size] != PRE_BLANK
    ]


def other_chunks(flat: CompositeFlatFile, named: set[str]) -> Iterator[ChunkEntry]:
    """Yield the whole chunks of a shard that the manifest does not name: older generations, and
    what an upload that was cut short left."""
    for info in list(flat.provider.list(flat.manifest.prefix)):
        name = info.key.rpartition("/")[2]
        if name in named or not name.endswith(".chunk") or not is_penstock_object(name):
            continue
        try:
            _, entry = read_footer(info.key, flat.provider.get(info.key).data)
        except (CorruptionError, ObjectMissingError, NotSupportedError):
            continue
        yield replace(entry, name=name)


def records_in(flat: CompositeFlatFile, entry: ChunkEntry) -> RecordsByOffset:
    """Return the whole records of a chunk that the manifest does not name."""
    records: RecordsByOffset = {}
    key = f"{flat.manifest.prefix}{entry.name}"
    try:
        data = flat.provider.get(key).data
        footer, _ = read_footer(key, data)
    except (CorruptionError, ObjectMissingError):
        return records
    for position, size in _places(footer):
        start = position - entry.position
        _add_if_whole(flat, data[start : start + size], position, records)
    return records
