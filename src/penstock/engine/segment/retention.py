"""What goes, and when: per shard by time, size and number; per node by age and disk space.

Two things are separate. A shard's *floor* moves immediately when its policy says so, and readers no
longer see what is below. A commit-log *file* goes when nothing live is in it any more: every
shard's first live record is after it. Before a file goes, the floors that depend on it are on
the device, so that no start can find a queue that points into a missing file.

    disk >= disk_max_used_space_ratio          the oldest files go, live or not, except what shards
                                               marked `keep` hold, and what is not committed yet
    a disk of the store >= disk_space_warning_level_ratio
                                               appends are refused until there is room; reads go on
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from penstock.codec.format import TIME_BLOCK, Damage, RawRecord
from penstock.codec.select import core
from penstock.engine.contract import FOREVER_MS
from penstock.engine.segment.control.control_records import control_shard, is_control
from penstock.engine.segment.control.shard_gc import ShardGarbageCollector
from penstock.engine.segment.log.disk_errors import disk_errors
from penstock.engine.segment.log.reserve import Reserve
from penstock.engine.segment.parts import StoreParts
from penstock.engine.segment.queue.entry_rows import UnitRow
from penstock.engine.segment.queue.shard import ShardLog
from penstock.engine.segment.settings import hour_of
from penstock.errors import (
    CorruptionError,
    DiskFullError,
    NotLeaderError,
    UnreadableContentError,
)
from penstock.platform.log import get_logger
from penstock.record import ShardId, StoredRecord

_log: Final = get_logger(__name__)
_UNITS_PER_STEP: Final = 4096
_HOUR_MS: Final = 3_600_000
_YOUNG: Final = (1 << 63) - 1


class RetentionPolicy(Struct, frozen=True):
    """How much of a shard is kept. Without a time of its own, a shard keeps its records for the
    store's `file_reserved_time`; `FOREVER_MS` is a time of its own. No size, no number of records:
    no such limit."""

    time_ms: int | None = None
    size: int | None = None
    records: int | None = None
    keep: bool = False
    """Never drop records to make room on a full disk (compacted and unlimited topics)."""


_DEFAULT: Final = RetentionPolicy()


class RetentionReport(Struct):
    """What one run removed."""

    files: int = 0
    size: int = 0
    records: int = 0


class Retention:
    def __init__(
        self,
        parts: StoreParts,
        garbage: ShardGarbageCollector,
        delete_before: Callable[[ShardLog, int], bool],
        read_between: Callable[[ShardLog, int, int], list[StoredRecord]],
        restate: Callable[[ShardLog], None],
    ) -> None:
        """`read_between` returns the live records of a range of offsets; `restate` writes the
        commands of a replicated shard again, so that older ones are not needed any more."""
        self._parts: Final = parts
        self._garbage: Final = garbage
        self._delete_before: Final = delete_before
        self._read_between: Final = read_between
        self._restate: Final = restate
        self._policies: dict[ShardId, RetentionPolicy] = {}
        self._sized: dict[ShardId, int] = {}
        self._lock: Final = threading.Lock()
        self._hour: Final = hour_of(parts.settings.delete_when)
        self._reserve: Final = Reserve(parts.disk, parts.paths.reserve)
        self.keep_from: Callable[[ShardId], int | None] = _keep_nothing
        """Tells from which offset on a shard's records are needed here, because a tier lacks them;
        None: no tier is concerned."""

    @property
    def reserved_ms(self) -> int:
        """How long the log keeps records of shards that have no time of their own."""
        return round(self._parts.settings.file_reserved_time_h * _HOUR_MS)

    def set_policy(self, shard: ShardId, policy: RetentionPolicy | None) -> None:
        self._sized.pop(shard, None)
        if policy is None:
            self._policies.pop(shard, None)
        else:
            self._policies[shard] = policy

    def on_truncated(self, shard: ShardId) -> None:
        """Look at a shard's size again, even if it ends where it did."""
        self._sized.pop(shard, None)

    def run(self) -> RetentionReport:
        """Move floors, remove files, watch the disk."""
        with self._lock, disk_errors(self._parts.paths.root):
            report = RetentionReport()
            self._move_floors(report)
            self._remove_dead_files(report)
            self._watch_disk(report)
            return report

    def apply(self, shard: ShardId) -> None:
        """Move the floor of one shard to where its policy wants it."""
        with self._lock, disk_errors(self._parts.paths.root):
            log = self._parts.table.get(shard)
            policy = self._policies.get(shard)
            if policy is not None and not log.is_following:
                self._move_floor(log, self._floor_of(log, policy), RetentionReport())

    def first_of_last(self, shard: ShardId, count: int) -> int:
        """Return from which offset on a shard has `count` records."""
        return self._floor_by_records(self._parts.table.get(shard), count)

    def remove_oldest_file(self) -> bool:
        """Remove the oldest log file by hand, whatever is in it; return whether there was one
        that may go (the file being written stays)."""
        with self._lock, disk_errors(self._parts.paths.root):
            return self._force_oldest(RetentionReport(), by_hand=True)

    # Floors

    def _move_floors(self, report: RetentionReport) -> None:
        first_file_end = self._parts.log.files.start + self._parts.log.files.file_size
        expired = self._is_the_hour() and self._first_file_is_old(first_file_end)
        for log in self._parts.table:
            if log.state.dropped or is_control(log.shard) or log.is_following:
                continue
            policy = self._policies.get(log.shard)
            floor = 0 if policy is None else self._floor_of(log, policy)
            if expired and (policy is None or policy.time_ms is None) and not _keeps(policy):
                floor = max(floor, self._floor_by_reserved_time(log, first_file_end))
            if floor:  # of most shards nothing goes, and there may be thousands
                self._move_floor(log, floor, report)

    def _move_floor(self, log: ShardLog, floor: int, report: RetentionReport) -> None:
        if floor > log.earliest:
            floor = self._at_most_needed(log.shard, floor)
        if floor > log.earliest:
            report.records += floor - log.earliest
            self._raise_floor(log, floor)

    def _at_most_needed(self, shard: ShardId, floor: int) -> int:
        needed = self.keep_from(shard)
        if needed is None or needed >= floor:
            return floor
        self._sized.pop(shard, None)  # the same limits must be looked at again
        return needed

    def _raise_floor(self, log: ShardLog, floor: int) -> None:
        """Let a shard begin later; files go after a checkpoint, which saves its state. A replicated
        shard begins later when the replicas in sync know that."""
        try:
            self._delete_before(log, min(floor, log.commit))
        except NotLeaderError:
            _log.debug("retention_overtaken", shard=log.shard.name)

    def _floor_of(self, log: ShardLog, policy: RetentionPolicy) -> int:
        floor = 0
        if policy.records is not None:
            floor = max(floor, self._floor_by_records(log, policy.records))
        if policy.size is not None:
            floor = max(floor, self._floor_by_size(log, policy.size))
        if policy.time_ms is not None and policy.time_ms < FOREVER_MS:
            floor = self._floor_by_time(log, policy.time_ms, max(floor, log.earliest))
        return floor

    def _floor_by_records(self, log: ShardLog, count: int) -> int:
        """Count back from the end. Lost offsets are not records: counting them would delete
        records that can be read because others cannot."""
        end = log.commit
        for first, stop in reversed(log.state.lost_between(log.earliest, end)):
            if end - stop >= count:
                break
            count -= end - stop
            end = first
        return end - count

    def _floor_by_time(self, log: ShardLog, time_ms: int, start: int) -> int:
        """The first live record from `start` on that is young enough: everything before it is too
        old or gone. No stretch is walked twice, because the floor moves past it."""
        oldest = self._parts.clock.expiry_ms() - time_ms
        unit, end = log.unit_of(start), log.next_unit
        while unit < end:
            rows = log.rows(unit, _UNITS_PER_STEP)
            for row in rows:
                offsets = range(max(row.first_offset, start), row.end_offset)
                if all(log.state.is_deleted(offset) for offset in offsets):
                    continue
                if self._timestamp_of(row) >= oldest:
                    young = self._first_young(log, offsets, oldest)
                    if young is not None:
                        return min(young, log.commit)
            unit += max(1, len(rows))
        return log.commit

    def _first_young(self, log: ShardLog, offsets: range, oldest: int) -> int | None:
        """Return the first of a few offsets whose record lives and is young enough; one that
        cannot be read is."""
        try:
            records = self._read_between(log, offsets.start, offsets.stop)
        except (CorruptionError, UnreadableContentError):
            return offsets.start
        return next((record.offset for record in records if record.timestamp_ms >= oldest), None)

    def _timestamp_of(self, row: UnitRow) -> int:
        """Return the time of a record, or of the youngest message of a batch; what cannot be read
        is young, so that damage is never hidden by retention."""
        files = self._parts.log.files
        if row.is_blank or not files.holds(row.position):
            return _YOUNG
        base = files.base_of(row.position)
        raw = core.decode_raw(files.buffer(base), base, row.position, True, files.strict)
        return _YOUNG if isinstance(raw, Damage) else raw.born_timestamp_ms

    def _floor_by_size(self, log: ShardLog, size_max: int) -> int:
        """Count back from the end until the size is used up."""
        end = log.next_unit
        if self._sized.get(log.shard) == end:
            return 0
        self._sized[log.shard] = end
        total = 0
        first = log.unit_of(log.earliest)
        while end > first:
            start = max(first, end - _UNITS_PER_STEP)
            for row in reversed(log.rows_between(start, end)):
                total += row.size
                if total > size_max:
                    if row.end_offset > log.commit:
                        del self._sized[log.shard]  # more may go when more is committed
                    return min(row.end_offset, log.commit)
            end = start
        return 0

    def _first_file_is_old(self, file_end: int) -> bool:
        """The file is as old as the first whole record after it: the time in a damaged one may be
        any."""
        files, end = self._parts.log.files, self._parts.log.end
        if files.stop <= file_end or end <= file_end:
            return False
        for base in range(file_end, end, files.file_size):
            stop = min(end, base + files.file_size)
            record_position = core.find_record(files.buffer(base), base, base, stop, files.strict)
            if record_position >= 0:
                raw = core.decode_raw(files.buffer(base), base, record_position, True, files.strict)
                assert isinstance(raw, RawRecord), "it was just found"
                return raw.store_timestamp_ms < self._parts.clock.expiry_ms() - self.reserved_ms
        return False

    def _floor_by_reserved_time(self, log: ShardLog, file_end: int) -> int:
        return min(log.offset_at(file_end), log.commit)

    def _is_the_hour(self) -> bool:
        if self._hour is None:
            return True
        now = datetime.fromtimestamp(self._parts.clock.now_ms() / 1000, tz=UTC)
        return now.astimezone().hour == self._hour

    # Files

    def _remove_dead_files(self, report: RetentionReport) -> None:
        files = self._parts.log.files
        while files.start + files.file_size <= self._parts.log.files.base_of(self._parts.log.end):
            file_end = files.start + files.file_size
            if self._first_live_position() < file_end or self._commands_before(file_end):
                return
            self._remove_first(report)

    def _commands_before(self, position: int) -> bool:
        """Say whether commands of replicated shards are needed that are stored before `position`: a
        new replica copies them. Those of shards that are led here are written again."""
        is_needed = False
        for log in self._parts.table:
            if log.state.dropped or not log.state.is_replicated or is_control(log.shard):
                continue
            companion = self._parts.table.find(control_shard(log.shard))
            if companion is None or companion.state.dropped:
                continue
            first = companion.unit_of(max(log.state.restated_from, companion.earliest))
            row = next(iter(companion.rows(first, 1)), None)
            if row is not None and row.position < position:
                is_needed = True
                self._restate(log)
        return is_needed

    def _first_live_position(self) -> int:
        """Where the first record is that some shard still shows, or that is not committed.
        Control records do not count: checkpoints hold what they say."""
        first = self._parts.log.end
        for log in self._parts.table:
            if log.state.dropped or log.earliest >= log.next_offset or is_control(log.shard):
                continue
            position = log.first_live_position()
            if position is not None:
                first = min(first, position)
        return first

    def _remove_first(self, report: RetentionReport) -> None:
        parts = self._parts
        self._move_control_floors()
        parts.checkpointer.checkpoint(frees_room=True)
        start = parts.log.files.remove_first()
        report.files += 1
        report.size += parts.log.files.file_size
        parts.metrics.deleted_files.inc()
        parts.metrics.deleted_bytes.inc(parts.log.files.file_size)
        _log.info("log_file_removed", start_position=start)
        for log in parts.table:
            with log.lock:
                log.state.remove_truncations(start)
                log.units.remove_before(log.unit_of(log.earliest))
                log.times.drop_before(log.earliest // TIME_BLOCK)
        parts.index.remove_before(start)
        self._garbage.run()

    def _move_control_floors(self) -> None:
        files = self._parts.log.files
        for log in self._parts.table:
            if is_control(log.shard):
                with log.lock:
                    log.state.drop_before(log.offset_at(files.start + files.file_size))
                self._parts.checkpointer.touch(log)

    # Disk

    def _watch_disk(self, report: RetentionReport) -> None:
        parts = self._parts
        ratio = self._used_percent()
        while ratio >= parts.settings.disk_max_used_space_ratio and self._force_oldest(report):
            ratio = self._used_percent()
        parts.metrics.disk_used_ratio.set(ratio / 100)
        if self.refuse_or_accept():
            self._reserve.keep(parts.sizes)

    def refuse_or_accept(self) -> bool:
        """Refuse writes while the disk is fuller than `disk_space_warning_level_ratio`; return
        whether it is not."""
        parts = self._parts
        settings = parts.settings
        path, ratio = self._fullest()
        full = ratio >= settings.disk_space_warning_level_ratio
        if full and parts.log.blocked is None:
            _log.error("writes_refused", path=path, disk_used_percent=round(ratio, 1))
            parts.log.refuse(
                DiskFullError(
                    f"the disk of {path} is {ratio:.0f} % full "
                    "(disk_space_warning_level_ratio = "
                    f"{settings.disk_space_warning_level_ratio}); "
                    "writes are refused until there is room, reads go on"
                )
            )
        elif not full and isinstance(parts.log.blocked, DiskFullError):
            _log.info("writes_taken_again", disk_used_percent=round(ratio, 1))
            parts.log.accept()
        return not full

    def _used_percent(self, path: str | None = None) -> float:
        return 100 * self._parts.disk.usage(path or self._parts.paths.commit_log).ratio

    def _fullest(self) -> tuple[str, float]:
        """Return the directory on the fullest disk, and how full that is: where units and entries
        find no room, they would pile up in memory while the log goes on."""
        paths = self._parts.paths
        others = (paths.consume_queue, paths.batch_queue, paths.index, paths.own)
        places = [paths.commit_log, *(path for path in others if self._parts.disk.exists(path))]
        return max(
            ((path, self._used_percent(path)) for path in places), key=lambda usage: usage[1]
        )

    def _force_oldest(self, report: RetentionReport, *, by_hand: bool = False) -> bool:
        files = self._parts.log.files
        file_end = files.start + files.file_size
        if file_end > files.base_of(self._parts.log.end) or self._commands_before(file_end):
            return False
        floors = {}
        asked = False
        for log in self._parts.table:
            if log.state.dropped or log.earliest >= log.next_offset or is_control(log.shard):
                continue
            floor = log.offset_at(file_end)
            kept = not by_hand and (
                _keeps(self._policies.get(log.shard))
                or self._at_most_needed(log.shard, floor) < floor
            )
            if floor > log.earliest and (kept or floor > log.commit):
                return False
            if floor > log.earliest and log.state.is_replicated:
                # The file goes when the replicas in sync know that, or never: a follower whose disk
                # is full has to leave them.
                asked = True
                if log.is_led:
                    self._raise_floor(log, floor)
                continue
            floors[log] = floor
        if asked:
            return False
        for log, floor in floors.items():
            if floor > log.earliest:
                report.records += floor - log.earliest
                with log.lock:
                    log.state.drop_before(floor)
                self._parts.checkpointer.touch(log)
        _log.warning("oldest_records_dropped", file=files.path_of(files.start), by_hand=by_hand)
        self._remove_first(report)
        return True


def _keep_nothing(_: ShardId) -> int | None:
    return None


def _keeps(policy: RetentionPolicy | None) -> bool:
    return policy is not None and policy.keep
