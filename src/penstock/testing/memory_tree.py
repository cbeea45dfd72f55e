"""Files and directories in memory that know what of them is on the device.

Every file has two images, as programs see it and as the device holds it; every directory has two
lists of entries likewise. `sync` makes them equal, a power cut mixes them.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterator
from typing import Final

_RUN_PAGES: Final = 64


class MemoryFile:
    """The bytes of a file.

    `data` may be longer than the file: bytes after `size` are zeros kept from a larger past,
    because a buffer that is mapped cannot be made shorter.
    """

    def __init__(self, page_size: int, now_ms: int) -> None:
        self._page_size: Final = page_size
        self.data = bytearray()
        self.size = 0
        self.modified_ms = now_ms
        self._synced = bytearray()
        self._synced_size = 0
        self._blocks: set[int] = set()
        # Pages whose sync failed, as they were then: the kernel takes them for clean, and a later
        # sync that succeeds does not write them.
        self._given_up: dict[int, bytes] = {}

    @property
    def blocks(self) -> int:
        """How many pages of the device the file takes; holes take none."""
        return len(self._blocks)

    def blocks_missing(self, position: int, size: int) -> list[int]:
        """Return the pages that a write would have to allocate, in order."""
        if size == 0:
            return []
        pages = range(position // self._page_size, (position + size - 1) // self._page_size + 1)
        return [page for page in pages if page not in self._blocks]

    def resize(self, size: int) -> None:
        """Cut the file, or grow it by a hole."""
        if size > len(self.data):
            try:
                self.data.extend(bytes(size - len(self.data)))
            except BufferError:
                raise AssertionError("a mapped file of the faulty disk cannot grow") from None
        elif size < self.size:
            self.data[size : self.size] = bytes(self.size - size)
            first_free = -(-size // self._page_size)
            self._blocks = {page for page in self._blocks if page < first_free}
        self.size = size

    def allocate(self, position: int, size: int) -> None:
        """Take pages of the device for a range; the file grows to hold it."""
        self._blocks.update(self.blocks_missing(position, size))
        if position + size > self.size:
            self.resize(position + size)

    def write(self, position: int, data: bytes | memoryview) -> None:
        self.allocate(position, len(data))
        self.data[position : position + len(data)] = data

    def written_ranges(self, start: int) -> list[tuple[int, int]]:
        """Return the runs of pages from `start` on that hold anything but zeros."""
        ranges: list[tuple[int, int]] = []
        while start < self.size:
            end = min(start - start % self._page_size + self._page_size, self.size)
            if any(self.data[start:end]):
                begin = ranges.pop()[0] if ranges and ranges[-1][1] == start else start
                ranges.append((begin, end))
            start = end
        return ranges

    def dirty_pages(self) -> list[int]:
        """Return the pages whose two images differ."""
        pages: list[int] = []
        end = max(self.size, self._synced_size)
        # Most of a file is clean: runs of pages are compared in one step.
        run_size = _RUN_PAGES * self._page_size
        for start in range(0, end, run_size):
            until = min(start + run_size, end)
            if until > self._synced_size or self.data[start:until] != self._synced[start:until]:
                run = range(start // self._page_size, -(-until // self._page_size))
                pages += [page for page in run if self._page(page) != self._synced_page(page)]
        return pages

    def holes_stored(self) -> int:
        """Count the pages that hold data and have no block: stores into a hole by a mapping."""
        return sum(page not in self._blocks for page in self.dirty_pages())

    def sync(self) -> bool:
        """Put everything on the device; return whether there was anything to put."""
        dirty = self.dirty_pages()
        changed = bool(dirty) or self.size != self._synced_size
        lost = {page for page, then in self._given_up.items() if self._page(page) == then}
        self._given_up = {page: self._given_up[page] for page in lost}
        del self._synced[self.size :]
        self._synced.extend(bytes(self.size - len(self._synced)))
        self._synced_size = self.size
        for page in dirty:
            if page not in lost:
                self._put_synced_page(page, self._page(page))
        end = -(-self.size // self._page_size)
        self._blocks.update(page for page in dirty if page < end)
        return changed

    def sync_failed(self) -> None:
        """Do what a kernel does after a failed sync: forget that the pages are dirty."""
        self._given_up |= {page: self._page(page) for page in self.dirty_pages()}

    def detach(self) -> None:
        """Leave the mapped buffer to those who still hold it; they no longer reach the file."""
        self.data = self._current()

    def lose_power(self, choose: random.Random, survival: float) -> None:
        """Keep of every page one of its two images, and one of the two sizes or one between."""
        low, high = sorted((self._synced_size, self.size))
        size = choose.choice((self._synced_size, self.size, choose.randint(low, high)))
        image = bytearray(high)
        image[: self._synced_size] = self._synced
        for page in self.dirty_pages():
            start = page * self._page_size
            # A cut that did not survive brings its pages back as they were, never as zeros.
            if start < self.size and choose.random() < survival:
                current = self._page(page)
                image[start : start + self._page_size] = current[: len(image) - start]
        del image[size:]
        self._restart_with(image)

    def flip_bit(self, bit_index: int) -> None:
        """Damage one bit in both images: rot, which no power cut undoes."""
        position, mask = bit_index // 8, 1 << bit_index % 8
        assert position < self.size, f"the file has {self.size} bytes"
        self.data[position] ^= mask
        if position < self._synced_size:
            self._synced[position] ^= mask

    def copy(self) -> MemoryFile:
        """Return a file with these bytes, all of them on the device."""
        other = MemoryFile(self._page_size, self.modified_ms)
        other._blocks = set(self._blocks)
        other._restart_with(self._current())
        return other

    def _restart_with(self, image: bytearray) -> None:
        self.data = image
        self.size = len(image)
        self._set_synced(bytearray(image))
        self._given_up.clear()
        end = -(-self.size // self._page_size)
        self._blocks = {page for page in self._blocks if page < end}

    def _current(self) -> bytearray:
        return self.data[: self.size]

    def _set_synced(self, image: bytearray) -> None:
        self._synced = image
        self._synced_size = len(image)

    def _page(self, page: int) -> bytes:
        return self._page_of(self.data, page)

    def _synced_page(self, page: int) -> bytes:
        return self._page_of(self._synced, page)

    def _page_of(self, image: bytearray, page: int) -> bytes:
        start = page * self._page_size
        return bytes(image[start : start + self._page_size]).ljust(self._page_size, b"\0")

    def _put_synced_page(self, page: int, content: bytes) -> None:
        start = page * self._page_size
        until = min(start + self._page_size, self._synced_size)
        if start < until:
            self._synced[start:until] = content[: until - start]


class MemoryDirectory:
    """The entries of a directory."""

    def __init__(self) -> None:
        self.entries: dict[str, MemoryFile | MemoryDirectory] = {}
        self._synced: dict[str, MemoryFile | MemoryDirectory] = {}

    def sync(self) -> None:
        self._synced = dict(self.entries)

    def files(self) -> Iterator[tuple[str, MemoryFile]]:
        """Walk all files below, with their paths from here."""
        for name, entry in sorted(self.entries.items()):
            if isinstance(entry, MemoryFile):
                yield name, entry
            else:
                yield from ((f"{name}/{below}", file) for below, file in entry.files())

    def clear(self) -> None:
        """Remove everything below, entry by entry."""
        for entry in self.entries.values():
            if isinstance(entry, MemoryDirectory):
                entry.clear()
        self.entries.clear()

    def lose_power(self, choose: random.Random, survival: float) -> None:
        """Keep of every entry what programs saw or what the device holds."""
        for name in sorted(self.entries.keys() | self._synced.keys()):
            seen, held = self.entries.get(name), self._synced.get(name)
            kept = seen if seen is held or choose.random() < survival else held
            if kept is None:
                self.entries.pop(name, None)
                continue
            self.entries[name] = kept
            kept.lose_power(choose, survival)
        self.sync()

    def copy(self) -> MemoryDirectory:
        other = MemoryDirectory()
        other.entries = {name: entry.copy() for name, entry in self.entries.items()}
        other.sync()
        return other


class MemoryMapping:
    """A view of a whole file; what is stored into it is stored into the file."""

    def __init__(self, file: MemoryFile, *, writable: bool) -> None:
        self._writable: Final = writable
        # An object of its own, so that its reference count tells whether a reader holds a view.
        kind = ctypes.c_ubyte * file.size
        self._window: ctypes.Array[ctypes.c_ubyte] | None = kind.from_buffer(file.data)
        self._size: Final = file.size

    @property
    def buffer(self) -> memoryview:
        if self._window is None:
            raise ValueError("the mapping was released")
        # A view of no bytes cannot be cast.
        view = memoryview(self._window).cast("B") if self._size else memoryview(bytearray())
        return view if self._writable else view.toreadonly()

    def drop_pages(self, start: int, end: int) -> None:
        """There are no pages here."""

    def set_readahead(self, start: int, end: int, *, enabled: bool) -> None:
        """Nor is there a device to read from."""

    def release(self) -> bool:
        # One reference is ours, one is the argument of getrefcount.
        if self._window is not None and sys.getrefcount(self._window) > 2:
            return False
        self._window = None
        return True
