"""Index files mapped for look-ups: those being filled, and sealed ones while they are used.

A sealed file does not change any more. Before it is first looked into since the store was opened,
all of it is compared with its page checksums; when it is mapped again later, it is not, because
that takes a thousand times as long as a look-up. So damage that is there at the opening is found
before it can hide anything. Of a page that goes bad on the device afterwards, entries may be hidden
until the next opening, or until `penstock store verify`; a wrong answer it cannot give, because an
entry counts only if its record has the key and the queue points back to the record.
"""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Final

from penstock.engine.segment.index.sealed_files import SealedFiles
from penstock.errors import ClosedError, CorruptionError
from penstock.platform.disk import Disk, Mapping

_BYTES_MAX: Final = 64 << 30
"""Of address space; pages that are not read take no memory."""
_FILES_MAX: Final = 128
"""Each takes a descriptor."""


class IndexMappings:
    """Hands out the bytes of index files. A reader that holds a view keeps its file mapped."""

    def __init__(self, disk: Disk, directory: str, file_size: int, sealed: SealedFiles) -> None:
        self._disk: Final = disk
        self._directory: Final = directory
        self._file_size: Final = file_size
        self._sealed: Final = sealed
        self._mapped_max: Final = max(1, min(_FILES_MAX, _BYTES_MAX // file_size))
        self._mapped: dict[str, Mapping] = {}
        self._filled: set[str] = set()
        """Those that are being filled: they stay mapped."""
        self._used: set[str] = set()
        """Asked for since `unmap_idle` last looked."""
        self._closed = False
        self._lock: Final = threading.Lock()

    @property
    def names(self) -> list[str]:
        """The files that are mapped now."""
        return list(self._mapped)

    def buffer(self, name: str) -> memoryview:
        """Return a whole file; the view must be dropped when done with it. A file that is damaged,
        or was not sealed, raises `CorruptionError`, one that is gone `FileNotFoundError`."""
        mapping = self._mapped.get(name)
        if mapping is not None:
            self._used.add(name)
            try:
                return mapping.buffer
            except ValueError:
                pass  # unmapped at this moment
        with self._lock:
            self._used.add(name)
            mapping = self._mapped.get(name)
            return (self._map(name) if mapping is None else mapping).buffer

    def _map(self, name: str) -> Mapping:
        path = f"{self._directory}/{name}"
        if self._closed:
            raise ClosedError(f"the index {self._directory} was closed")
        if not self._sealed.check(f"index/{name}", path):
            raise CorruptionError(path, position=0, reason="it has no checksums")
        with closing(self._disk.open(path, writable=False)) as file:
            size = file.size()
            if size != self._file_size:
                raise CorruptionError(
                    path, position=size, reason=f"it has {size} bytes, not {self._file_size}"
                )
            mapping = file.map(writable=False)
        self._unmap_beyond(self._mapped_max - 1)
        self._mapped[name] = mapping
        return mapping

    def _unmap_beyond(self, count: int) -> None:
        excess = len(self._mapped) - len(self._filled) - count
        if excess <= 0:
            return
        names = [name for name in self._mapped if name not in self._filled]
        idle = [name for name in names if name not in self._used]
        # Else those that were mapped last: a look-up goes through the files always in the same
        # order, and would find none of the others when it comes by again.
        busy = [name for name in reversed(names) if name in self._used]
        for name in (*idle, *busy):
            excess -= self._unmap(name)
            if not excess:
                return

    def _unmap(self, name: str) -> bool:
        if not self._mapped[name].release():
            return False
        del self._mapped[name]
        return True

    def keep_filled(self, name: str, mapping: Mapping) -> None:
        """Have a file that is being filled: it stays mapped until it is sealed or dropped."""
        with self._lock:
            self._filled.add(name)
            self._mapped[name] = mapping

    def mark_sealed(self, name: str) -> None:
        """Say that a file is full, and has its checksums now."""
        with self._lock:
            self._filled.discard(name)
            if name in self._mapped and name not in self._used:
                self._unmap(name)  # a look-up maps it again
            self._unmap_beyond(self._mapped_max)

    def drop(self, name: str) -> None:
        """Release a file that is no longer part of the index. Where a reader still uses
        it, the mapping, which has no other descriptor than its own, goes with the last view."""
        with self._lock:
            self._filled.discard(name)
            self._used.discard(name)
            self._sealed.invalidate(f"{self._directory}/{name}")
            mapping = self._mapped.pop(name, None)
            if mapping is not None:
                mapping.release()

    def unmap_all(self) -> None:
        """Unmap every sealed file that no look-up holds a view of, to free descriptors."""
        with self._lock:
            self._unmap_beyond(0)

    def unmap_idle(self) -> None:
        """Unmap the sealed files that were not used since the last call and have no views."""
        with self._lock:
            kept = self._used | self._filled
            self._used.clear()
            for name in [name for name in self._mapped if name not in kept]:
                self._unmap(name)

    def close(self) -> None:
        """Release all files, as `drop` does."""
        with self._lock:
            self._closed = True
            for mapping in self._mapped.values():
                mapping.release()
            self._mapped.clear()
