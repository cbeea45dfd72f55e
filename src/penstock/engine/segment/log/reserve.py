"""A preallocated file, released when the disk is full so that deletes can proceed.

To remove old records, a store first has to write down that they are gone: a checkpoint. On a disk
without a free byte that fails, and nothing would ever be freed again. So a file of zeros is kept,
allocated; it goes when a checkpoint, or opening the store, finds no room, and comes back when there
is some.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

from penstock.engine.segment.log.disk_errors import is_full
from penstock.engine.segment.settings import MIB, FileSizes
from penstock.errors import DiskFullError
from penstock.platform.disk import Disk
from penstock.platform.log import get_logger

RESERVE_SIZE_MAX: Final = 4 * MIB
"""Enough for the states of some ten thousand shards."""

_log: Final = get_logger(__name__)


class Reserve:
    def __init__(self, disk: Disk, path: str) -> None:
        self._disk: Final = disk
        self._path: Final = path

    def keep(self, sizes: FileSizes) -> None:
        """Have the file, if the disk has room for it: as large as one of the log's, or less."""
        if self._disk.exists(self._path):
            return
        try:
            with closing(self._disk.open(self._path, create=True)) as file:
                file.allocate(min(RESERVE_SIZE_MAX, sizes.commit_log_file_size))
        except OSError as error:
            self._disk.remove(self._path)
            if not is_full(error):
                raise

    def give_up_for(self, error: OSError | DiskFullError) -> bool:
        """Let the file go if `error` says that the disk is full; return whether there was one, so
        that what failed should be tried again."""
        if isinstance(error, OSError) and not is_full(error):
            return False
        if not self._disk.exists(self._path):
            return False
        self._disk.remove(self._path)
        _log.warning("disk_reserve_used", path=self._path)
        return True
