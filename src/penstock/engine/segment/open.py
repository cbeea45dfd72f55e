"""Opening a store directory for writing: lock, sizes, recovery, and a first checkpoint.

Nothing is created or changed before the lock is held and the directory is known to be a store (or
empty), so that a wrong path or a second process does no harm.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from penstock.codec.select import core
from penstock.engine.segment.index.block_checksums import BlockChecksums
from penstock.engine.segment.index.key_index import KeyIndex
from penstock.engine.segment.index.sealed_files import SealedFiles
from penstock.engine.segment.log.commit_log import CommitLog
from penstock.engine.segment.log.disk_errors import opening_errors
from penstock.engine.segment.log.log_files import FileSet
from penstock.engine.segment.log.reserve import Reserve
from penstock.engine.segment.log.write_manager import WriteManager
from penstock.engine.segment.parts import StoreParts
from penstock.engine.segment.paths import StorePaths
from penstock.engine.segment.queue.queue_files import OpenFiles
from penstock.engine.segment.queue.shard_table import ShardTable
from penstock.engine.segment.recovery.checkpoint import (
    DurablePoint,
    read_derived,
    read_durable,
)
from penstock.engine.segment.recovery.checkpointer import Checkpointer
from penstock.engine.segment.recovery.directory_owners import (
    StoreLock,
    check_owners,
    check_unused,
    draw_store_id,
    mark_owned,
    outer_directories,
)
from penstock.engine.segment.recovery.opening import recover
from penstock.engine.segment.recovery.report import Progress, RecoveryReport
from penstock.engine.segment.recovery.store_sizes import (
    StoreProperties,
    agree,
    check_directory,
    fitted,
    keep_properties,
    stored_id,
    stored_properties,
)
from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.errors import DiskFullError
from penstock.platform.clock import Clock
from penstock.platform.disk import Disk, Lock
from penstock.platform.log import get_logger
from penstock.platform.metrics import SegmentMetrics

_log: Final = get_logger(__name__)


def open_parts(
    root: str,
    settings: SegmentSettings,
    *,
    disk: Disk,
    clock: Clock,
    metrics: SegmentMetrics,
    progress: Progress | None = None,
) -> StoreParts:
    """Lock and recover the store at `root`, creating it when the directory is empty."""
    settings.check()
    paths = StorePaths(root, settings)
    with opening_errors(paths.root):
        exists = check_directory(disk, paths)
        lock = lock_store(disk, paths, settings, exists=exists)
        try:
            reserve = Reserve(disk, paths.reserve)
            try:
                parts = _build_and_recover(
                    paths, settings, disk, clock, metrics, lock, progress, exists=exists
                )
            except (OSError, DiskFullError) as error:
                # Once open, the store can remove what is old.
                if not reserve.give_up_for(error):
                    raise
                parts = _build_and_recover(
                    paths, settings, disk, clock, metrics, lock, progress, exists=exists
                )
            else:
                reserve.keep(parts.sizes)
        except BaseException:
            lock.release()
            raise
    return parts


def _build_and_recover(
    paths: StorePaths,
    settings: SegmentSettings,
    disk: Disk,
    clock: Clock,
    metrics: SegmentMetrics,
    lock: Lock,
    progress: Progress | None,
    *,
    exists: bool,
) -> StoreParts:
    parts = _build(paths, settings, disk, clock, metrics, lock, exists=exists)
    try:
        recover(parts, progress)
    except BaseException:
        parts.release()
        if not exists and not parts.log.files.bases:
            # Nothing was stored: the next start chooses sizes again, by the room there is then.
            disk.remove(paths.properties)
            disk.remove(paths.properties_copy)
        raise
    return parts


def _build(
    paths: StorePaths,
    settings: SegmentSettings,
    disk: Disk,
    clock: Clock,
    metrics: SegmentMetrics,
    lock: Lock,
    *,
    exists: bool,
) -> StoreParts:
    stored = _properties(disk, paths, settings, exists=exists)
    if not stored.store_id and outer_directories(paths):
        stored = replace(stored, store_id=draw_store_id())
    sizes = stored.sizes
    files = _load_log(disk, paths, settings, sizes, strict=stored.strict, repair=True)
    for directory in (paths.commit_log, paths.index, paths.shards, paths.times, paths.sums):
        disk.make_directory(directory)
    keep_properties(disk, paths, stored)
    mark_owned(disk, paths, stored.store_id)
    record_size_max = min(settings.record_size_max, sizes.commit_log_file_size)
    appender = core.Appender(settings.store_host, settings.store_host, record_size_max)
    log = CommitLog(files, appender, DurablePoint(disk, paths.durable), settings, metrics)
    sums = BlockChecksums(disk, paths.sums)
    index = KeyIndex(disk, paths.index, sizes, sums)
    open_files = OpenFiles(disk, settings.open_files_max)
    table = ShardTable(log, paths, sizes, open_files, SealedFiles(disk, sums))
    return StoreParts(
        disk=disk,
        clock=clock,
        metrics=metrics,
        settings=settings,
        paths=paths,
        sizes=sizes,
        lock=lock,
        log=log,
        index=index,
        table=table,
        open_files=open_files,
        sums=sums,
        writer=WriteManager(log, table.handles, table.get, index, clock, metrics),
        checkpointer=Checkpointer(disk, paths, log, table, index, sums),
        report=RecoveryReport(damaged=[], rebuilt=["store.properties"] if stored.from_copy else []),
    )


def lock_store(
    disk: Disk, paths: StorePaths, settings: SegmentSettings, *, exists: bool, check: bool = True
) -> StoreLock:
    """Lock the store and its directories elsewhere, unless these are another store's, or not
    there: then nothing is made in them. Without `check`, a log that cannot be opened is locked,
    too."""
    check_owners(disk, paths, stored_id(disk, paths))
    if not exists:
        check_unused(disk, paths)
    disk.make_directory(paths.root)
    lock = StoreLock(disk, paths)
    try:
        if outer_directories(paths):
            if exists and check:
                check_log(disk, paths, settings)
            lock.add_outer(paths)
            check_owners(disk, paths, stored_id(disk, paths))
    except BaseException:
        lock.release()
        raise
    return lock


def _properties(
    disk: Disk, paths: StorePaths, settings: SegmentSettings, *, exists: bool
) -> StoreProperties:
    if not exists:
        sizes = (settings.sizes or FileSizes()).check()
        if settings.fit_sizes:
            disk.make_directory(paths.commit_log)
            sizes = fitted(disk, paths.commit_log, sizes)
        return StoreProperties(sizes, strict=True)
    stored = stored_properties(disk, paths)
    return replace(stored, sizes=agree(paths, stored.sizes, settings))


def _load_log(
    disk: Disk,
    paths: StorePaths,
    settings: SegmentSettings,
    sizes: FileSizes,
    *,
    strict: bool,
    repair: bool,
) -> FileSet:
    files = FileSet(
        disk,
        paths.commit_log,
        sizes.commit_log_file_size,
        settings.mapped_bytes_max,
        strict=strict,
    )
    point = read_derived(disk, paths.derived)
    synced = max(read_durable(disk, paths.durable)[1], 0 if point is None else point.position)
    files.load(repair=repair, synced=synced, store=paths.root)
    return files


def check_log(disk: Disk, paths: StorePaths, settings: SegmentSettings) -> None:
    """Raise what opening an existing store would raise about its sizes and the files of its log;
    nothing is changed."""
    sizes = agree(paths, stored_properties(disk, paths).sizes, settings)
    _load_log(disk, paths, settings, sizes, strict=False, repair=False)
