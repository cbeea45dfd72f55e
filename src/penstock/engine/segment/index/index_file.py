"""One index file that is being filled, and how far it was filled at a checkpoint."""

from __future__ import annotations

import zlib

from msgspec import Struct

from penstock.codec.format import INDEX_ENTRY, INDEX_HEADER
from penstock.engine.segment.settings import FileSizes
from penstock.platform.disk import Disk, File, Mapping


class IndexMark(Struct, frozen=True):
    """How far the newest index file was filled when a checkpoint was taken."""

    name: str
    header: bytes
    entries_crc: int
    slots_crc: int | None = None
    """Kept when the store is closed: slots that pass it need not be rebuilt."""
    older: tuple[tuple[str, int], ...] = ()
    """The sealed files before it, each with a position after which it has no record."""

    def covers(self, data: bytes, sizes: FileSizes) -> bool:
        """Say whether the bytes of the newest file hold the entries that there were."""
        start = INDEX_HEADER.size + 4 * sizes.index_slots + INDEX_ENTRY.size
        stop = start + INDEX_ENTRY.size * (max(1, int(INDEX_HEADER.unpack(self.header)[-1])) - 1)
        return zlib.crc32(data[start:stop]) == self.entries_crc

    complete: bool = True
    """False when damage was found that is not mended yet."""


class IndexFile:
    """A file that is being filled."""

    __slots__ = ("file", "mapping", "name", "prefaulted")

    def __init__(self, disk: Disk, directory: str, name: str) -> None:
        self.name = name
        self.prefaulted = 0
        """Up to here the pages were faulted in; 0 in a new file."""
        self.file: File = disk.open(f"{directory}/{name}")
        try:
            self.mapping: Mapping = self.file.map(writable=True)
        except OSError:
            self.file.close()
            raise

    def sync(self) -> None:
        self.mapping.drop_pages(0, len(self.mapping.buffer))
        self.file.sync()

    def release(self) -> None:
        """Close and unmap it: it has no views yet."""
        self.mapping.release()
        self.file.close()

    @property
    def header(self) -> bytes:
        return bytes(self.mapping.buffer[: INDEX_HEADER.size])

    @property
    def count(self) -> int:
        """The number that the next entry gets; entries are counted from 1."""
        return max(1, int(INDEX_HEADER.unpack_from(self.mapping.buffer)[-1]))
