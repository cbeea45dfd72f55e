"""Parts of a tier on the local disk: bounded, emptied at each start, and never believed.

What comes from here is checked against the chunk's checksums like what comes from the tier; a part
that does not pass is thrown away and fetched again. A cache that cannot write (a full disk, no
permission) is as good as an empty one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections import OrderedDict
from typing import Final

from penstock.platform.local_disk import DIRECTORY_MODE, FILE_MODE
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)


class DiskCache:
    def __init__(self, directory: str, size_max: int) -> None:
        """`directory` is the cache's own: whatever is in it goes."""
        self._directory: Final = directory
        self._size_max: Final = size_max
        self._lock: Final = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._failed = False
        self.size = 0
        self.hits = 0
        shutil.rmtree(directory, ignore_errors=True)

    def get(self, key: str, start: int, size: int) -> bytes | None:
        """Return bytes that were put, as the disk has them; None when there are none."""
        name = _name(key, start, size)
        with self._lock:
            if name not in self._sizes:
                return None
            self._sizes.move_to_end(name)
        try:
            with open(self._path(name), "rb") as file:
                data = file.read()
        except OSError:
            self.forget(key, start, size)
            return None
        if len(data) != size:
            self.forget(key, start, size)
            return None
        self.hits += 1
        return data

    def put(self, key: str, start: int, data: bytes) -> None:
        if len(data) > self._size_max:
            return
        name = _name(key, start, len(data))
        path = self._path(name)
        try:
            os.makedirs(self._directory, DIRECTORY_MODE, exist_ok=True)
            with open(f"{path}.part", "wb", opener=_open_private) as file:
                file.write(data)
            os.replace(f"{path}.part", path)
        except OSError as error:
            if not self._failed:
                _log.warning("tier_cache_failed", directory=self._directory, reason=str(error))
            self._failed = True
            return
        with self._lock:
            self.size += len(data) - self._sizes.get(name, 0)
            self._sizes[name] = len(data)
            gone = self._evict()
        for each in gone:
            self._remove(each)

    def _evict(self) -> list[str]:
        gone: list[str] = []
        while self.size > self._size_max:
            name, size = self._sizes.popitem(last=False)
            self.size -= size
            gone.append(name)
        return gone

    def forget(self, key: str, start: int, size: int) -> None:
        """Throw away what was put: it is damaged, or gone."""
        name = _name(key, start, size)
        with self._lock:
            self.size -= self._sizes.pop(name, 0)
        self._remove(name)

    def _remove(self, name: str) -> None:
        try:
            os.unlink(self._path(name))
        except OSError:
            return  # it is gone, or goes with the next start

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def close(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


def _name(key: str, start: int, size: int) -> str:
    return hashlib.sha256(f"{key}:{start}:{size}".encode()).hexdigest()


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)
