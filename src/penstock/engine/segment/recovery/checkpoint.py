"""Where a start after a crash begins to look, and up to where the log is known to be on the device.

    penstock/durable      two slots, written in turn after every flush: the durable point
    penstock/checkpoint   the derived point: queues, indexes and states below it are on the device
    checkpoint            RocketMQ's own, for RocketMQ; we believe ours, which has checksums

The durable point is written after the sync that it speaks of and is itself not synced: a power cut
can only make it older, which is safe. Two slots, because a torn write may spoil one of them.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

from penstock.codec.format import CHECKPOINT
from penstock.engine.segment.index.index_file import IndexMark
from penstock.platform.disk import Disk
from penstock.platform.layout import Field, Layout

ROCKETMQ_CHECKPOINT_SIZE: Final = 4096

DURABLE_SLOT: Final = Layout(
    "durable point slot",
    Field("sequence", "u64", "counts the writes; the valid slot with the larger one holds"),
    Field("position", "u64", "every byte of the commit log below it is on the device"),
    Field("store_timestamp_ms", "i64", "of the newest record below it"),
    Field("checksum", "u32", "CRC-32 of the fields before"),
    size=28,
)
_SLOT_DISTANCE: Final = 512
"""One slot per sector, so that one torn sector spoils one slot."""

CHECKPOINT_HEAD: Final = Layout(
    "derived checkpoint head",
    Field("magic", "u32", "0x50534B43"),
    Field("checksum", "u32", "CRC-32 of the MessagePack document after this head"),
    size=8,
)
_MAGIC: Final = 0x50534B43


class DerivedPoint(msgspec.Struct, frozen=True):
    """What `penstock/checkpoint` holds."""

    position: int
    """All derived files agree with the log below this position, and are on the device."""
    clean: bool
    """True when the store was closed: the log ends at `position`."""
    index: IndexMark
    store_timestamp_ms: int
    boot_id: str = ""
    buckets: tuple[int, ...] = ()
    """The files of shard states that there must be."""
    ends_total: int | None = None
    """The sum of the ends of all queues: states that say less are not those of this point."""
    log_start: int | None = None
    """Where the first file of the log began. Files that went since then held nothing that the
    states show: retention moves their floors, and makes a checkpoint, before it removes a file."""
    small_files: dict[str, int] | None = None
    """CRC-32 of small files that have no checksum of their own, by their path in the store's
    directory, when the store was closed."""
    known: int | None = None
    """States and queues know of every record below this position; None: below `position`. Only a
    repair sets it: with `position` -1, everything is built again from the log."""


# Made here, for msgspec must not look at a type for the first time in two threads together.
_points: Final = msgspec.msgpack.Decoder(DerivedPoint)


class DurablePoint:
    """The file `penstock/durable`, open for writing."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._file: Final = disk.open(path, create=True)
        self._sequence, self.position, self.store_timestamp_ms = read_durable(disk, path)

    def advance(self, position: int, store_timestamp_ms: int) -> None:
        """Say that the log is on the device up to `position`; the sync must have returned."""
        assert position >= self.position, "the durable point never moves back"
        self._write(position, store_timestamp_ms)

    def reset(self, position: int, store_timestamp_ms: int) -> None:
        """Set the point after recovery decided where the log ends, on the device."""
        self._write(position, store_timestamp_ms)
        self._write(position, store_timestamp_ms)
        self._file.sync()

    def _write(self, position: int, store_timestamp_ms: int) -> None:
        self._sequence += 1
        self.position = position
        self.store_timestamp_ms = store_timestamp_ms
        fields = (self._sequence, position, store_timestamp_ms)
        slot = bytearray(DURABLE_SLOT.pack(*fields, 0))
        checked_size = DURABLE_SLOT.position_of("checksum")
        DURABLE_SLOT.pack_into(slot, 0, *fields, zlib.crc32(slot[:checked_size]))
        self._file.write_at(self._sequence % 2 * _SLOT_DISTANCE, bytes(slot))

    def close(self) -> None:
        self._file.close()


def read_durable(disk: Disk, path: str) -> tuple[int, int, int]:
    """Return (sequence, position, store timestamp) of the newest valid slot; zeros without one."""
    if not disk.exists(path):
        return 0, 0, 0
    file = disk.open(path, writable=False)
    newest = (0, 0, 0)
    for slot in range(2):
        data = file.read_at(slot * _SLOT_DISTANCE, DURABLE_SLOT.size)
        if len(data) < DURABLE_SLOT.size:
            continue
        sequence, position, timestamp, checksum = DURABLE_SLOT.unpack(data)
        if zlib.crc32(data[: DURABLE_SLOT.position_of("checksum")]) == checksum:
            newest = max(newest, (sequence, position, timestamp))
    file.close()
    return newest


def damaged_slots(disk: Disk, path: str) -> list[int]:
    """Return the positions of slots that were written and are not what was written."""
    if not disk.exists(path):
        return []
    file = disk.open(path, writable=False)
    positions = []
    for slot in range(2):
        data = file.read_at(slot * _SLOT_DISTANCE, DURABLE_SLOT.size)
        if not data.strip(b"\0"):
            continue
        checksum = zlib.crc32(data[: DURABLE_SLOT.position_of("checksum")])
        if len(data) < DURABLE_SLOT.size or DURABLE_SLOT.unpack(data)[-1] != checksum:
            positions.append(slot * _SLOT_DISTANCE)
    file.close()
    return positions


def write_derived(disk: Disk, path: str, point: DerivedPoint) -> None:
    document = msgspec.msgpack.encode(point)
    disk.replace(path, CHECKPOINT_HEAD.pack(_MAGIC, zlib.crc32(document)) + document)


def read_derived(disk: Disk, path: str) -> DerivedPoint | None:
    """Return the derived point, or None when there is none that can be believed: everything is
    then rebuilt from the log."""
    if not disk.exists(path):
        return None
    file = disk.open(path, writable=False)
    data = file.read_at(0, file.size())
    file.close()
    if len(data) < CHECKPOINT_HEAD.size:
        return None
    magic, checksum = CHECKPOINT_HEAD.unpack_from(data)
    document = data[CHECKPOINT_HEAD.size :]
    if magic != _MAGIC or zlib.crc32(document) != checksum:
        return None
    try:
        return _points.decode(document)
    except msgspec.MsgspecError:
        return None


def known_until(point: DerivedPoint) -> int:
    """Return the position below which states and queues know of every record."""
    return point.position if point.known is None else point.known


def write_rocketmq(disk: Disk, path: str, *, durable: int, derived: int, timestamp_ms: int) -> None:
    """Write RocketMQ's checkpoint file: it recovers from the log position and times in it."""
    fields = CHECKPOINT.pack(timestamp_ms, timestamp_ms, timestamp_ms, durable, 0, derived)
    disk.replace(path, fields.ljust(ROCKETMQ_CHECKPOINT_SIZE, b"\0"), durable=False)


def read_rocketmq(disk: Disk, path: str) -> int:
    """Return masterFlushedOffset, or 0."""
    if not disk.exists(path):
        return 0
    file = disk.open(path, writable=False)
    data = file.read_at(0, CHECKPOINT.size)
    file.close()
    return int(CHECKPOINT.unpack(data)[3]) if len(data) == CHECKPOINT.size else 0
