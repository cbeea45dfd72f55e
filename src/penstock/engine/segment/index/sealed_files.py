"""Queue and index files that take no more entries, checked against their page checksums once.

A sealed file does not change any more, so what was checked stays checked, until a reader finds that
something is wrong and has everything looked at anew.
"""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Final

from penstock.engine.segment.index.block_checksums import PAGE_SIZE, BlockChecksums
from penstock.errors import CorruptionError
from penstock.platform.disk import Disk


class SealedFiles:
    def __init__(self, disk: Disk, sums: BlockChecksums) -> None:
        self._disk: Final = disk
        self._checksums: Final = sums
        self._lock: Final = threading.Lock()
        self._checked: set[str] = set()

    def check(self, relative_path: str, path: str) -> bool:
        """Return whether the file is sealed; raise when it, or its checksums, are damaged.

        `relative_path` is its name below `penstock/sums`.
        """
        with self._lock:
            if path in self._checked:
                return True
        sums = self._checksums.load(relative_path)
        if sums is None:
            return False
        with closing(self._disk.open(path, writable=False)) as file:
            page = next(sums.damaged_pages(file), None)
        if page is not None:
            raise CorruptionError(
                path, position=page * PAGE_SIZE, reason="page checksum does not match"
            )
        with self._lock:
            self._checked.add(path)
        return True

    def mark_sealed(self, path: str) -> None:
        """Say that the checksums of a file were made of what it holds now."""
        with self._lock:
            self._checked.add(path)

    def invalidate(self, path: str | None = None) -> None:
        """Check a file again when it is next used; without `path`, everything."""
        with self._lock:
            if path is None:
                self._checked.clear()
            else:
                self._checked.discard(path)
