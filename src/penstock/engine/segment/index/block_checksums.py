"""Block checksums of sealed derived files: queue and index files that are complete.

    consumequeue/orders/0/00000000000000000000                    the file, in RocketMQ's form
    penstock/sums/consumequeue/orders/0/00000000000000000000      its sums, CRC-32 of every page

RocketMQ's queue and index files have no checksums of their own, and a flipped bit in one would
send a reader to a wrong record or to none. A reader checks the pages that it read.

Pages of zeros at the end are not stored: index files are sparse and large, their sums small. The
sums of a damaged sums file are not computed anew over bytes that may be damaged: the file
that they belong to is rebuilt from the log.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Iterator, Mapping
from typing import Final, Self

from penstock.engine.segment.recovery.checksummed_file import Kind, frame, read_whole, unframe
from penstock.errors import CorruptionError
from penstock.platform.disk import Disk, File
from penstock.platform.layout import Field, Layout

PAGE_SIZE: Final = 4096

PAGE_SUMS: Final = Kind(b"PSTKSUMS", 1)

SUMS_HEAD: Final = Layout(
    "page sums head",
    Field("page_size", "u32", "4096"),
    Field("file_size", "u64", "bytes of the file whose pages these are"),
    size=12,
)
PAGE_SUM: Final = Layout(
    "page sum",
    Field("checksum", "u32", "CRC-32 of the page; pages beyond the last one here are zeros"),
    size=4,
)

_CHUNK_SIZE: Final = 256 * PAGE_SIZE
_ZEROS: Final = bytes(_CHUNK_SIZE)


def compute(file: File) -> bytes:
    """Return the sums file of a sealed file."""
    sums = array("I")
    zero_pages = 0
    size = file.size()
    for position in range(0, size, _CHUNK_SIZE):
        chunk = memoryview(_read(file, position, min(_CHUNK_SIZE, size - position)))
        if chunk == _ZEROS[: len(chunk)]:
            zero_pages += _page_count(len(chunk))
            continue
        for start in range(0, len(chunk), PAGE_SIZE):
            page = chunk[start : start + PAGE_SIZE]
            if page == _ZEROS[: len(page)]:
                zero_pages += 1
                continue
            sums.extend([_ZERO_SUM] * zero_pages)
            zero_pages = 0
            sums.append(zlib.crc32(page))
    head = SUMS_HEAD.pack(PAGE_SIZE, size)
    return frame(PAGE_SUMS, len(sums), head + _big_endian(sums).tobytes())


class Checksums:
    """The page checksums of one file."""

    __slots__ = ("_checksums", "file_size")

    def __init__(self, file_size: int, sums: array[int]) -> None:
        self.file_size = file_size
        self._checksums = sums

    @property
    def page_count(self) -> int:
        return _page_count(self.file_size)

    def page_size(self, page_number: int) -> int:
        """Return how many bytes a page has: fewer than PAGE_SIZE only at the end of the file."""
        return max(0, min(PAGE_SIZE, self.file_size - page_number * PAGE_SIZE))

    def verify(self, page_number: int, page: bytes | memoryview) -> bool:
        """Return whether `page`, whole, is what was sealed."""
        if page_number < 0 or len(page) != self.page_size(page_number) or not page:
            return False
        if page_number < len(self._checksums):
            return zlib.crc32(page) == self._checksums[page_number]
        return page == _ZEROS[: len(page)]

    def damaged_pages(self, file: File) -> Iterator[int]:
        """Yield the numbers of pages of `file` that are not what was sealed, ascending."""
        for position in range(0, self.file_size, _CHUNK_SIZE):
            chunk = memoryview(file.read_at(position, _CHUNK_SIZE))
            first = position // PAGE_SIZE
            for number in range(first, min(first + _CHUNK_SIZE // PAGE_SIZE, self.page_count)):
                start = number * PAGE_SIZE - position
                page = chunk[start : start + self.page_size(number)]
                if not self.verify(number, page):
                    yield number
        if file.size() > self.file_size:
            yield self.page_count

    @classmethod
    def from_bytes(cls, path: str, data: bytes) -> Self:
        """Read a sums file; raise CorruptionError when it is damaged."""
        count, body = unframe(PAGE_SUMS, path, data)
        if len(body) != SUMS_HEAD.size + PAGE_SUM.size * count:
            raise CorruptionError(path, position=0, reason="the sums do not add up")
        page_size, file_size = SUMS_HEAD.unpack_from(body)
        if page_size != PAGE_SIZE or count > _page_count(file_size):
            raise CorruptionError(path, position=0, reason="the sums are of no such file")
        return cls(file_size, _big_endian(array("I", bytes(body[SUMS_HEAD.size :]))))


class BlockChecksums:
    """The sums files under one directory, by the path of their file relative to the store."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk: Final = disk
        self._directory: Final = directory

    def path_of(self, relative_path: str) -> str:
        return f"{self._directory}/{relative_path}"

    def seal(self, relative_path: str, file: File, *, durable: bool = True) -> None:
        """Compute and keep the sums of a file that will not change any more."""
        self._disk.replace(self.path_of(relative_path), compute(file), durable=durable)

    def seal_together(self, files: Mapping[str, File]) -> None:
        """Do the same for several files, whose syncs wait for the device together."""
        self._disk.replace_together(
            [(self.path_of(relative), compute(file)) for relative, file in files.items()]
        )

    def load(self, relative_path: str) -> Checksums | None:
        """Return the sums of a file, or None when it was not sealed; raise CorruptionError when
        the sums themselves are damaged."""
        path = self.path_of(relative_path)
        data = read_whole(self._disk, path)
        return None if data is None else Checksums.from_bytes(path, data)

    def remove(self, relative_path: str) -> None:
        """Forget the sums of a file that goes, or that is written again."""
        self._disk.remove(self.path_of(relative_path))

    def remove_all(self, relative_directory: str) -> None:
        """Forget the sums of all files below a directory."""
        self._disk.remove_tree(self.path_of(relative_directory))


def _big_endian(sums: array[int]) -> array[int]:
    """Turn the machine's byte order into the file's, or back."""
    assert sums.itemsize == PAGE_SUM.size
    if sys.byteorder == "little":
        sums.byteswap()
    return sums


def _page_count(size: int) -> int:
    return -(-size // PAGE_SIZE)


def _read(file: File, position: int, size: int) -> bytes:
    data = file.read_at(position, size)
    if len(data) != size:
        raise CorruptionError(file.path, position=position + len(data), reason="cut short")
    return data


_ZERO_SUM: Final = zlib.crc32(bytes(PAGE_SIZE))
