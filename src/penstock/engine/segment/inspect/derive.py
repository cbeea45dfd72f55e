"""Builds everything derived anew from the commit log: queues, key index, times, checksums.

What the log alone cannot say (deleted ranges, truncations, offsets of removed records) is kept; it
is folded again from the log where its files are damaged.
"""

from __future__ import annotations

from penstock.engine.segment.log.disk_errors import opening_errors
from penstock.engine.segment.open import check_log, lock_store
from penstock.engine.segment.paths import StorePaths, is_index_name
from penstock.engine.segment.recovery.report import Progress, RecoveryReport
from penstock.engine.segment.recovery.store_sizes import check_is_store
from penstock.engine.segment.settings import SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.disk import Disk
from penstock.platform.local_disk import LocalDisk


def rebuild(
    path: str,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
    settings: SegmentSettings | None = None,
    progress: Progress | None = None,
) -> RecoveryReport:
    """Rebuild the derived files of the store in a directory, ours or RocketMQ's; return what was
    found and done. Raises `LockedError` while another process has the store open."""
    disk = disk or LocalDisk()
    settings = settings or SegmentSettings(background=False)
    paths = StorePaths(path, settings)
    with opening_errors(paths.root):
        check_is_store(disk, paths)
        _remove_derived(disk, paths, settings)
    with SegmentStore.open(
        path, settings, disk=disk, clock=clock or SystemClock(), progress=progress
    ) as store:
        return store.report


def _remove_derived(disk: Disk, paths: StorePaths, settings: SegmentSettings) -> None:
    """Remove the checkpoint first: without it, whatever happens next, opening the store builds
    everything anew from the log. Of a log that cannot be opened nothing can be built: then all
    stays."""
    lock = lock_store(disk, paths, settings, exists=True)
    try:
        check_log(disk, paths, settings)
        if disk.exists(paths.derived):
            disk.remove(paths.derived)
            disk.sync_directory(paths.own)
        for name in disk.list(paths.index):
            if is_index_name(name):
                disk.remove(f"{paths.index}/{name}")
        disk.remove_tree(f"{paths.sums}/index")
    finally:
        lock.release()
