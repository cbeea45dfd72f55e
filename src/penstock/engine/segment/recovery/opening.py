"""The recovery of a store that is being opened: states, replay, repairs, a first checkpoint."""

from __future__ import annotations

from typing import Final

from penstock.codec.format import BATCH_COUNT_MAX, GAP_MAX, PRE_BLANK
from penstock.engine.segment.control.control_records import is_control
from penstock.engine.segment.control.shard_directories import (
    remove_directories,
    remove_files,
    remove_queues,
)
from penstock.engine.segment.parts import StoreParts
from penstock.engine.segment.queue.entry_rows import UnitRow
from penstock.engine.segment.queue.shard import ShardLog
from penstock.engine.segment.queue.shard_state import ShardState
from penstock.engine.segment.queue.state_files import StateFiles, bucket_of
from penstock.engine.segment.queue.unit_scans import batch_unit_behind, find_lost
from penstock.engine.segment.recovery.checkpoint import (
    DerivedPoint,
    known_until,
    read_derived,
    read_durable,
    read_rocketmq,
)
from penstock.engine.segment.recovery.log_tail import clear_tail
from penstock.engine.segment.recovery.lost_offsets import end_in_files, ends_of_queues, is_in
from penstock.engine.segment.recovery.rebuild import rebuild_queue
from penstock.engine.segment.recovery.recovery import SIZE_UNKNOWN, Nameless, Replay
from penstock.engine.segment.recovery.report import DamagedPlace, Progress
from penstock.platform.disk import process_id
from penstock.platform.log import get_logger
from penstock.platform.metrics import LogPositions
from penstock.record import QueueKind, ShardId

_log: Final = get_logger(__name__)


def recover(parts: StoreParts, progress: Progress | None) -> None:
    started = parts.clock.monotonic()
    disk, paths, log = parts.disk, parts.paths, parts.log
    unclean = disk.exists(paths.abort)
    point = read_derived(disk, paths.derived)
    files = StateFiles(disk, paths.shards, paths.copies)
    states, damaged = files.load_all(expected=() if point is None else point.buckets)
    _drop_gone(parts, states)
    durable = max(_durable_position(parts), 0 if point is None else point.position)
    # What an earlier process published may be ahead of a log that lost its tail.
    parts.checkpointer.remove_live()
    index_fits = parts.index.load()
    stale = point is not None and not damaged and _are_stale(point, states)
    bounded = (
        point is not None
        and not damaged
        and not stale
        and log.files.start <= point.position <= log.files.stop
        and parts.index.restore(point.index, log.appender, log.files.start)
    )
    ends_in_queues: dict[ShardId, tuple[int, UnitRow]] = {}
    if bounded:
        assert point is not None
        start = point.position
        log.appender.last_store_timestamp_ms = point.store_timestamp_ms
        _add_known_shards(parts, states, unclean=unclean)
        parts.checkpointer.resume(start)
    else:
        start = log.files.start
        ends_in_queues = ends_of_queues(disk, paths, parts.sizes)
        foreign = point is None and not damaged and not states
        _prepare_full_replay(parts, states, adopt=foreign and index_fits and not unclean)
    replay = Replay(
        log,
        parts.table,
        states,
        parts.writer.more_index,
        durable=durable,
        clean=not unclean,
        known=0 if point is None or damaged or stale else known_until(point),
    )
    before = dict(replay.latest) if bounded else {}
    end = replay.run(start, progress)
    replay.report.rebuilt[:0] = parts.report.rebuilt
    report = parts.report = replay.report
    if not bounded and (report.records_scanned or damaged or stale):
        report.rebuilt.append("all queues, indexes and states")
    _add_shards_without_records(parts, states)
    if not bounded:
        _limit_store_times(parts)
    _end_log(parts, end, unclean=unclean)
    if report.damaged:
        ends = {
            shard: end for shard, (end, last) in ends_in_queues.items() if is_in(replay.spans, last)
        }
        _mark_lost(parts, replay, before, ends)
    _report_missing_start(parts, point, bounded=bounded)
    for shard in parts.table:
        replayed = unclean or not bounded or shard.shard in replay.touched
        _fit_files(parts, shard, end, unclean=unclean, replayed=replayed)
        shard.update_admission()
        if shard.shard in replay.touched or not bounded or bucket_of(shard.shard) in files.mended:
            parts.checkpointer.touch(shard)
    log.attach(end)
    report.seconds = parts.clock.monotonic() - started
    _write_down(parts, unclean=unclean, bounded=bounded)


def _limit_store_times(parts: StoreParts) -> None:
    """A replay of the whole log meets copies of other nodes' records before it knows that their
    shards are replicated: where there are some, times ahead of this node's clock do not count."""
    appender, now_ms = parts.log.appender, parts.clock.now_ms()
    has_copies = any(shard.state.is_replicated for shard in parts.table)
    if has_copies and appender.last_store_timestamp_ms > now_ms:
        appender.last_store_timestamp_ms = now_ms


