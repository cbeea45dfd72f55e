"""Stores how much of a RocksDB is on the device, to distinguish damage from a torn tail.

RocksDB takes any damage in its write-ahead log for the torn end of it and silently drops what
follows. The number of the last synced change is stored in a file next to the log: a database that
opens with fewer changes has lost some that were on the device, and does not start.

The file is replaced after a sync, at most once a second. Its number is never too high.
"""

from __future__ import annotations

import zlib
from typing import Final

from penstock.errors import CorruptionError
from penstock.platform.clock import Clock
from penstock.platform.disk import Disk
from penstock.platform.layout import Field, Layout
from penstock.platform.log import get_logger

DURABLE_POINT: Final = Layout(
    "durable point",
    Field("sequence", "u64", "RocksDB's number of the last change that was synced"),
    Field("checksum", "u32", "CRC-32 of the bytes before"),
    size=12,
)

_FILE: Final = "DURABLE"
_INTERVAL_SECONDS: Final = 1.0
_log = get_logger(__name__)


class DurablePoint:
    def __init__(self, disk: Disk, directory: str, clock: Clock) -> None:
        self._disk: Final = disk
        self._path: Final = f"{directory}/{_FILE}"
        self._clock: Final = clock
        self._written = self._read()
        self._known = self._written
        self._next = 0.0

    def check(self, sequence: int) -> None:
        """Raise when a database whose last change is `sequence` has lost synced ones."""
        if sequence < self._written:
            raise CorruptionError(
                self._path,
                position=0,
                reason=f"the write-ahead log is damaged: {self._written - sequence} changes that "
                "were on the device are gone",
            )

    def move(self, sequence: int) -> None:
        """Note that everything up to `sequence` is on the device."""
        self._known = max(self._known, sequence)
        if self._clock.monotonic() >= self._next:
            self.write()

    def write(self) -> None:
        """Put what is known into the file now."""
        self._next = self._clock.monotonic() + _INTERVAL_SECONDS
        if self._known <= self._written:
            return
        head = self._known.to_bytes(8, "big")
        data = DURABLE_POINT.pack(self._known, zlib.crc32(head))
        try:
            # A power cut may bring an older one back, which only makes the check weaker.
            self._disk.replace(self._path, data, durable=False)
        except OSError as error:
            # The changes are safe; only the check of a later start is weaker.
            _log.warning("durable_point_not_written", path=self._path, reason=str(error))
            return
        self._written = self._known

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
        # Torn by a power cut: there is nothing to compare with.
        _log.warning("durable_point_unreadable", path=self._path)
        return 0
