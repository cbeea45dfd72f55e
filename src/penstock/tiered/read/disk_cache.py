"""Parts of a tier on the local disk: bounded, emptied at each start, and never trusted.

The fetcher checks what comes from here against the chunk's checksums, as it does with what comes
from the tier; it drops a part that fails and fetches it again. A cache that cannot write (a full
disk, no permission) behaves like an empty one.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from contextlib import closing, suppress
from typing import Final

from penstock.platform.disk import Disk
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)


class DiskCache:
    def __init__(self, directory: str, size_max: int, disk: Disk) -> None:
        """`directory` belongs to the cache, which deletes all files in it."""
        self._directory: Final = directory
        self._size_max: Final = size_max
        self._disk: Final = disk
        self._lock: Final = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._failed = False
        self.size = 0
        self.hits = 0
        self.close()

    def get(self, key: str, start: int, size: int) -> bytes | None:
        """Return bytes that were put, as the disk has them; None when there are none."""
        name = _name(key, start, size)
        with self._lock:
            if name not in self._sizes:
                return None
            self._sizes.move_to_end(name)
        try:
            with closing(self._disk.open(self._path(name), writable=False)) as file:
                data = file.read_at(0, size + 1)
        except OSError:
            self.drop(key, start, size)
            return None
        if len(data) != size:
            self.drop(key, start, size)
            return None
        self.hits += 1
        return data

    def put(self, key: str, start: int, data: bytes) -> None:
        if len(data) > self._size_max:
            return
        name = _name(key, start, len(data))
        try:
            self._disk.make_directory(self._directory, durable=False)
            self._disk.replace(self._path(name), data, durable=False)
        except OSError as error:
            if not self._failed:
                _log.warning("tier_cache_failed", directory=self._directory, reason=str(error))
            self._failed = True
            return
        with self._lock:
            self.size += len(data) - self._sizes.get(name, 0)
            self._sizes[name] = len(data)
            evicted = self._evict()
        for victim in evicted:
            self._remove(victim)

    def _evict(self) -> list[str]:
        evicted: list[str] = []
        while self.size > self._size_max:
            name, size = self._sizes.popitem(last=False)
            self.size -= size
            evicted.append(name)
        return evicted

    def drop(self, key: str, start: int, size: int) -> None:
        """Remove a part that is damaged or missing."""
        name = _name(key, start, size)
        with self._lock:
            self.size -= self._sizes.pop(name, 0)
        self._remove(name)

    def _remove(self, name: str) -> None:
        with suppress(OSError):  # the next start removes it
            self._disk.remove(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def close(self) -> None:
        with suppress(OSError):  # files that are not in `_sizes` are never read
            self._disk.remove_tree(self._directory)


def _name(key: str, start: int, size: int) -> str:
    return hashlib.sha256(f"{key}:{start}:{size}".encode()).hexdigest()
