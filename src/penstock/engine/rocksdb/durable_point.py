"""Remembers up to which change a database is on the device.

RocksDB takes any damage in its write-ahead log for the torn end of it, and silently drops what
follows. The number of the last synced change, kept in a file beside the log, tells a torn tail from
damage: a database that comes back with fewer changes has lost some that were on the device.

The file is replaced after a sync, at most once in a while. It may be behind, it is never ahead.
"""

from __future__ import annotations

import zlib
from typing import Final

from penstock.disk import Disk
from penstock.errors import CorruptionError
from penstock.layout import Field, Layout
from penstock.log import get_logger

DURABLE_POINT: Final = Layout(
    "RocksDB durable point",
    Field("sequence", "u64", "RocksDB's number of the last change that was synced"),
    Field("checksum", "u32", "CRC-32 of the bytes before"),
    size=12,
)

_log = get_logger(__name__)


class DurablePoint:
    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk: Final = disk
        self._path: Final = f"{directory}/DURABLE"
        self._sequence = self._read()

    def check(self, sequence: int) -> None:
        """Raise when a database whose last change is `sequence` has lost synced ones."""
        if sequence < self._sequence:
            lost = self._sequence - sequence
            raise CorruptionError(
                self._path,
                position=0,
                reason=f"the write-ahead log is damaged: {lost} changes that were synced are gone",
            )

    def move(self, sequence: int) -> None:
        """Note that everything up to `sequence` is on the device."""
        if sequence > self._sequence:
            head = sequence.to_bytes(8, "big")
            data = DURABLE_POINT.pack(sequence, zlib.crc32(head))
            # Losing the newest one in a power cut costs nothing but the check of the last moments.
            self._disk.replace(self._path, data, durable=False)
            self._sequence = sequence

    def _read(self) -> int:
        if not self._disk.exists(self._path):
            return 0
        file = self._disk.open(self._path, writable=False)
        try:
            data = file.read_at(0, DURABLE_POINT.size)
        finally:
            file.close()
        if len(data) == DURABLE_POINT.size:
            sequence, checksum = DURABLE_POINT.unpack(data)
            if checksum == zlib.crc32(data[:8]):
                return int(sequence)
        _log.warning("durable_point_unreadable", path=self._path)
        return 0