def _drop_gone(parts: StoreParts, states: dict[ShardId, ShardState]) -> None:
    """Forget deleted shards of which the log holds nothing any more; see `shard_gc`."""
    start = parts.log.files.start
    gone = {shard: state.kind for shard, state in states.items() if state.is_gone(start)}
    for shard, kind in gone.items():
        remove_files(parts.disk, parts.paths, shard, kind)
    remove_directories(parts.disk, parts.paths, gone.items())
    for shard in gone:
        del states[shard]
        parts.checkpointer.remove_later(shard)


def _durable_position(parts: StoreParts) -> int:
    ours = read_durable(parts.disk, parts.paths.durable)[1]
    # Without a checksum, RocketMQ's number counts only as far as there is a log.
    return ours or min(read_rocketmq(parts.disk, parts.paths.checkpoint), parts.log.files.stop)


def _are_stale(point: DerivedPoint, states: dict[ShardId, ShardState]) -> bool:
    """Say whether states are not those that the checkpoint was made with: records that they do not
    know of would be missing, and their offsets given out again."""
    if point.ends_total is None:
        return False
    if any(state.folded_until > point.position for state in states.values()):
        return False  # of a checkpoint that a crash ended before its last step
    total = sum(state.latest_offset for state in states.values())
    if total == point.ends_total:
        return False
    _log.error("states_do_not_fit_checkpoint", ends_total=point.ends_total, found=total)
    return True


def _add_known_shards(
    parts: StoreParts, states: dict[ShardId, ShardState], *, unclean: bool
) -> None:
    for shard, state in states.items():
        unit = int(state.latest_offset)
        if state.kind is QueueKind.BATCH:
            unit = state.queue_first + state.queue_units
            if unclean:
                unit = batch_unit_behind(parts.table.unit_files(shard, state.kind), state)
        parts.table.add(shard, state, state.latest_offset, unit)


def _prepare_full_replay(
    parts: StoreParts, states: dict[ShardId, ShardState], *, adopt: bool
) -> None:
    """Make room for derived files that are built anew, and forget what they say."""
    disk, paths = parts.disk, parts.paths
    parts.checkpointer.remove_checkpoint()
    # In RocketMQ's own directory the index is good, and goes on.
    if not (adopt and parts.index.adopt(parts.log.appender)):
        parts.index.clear()
    for kind in QueueKind:
        root = paths.queue_root(kind)
        for topic in disk.list(root):
            remove_queues(disk, f"{root}/{topic}")
        if disk.exists(root):
            disk.sync_directory(root)
    for topic in disk.list(paths.times):
        disk.remove_tree(f"{paths.times}/{topic}")
    disk.sync_directory(paths.times)
    for name in ("consumequeue", "batchconsumequeue"):
        parts.sums.remove_all(name)
    for state in states.values():
        state.queue_first = state.queue_units = state.queue_crc = 0
        state.set_lost(())


def _end_log(parts: StoreParts, end: int, *, unclean: bool) -> None:
    """Let the log end at `end`, on the device."""
    log, report = parts.log, parts.report
    if unclean or report.cut_reason is not None:
        report.bytes_cut, report.records_behind_cut = clear_tail(log, end)
    log.files.sync(log.files.base_of(min(report.from_position, end)), end)
    log.reset_durable(end)


def _add_shards_without_records(parts: StoreParts, states: dict[ShardId, ShardState]) -> None:
    for shard, state in states.items():
        if parts.table.find(shard) is None:
            unit = 0 if state.kind is QueueKind.BATCH else state.latest_offset
            parts.table.add(shard, state, state.latest_offset, unit)


def _mark_lost(
    parts: StoreParts, replay: Replay, before: dict[ShardId, int], ends: dict[ShardId, int]
) -> None:
    """Find out which records damage took. Shards go on after every offset that was given, so that
    none is given twice; `ends` are those that queues knew of before they were removed."""
    unnamed = named_size = 0
    for shard in parts.table:
        shard.drain()
        if not shard.check_units():
            rebuild_queue(parts.log.files, shard, parts.report.end_position)
        latest, size = end_in_files(shard, replay.spans)
        named_size += size
        latest = max(latest, replay.latest.get(shard.shard, 0), ends.get(shard.shard, 0))
        _fill_gaps(parts, shard, latest)
        lost = find_lost(shard, before.get(shard.shard, 0))
        unnamed += _count_unnamed(replay, shard, lost)
        shard.state.add_lost(lost)
        if lost:
            parts.checkpointer.touch(shard)
    missing = sum(nameless.records for nameless in replay.nameless) - unnamed
    if missing > 0 and named_size < sum(nameless.size for nameless in replay.nameless):
        offsets = sum(nameless.offsets for nameless in replay.nameless)
        _suspect_all(parts, replay.nameless[0].position, missing, offsets)


