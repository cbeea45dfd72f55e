"""Opening a store directory for writing: lock, sizes, recovery, and a first checkpoint.

Nothing is created or changed before the lock is held and the directory is known to be a store (or
empty), so that a wrong path or a second process does no harm.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.clock import Clock
from penstock.disk import Disk, Lock, process_id
from penstock.engine.segment.checkpoint import (
    DerivedPoint,
    DurablePoint,
    read_derived,
    read_durable,
    read_rocketmq,
)
from penstock.engine.segment.checkpointer import Checkpointer
from penstock.engine.segment.commit_log import CommitLog
from penstock.engine.segment.file_set import FileSet
from penstock.engine.segment.format import PRE_BLANK
from penstock.engine.segment.key_index import KeyIndex
from penstock.engine.segment.page_sums import PageSums
from penstock.engine.segment.paths import StorePaths
from penstock.engine.segment.rebuild import rebuild_queue
from penstock.engine.segment.recovery import Progress, RecoveryReport, Replay, clear_tail
from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.engine.segment.shard_log import ShardLog
from penstock.engine.segment.shard_state import ShardState
from penstock.engine.segment.shard_table import ShardTable
from penstock.engine.segment.state_files import StateFiles
from penstock.engine.segment.store_sizes import agree, check_directory, save_sizes, stored_sizes
from penstock.engine.segment.twin import core
from penstock.engine.segment.unit_files import OpenFiles
from penstock.engine.segment.write_manager import WriteManager
from penstock.errors import DiskFullError
from penstock.log import get_logger
from penstock.metrics import SegmentMetrics
from penstock.record import Offset, QueueKind, ShardId

_log: Final = get_logger(__name__)


class StoreParts(Struct, eq=False):
    """Everything an open store consists of."""

    disk: Disk
    clock: Clock
    metrics: SegmentMetrics
    settings: SegmentSettings
    paths: StorePaths
    sizes: FileSizes
    lock: Lock
    log: CommitLog
    index: KeyIndex
    table: ShardTable
    open_files: OpenFiles
    sums: PageSums
    writer: WriteManager
    checkpointer: Checkpointer
    report: RecoveryReport


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
    paths = StorePaths(root, settings)
    exists = check_directory(disk, paths)
    if settings.sizes is not None:
        settings.sizes.check()
    disk.make_directory(paths.root)
    lock = disk.lock(paths.lock)
    try:
        parts = _build(paths, settings, disk, clock, metrics, lock, exists=exists)
        _recover(parts, progress)
    except BaseException:
        lock.release()
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
    if exists:
        sizes = agree(paths, stored_sizes(disk, paths), settings.sizes)
    else:
        sizes = (settings.sizes or FileSizes()).check()
    for directory in (paths.commit_log, paths.index, paths.shards, paths.times, paths.sums):
        disk.make_directory(directory)
    files = FileSet(disk, paths.commit_log, sizes.commit_log_file_size, settings.mapped_bytes_max)
    files.load(repair=True)
    if not disk.exists(paths.properties):
        save_sizes(disk, paths, sizes)
    record_size_max = min(settings.record_size_max, sizes.commit_log_file_size)
    appender = core.Appender(settings.store_host, settings.store_host, record_size_max)
    log = CommitLog(files, appender, DurablePoint(disk, paths.durable), settings, metrics)
    sums = PageSums(disk, paths.sums)
    index = KeyIndex(disk, paths.index, sizes, sums)
    open_files = OpenFiles(disk, settings.open_files_max)
    table = ShardTable(log, paths, sizes, open_files)
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
        writer=WriteManager(log, index, clock, metrics),
        checkpointer=Checkpointer(disk, paths, log, table, index, sums),
        report=RecoveryReport(damaged=[], rebuilt=[]),
    )


def _recover(parts: StoreParts, progress: Progress | None) -> None:
    started = parts.clock.monotonic()
    disk, paths, log = parts.disk, parts.paths, parts.log
    unclean = disk.exists(paths.abort)
    point = read_derived(disk, paths.derived)
    states, damaged = StateFiles(disk, paths.shards).load_all()
    durable = _durable_position(parts)
    index_loaded = parts.index.load()
    bounded = (
        point is not None
        and not damaged
        and log.files.start <= point.position <= log.files.stop
        and index_loaded
        and parts.index.restore(point.index, log.appender, log.files.start)
    )
    if bounded:
        assert point is not None
        start = point.position
        _add_known_shards(parts, states)
    else:
        start = log.files.start
        _prepare_full_replay(parts, states, point, damaged, adopt=index_loaded)
    latest = {shard: int(state.latest_offset) for shard, state in states.items()}
    replay = Replay(log, parts.table, states, durable, parts.writer.more_index)
    end = replay.run(start, progress)
    report = parts.report = replay.report
    report.clean_stop = not unclean
    if not bounded and (report.records_scanned or damaged):
        report.rebuilt.append("all queues, indexes and states")
    if not bounded:
        _add_shards_without_records(parts, states)
    _settle(parts, latest, end, unclean=unclean)
    for shard in replay.touched:
        parts.checkpointer.touch(shard)
    if not bounded:
        parts.checkpointer.touch_all()
    report.seconds = parts.clock.monotonic() - started
    _write_down(parts, unclean=unclean)


def _durable_position(parts: StoreParts) -> int:
    ours = read_durable(parts.disk, parts.paths.durable)[1]
    return ours or read_rocketmq(parts.disk, parts.paths.checkpoint)


def _add_known_shards(parts: StoreParts, states: dict[ShardId, ShardState]) -> None:
    for shard, state in states.items():
        unit = state.latest_offset
        if state.kind is QueueKind.BATCH:
            unit = Offset(state.queue_first + state.queue_units)
        parts.table.add(shard, state, state.latest_offset, unit)


def _prepare_full_replay(
    parts: StoreParts,
    states: dict[ShardId, ShardState],
    point: DerivedPoint | None,
    damaged: list[str],
    *,
    adopt: bool,
) -> None:
    """Make room for derived files that are built anew, and forget what they say."""
    parts.checkpointer.forget()
    if point is None and not damaged and not states and adopt:
        # RocketMQ's own directory: its index is good, and goes on.
        parts.index.adopt(parts.log.appender)
    else:
        parts.index.clear()
    for kind in QueueKind:
        root = parts.paths.queue_root(kind)
        for topic in parts.disk.list(root):
            parts.disk.remove_tree(f"{root}/{topic}")
    parts.disk.remove_tree(parts.paths.times)
    for name in ("consumequeue", "batchconsumequeue"):
        parts.sums.remove_all(name)
    for state in states.values():
        state.queue_first = state.queue_units = state.queue_crc = 0


def _settle(
    parts: StoreParts,
    latest: dict[ShardId, int],
    end: int,
    *,
    unclean: bool,
) -> None:
    """Let the log end at `end`, on the device, and every queue where the log says."""
    log, report = parts.log, parts.report
    if unclean or report.cut_reason is not None:
        report.bytes_cut, report.records_behind_cut = clear_tail(log, end)
    log.files.sync(log.files.base_of(min(report.from_position, end)), end)
    log.settle_durable(end)
    for shard in parts.table:
        _never_reuse_offsets(parts.table, shard, latest.get(shard.shard, 0))
        _fit_files(parts, shard, end, unclean=unclean)
        shard.note_state()
    log.attach(end)


def _add_shards_without_records(parts: StoreParts, states: dict[ShardId, ShardState]) -> None:
    for shard, state in states.items():
        if parts.table.find(shard) is None:
            unit = 0 if state.kind is QueueKind.BATCH else state.latest_offset
            parts.table.add(shard, state, state.latest_offset, unit)


def _never_reuse_offsets(table: ShardTable, shard: ShardLog, latest: int) -> None:
    """Go on behind every offset that was given, also when damage took its record."""
    first = shard.next_offset
    if first >= latest:
        return
    shard.drain()
    if shard.kind is QueueKind.SIMPLE:
        shard.units.write(first, PRE_BLANK * (latest - first))
        table.restart(shard, latest, latest)
    else:
        table.restart(shard, latest, shard.next_unit)
    shard.restore_checksum(shard.next_unit)


def _fit_files(parts: StoreParts, shard: ShardLog, end: int, *, unclean: bool) -> None:
    """Give the shard exactly the units that the log has for it."""
    shard.drain()
    stop = shard.next_unit
    if unclean and shard.units.goes_on_at(stop):
        # Units behind the end are of records that a crash took.
        shard.units.cut(stop)
        shard.restore_checksum(stop)
        parts.checkpointer.touch(shard)
    if not shard.tail_file_exists(stop):
        rebuild_queue(parts.log.files, parts.sums, shard, end)
        parts.report.rebuilt.append(f"queue of {shard.shard.name}")
        parts.checkpointer.touch(shard)


def _write_down(parts: StoreParts, *, unclean: bool) -> None:
    """Say that the store is in use, then keep what recovery found out."""
    report = parts.report
    parts.metrics.recovery_seconds.set(report.seconds)
    parts.metrics.recovery_records.set(report.records_scanned)
    parts.metrics.recovery_cut_bytes.inc(report.bytes_cut)
    if report.bytes_cut:
        _log.warning(
            "torn_tail_cut",
            bytes_cut=report.bytes_cut,
            reason=report.cut_reason,
            records_behind_cut=report.records_behind_cut,
        )
    _log.info(
        "store_opened",
        path=parts.paths.root,
        clean_stop=not unclean,
        records_scanned=report.records_scanned,
        bytes_scanned=report.bytes_scanned,
        seconds=round(report.seconds, 3),
    )
    try:
        parts.disk.replace(parts.paths.abort, str(process_id()).encode())
        parts.checkpointer.checkpoint()
    except OSError as error:
        raise DiskFullError(f"{parts.paths.root}: cannot write the checkpoint: {error}") from error