def _report_missing_start(parts: StoreParts, point: DerivedPoint | None, *, bounded: bool) -> None:
    """Report first files of the log that were removed, and whose records are lost."""
    files, report = parts.log.files, parts.report
    if point is None or point.log_start is None or files.start <= point.log_start:
        return
    concerned = []
    for shard in parts.table:
        if shard.state.dropped or is_control(shard.shard):
            continue
        shard.drain()
        if not shard.check_units():
            rebuild_queue(files, shard, report.end_position)
        first = shard.first_live_position()
        if bounded and (first is None or first >= files.start):
            continue  # retention removed the file, and had no time to say so
        start, end = shard.earliest, shard.offset_at(files.start)
        shard.state.add_lost([(start, end)] if start < end else [])
        if shard.state.first_lost(start, end) is not None:
            concerned.append(shard.shard.name)
            parts.checkpointer.touch(shard)
    if concerned:
        reason = f"this file of the log is missing, and with it records of {len(concerned)} shards"
        place = DamagedPlace(files.path_of(point.log_start), 0, reason)
        report.damaged.append(place)
        _log.error("log_file_missing", path=place.path, shards=len(concerned), one=concerned[0])


def _count_unnamed(replay: Replay, shard: ShardLog, lost: list[tuple[int, int]]) -> int:
    """Return how many records of a shard are lost at least that no damage names. A record that is
    named as lost and is there was named wrongly: another one is missing."""
    count = sum(end - start if shard.kind is QueueKind.SIMPLE else 1 for start, end in lost)
    for position, named, offset in replay.victims:
        if named != shard.shard:
            continue
        if any(start <= offset < end for start, end in lost):
            count -= 1
        else:
            replay.nameless.append(Nameless(position, SIZE_UNKNOWN, 1, BATCH_COUNT_MAX))
    return max(0, count)


def _suspect_all(parts: StoreParts, position: int, records: int, offsets: int) -> None:
    """Records are missing whose shards are unknown. Any shard without a record after the damage may
    have lost its last ones: better to say so of all than to give offsets out a second time. (More
    than `GAP_MAX` offsets in one step no replay believes.)"""
    for shard in parts.table:
        if not shard.state.dropped and not shard.has_record_at(position):
            lost = find_lost(shard)
            # What an earlier start reserved for the same damage is not reserved again.
            is_reserved = bool(lost) and lost[-1][1] == shard.next_offset
            end = lost[-1][0] if is_reserved else shard.next_offset
            reserve = min(records if shard.kind is QueueKind.SIMPLE else offsets, GAP_MAX)
            latest = max(end + reserve, shard.next_offset)
            _fill_gaps(parts, shard, latest)
            shard.state.add_lost([(end, latest)])


def _fill_gaps(parts: StoreParts, shard: ShardLog, latest: int) -> None:
    """Give units without a record to offsets whose record is lost at the begin or the end."""
    first = shard.next_offset
    if shard.kind is QueueKind.SIMPLE:
        begin = min([first, *shard.units.first_units()])
        if shard.earliest < begin:
            shard.units.write(shard.earliest, PRE_BLANK * (begin - shard.earliest))
    if first >= latest:
        return
    if shard.kind is QueueKind.SIMPLE:
        shard.units.write(first, PRE_BLANK * (latest - first))
        parts.table.restart(shard, latest, latest)
    else:
        parts.table.restart(shard, latest, shard.next_unit)
    shard.restore_checksum(shard.next_unit)
    parts.checkpointer.touch(shard)


def _fit_files(
    parts: StoreParts, shard: ShardLog, end: int, *, unclean: bool, replayed: bool
) -> None:
    """Give the shard exactly the units that the log has for it."""
    shard.drain()
    stop = shard.next_unit
    if replayed and shard.units.goes_on_at(stop) and shard.check_units():
        # Units after the end are of records that a crash took, or that a replay met before it
        # came to the one from which on the shard was cut.
        shard.units.cut(stop)
        shard.restore_checksum(stop)
        parts.checkpointer.touch(shard)
    if not shard.tail_file_exists(stop) or (unclean and not shard.check_units()):
        rebuild_queue(parts.log.files, shard, end)
        parts.report.rebuilt.append(f"queue of {shard.shard.name}")
        parts.checkpointer.touch(shard)


def _write_down(parts: StoreParts, *, unclean: bool, bounded: bool) -> None:
    """Say that the store is in use, then keep what recovery found out."""
    report = parts.report
    log = parts.log
    parts.metrics.watch_log(
        lambda: LogPositions(log.files.start, log.durable, log.end, log.files.mapped_bytes)
    )
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
    parts.disk.replace(parts.paths.abort, str(process_id()).encode())
    if parts.checkpointer.is_due or unclean or not bounded:
        parts.checkpointer.checkpoint()
