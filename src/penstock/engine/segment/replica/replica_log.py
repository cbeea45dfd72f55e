"""The log of one replicated shard, or of its companion, as a `ReplicaLog`.

    readers see        [earliest, commit limit)
    replicas copy      [start, end), also what is deleted; a group or a batch is never split
    `safe`             what is on the device where the topic syncs, else `end`

One thread calls, that of replication; clients append and read meanwhile. A command that is in the
companion's log acts when it is committed, on every replica: `CompanionLog.set_commit`.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from penstock.engine.segment.control import control_records as control
from penstock.engine.segment.control.shard_commands import ShardCommands
from penstock.engine.segment.parts import StoreParts
from penstock.engine.segment.queue.lookup import Query
from penstock.engine.segment.queue.shard import ShardLog
from penstock.engine.segment.read.page_reader import PageReader
from penstock.engine.segment.replica.damage import end_of_damage, start_of_group
from penstock.engine.segment.replica.holes import Hole, decode_hole, encode_hole
from penstock.engine.segment.replica.range_reader import RangeReader
from penstock.errors import BadRequestError, CorruptionError, RequestError, UnknownShardError
from penstock.platform.log import get_logger
from penstock.record import Flush, Offset, QueueKind, ShardId

_log: Final = get_logger(__name__)
_NO_EPOCH: Final = -1
_COMMANDS_PER_READ: Final = 256
_SIZE_PER_READ: Final = 4 << 20


class ReplicaParts(Struct, frozen=True, eq=False):
    """What the logs of all replicated shards share."""

    store: StoreParts
    commands: ShardCommands
    ranges: RangeReader
    reader: PageReader
    on_cut: Callable[[ShardId, int], None]
    """Lets everything that follows a shard go back to an offset."""
    on_commit: Callable[[], None]
    """Wakes what waits for committed records."""
    checkpoint: Callable[[], None]


class SegmentReplicaLog:
    """Implements `ReplicaLog`."""

    def __init__(self, log: ShardLog, parts: ReplicaParts) -> None:
        self._log: Final = log
        self._parts: Final = parts
        self._damaged_at: int | None = None
        self._start = (0, 0)
        """A floor, and where the batch begins that holds it."""

    # Where the log begins and ends

    @property
    def start(self) -> int:
        earliest = self._log.earliest
        if self._log.kind is QueueKind.SIMPLE or earliest == 0:
            return earliest
        if self._start[0] != earliest:
            self._start = (earliest, self._batch_start(earliest))
        return self._start[1]

    def _batch_start(self, offset: int) -> int:
        try:
            rows = self._log.rows(self._log.unit_of(offset), 1)
        except CorruptionError:
            self._parts.ranges.check_queue(self._log)
            rows = self._log.rows(self._log.unit_of(offset), 1)
        return min(offset, rows[0].first_offset) if rows else offset

    @property
    def end(self) -> int:
        return self._log.next_offset

    @property
    def safe(self) -> int:
        log = self._log
        is_sync = log.flush is Flush.SYNC
        return log.log.appender.shown_offset(log.handle) if is_sync else log.next_offset

    @property
    def commit(self) -> int:
        limit = self._log.commit_limit
        if limit is None:
            raise UnknownShardError(self._log.shard.name)  # deleted; the metadata will say so
        return limit

    @property
    def damaged_at(self) -> int | None:
        return self._damage_from(self.start)

    @property
    def has_failed(self) -> bool:
        return self._log.log.failed

    def _damage_from(self, start: int) -> int | None:
        """Return the first damaged offset from `start` on."""
        log = self._log
        if self._damaged_at is None and not log.repaired and not log.state.has_lost:
            return None
        end = log.next_offset
        damaged_offsets = [
            offset for offset in (self._damaged_at, *log.repaired) if offset is not None
        ]
        damaged = [
            offset
            for offset in damaged_offsets
            if offset >= start and log.state.hole_end(offset) is None
        ]
        lost = log.state.first_damaged(start, end)
        return min(damaged if lost is None else [*damaged, lost], default=None)

    # Epochs

    @property
    def last_epoch(self) -> int:
        end = self.end
        if end <= self.start:
            return _NO_EPOCH
        # Not the newest epoch of the table: one may have begun without a record.
        return next(epoch for epoch, first in reversed(self._epochs()) if first < end)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        start, end = self.start, self.end
        if start >= end:
            return epoch, end
        entries = self._epochs()
        above = bisect_right(entries, epoch, key=lambda entry: entry[0])
        stop = entries[above][1] if above < len(entries) else end
        return (entries[above - 1][0], stop) if above else (epoch, start)

    def _epochs(self) -> list[tuple[int, int]]:
        """Return all epochs of the log with their first offsets; it has at least one record."""
        start = self.start
        entries = self._log.state.epochs.to_list()
        if not entries or entries[0][1] > max(start, self._log.earliest):
            return [(0, start), *entries]  # records from before the shard was replicated
        # The table knows nothing of offsets below the floor, nor of a batch that holds it.
        return [(entries[0][0], min(entries[0][1], start)), *entries[1:]]

    def begin_epoch(self, epoch: int) -> None:
        log = self._log
        with log.log.lock, log.lock:
            if epoch < log.epoch:
                raise BadRequestError(
                    f"epoch {epoch} of {log.shard.name!r} is before {log.epoch}, which is in its "
                    "log: the metadata went back"
                )
            log.is_led = True
            log.epoch = epoch
            log.begin_epoch(log.next_offset)
        self._parts.store.checkpointer.touch(log)

    def follow(self) -> None:
        log = self._log
        with log.log.lock, log.lock:
            log.is_led = False
            log.update_admission()

    # Records

    def read_range(self, offset: int, max_size: int) -> tuple[bytes, int]:
        if not self.start <= offset < self.end:
            raise BadRequestError(
                f"offset {offset} of {self._log.shard.name!r} is not in [{self.start}, {self.end})"
            )
        ranges = self._parts.ranges
        try:
            end = ranges.hole_end(self._log, offset)
            if end is not None:
                return self._read_hole(offset, end)
            return ranges.read(self._log, offset, max_size)
        except CorruptionError:
            self._record_damage(offset)
            raise

    def _read_hole(self, offset: int, end: int) -> tuple[bytes, int]:
        """Return the part of a hole that is of one leader epoch."""
        entries = self._epochs()
        above = bisect_right(entries, offset, key=lambda entry: entry[1])
        end = min(end, entries[above][1]) if above < len(entries) else end
        epoch, first = entries[above - 1]
        begins = first == offset and epoch > 0
        return encode_hole(Hole(offset, end, epoch if begins else None)), end

    def _record_damage(self, offset: int) -> None:
        known = self._damaged_at
        if known is not None and known <= offset:
            return  # reported before: followers ask for it again and again
        self._damaged_at = offset
        _log.error("replica_damaged", shard=self._log.shard.name, offset=offset)

    def append_range(self, data: bytes) -> None:
        try:
            hole = decode_hole(data)
            if hole is None:
                self._parts.commands.copy_replica(self._log, data)
            else:
                self._skip(hole)
        except (BadRequestError, ValueError) as error:
            path = self._log.log.files.directory
            reason = f"records of {self._log.shard.name!r} from another node: {error}"
            raise CorruptionError(path, position=self.end, reason=reason) from error

    def _skip(self, hole: Hole) -> None:
        log, first = self._log, hole.first
        with log.log.lock, log.lock:
            if first != log.next_offset:
                raise BadRequestError(f"a hole from {first} on does not follow {log.next_offset}")
            log.log.appender.skip_offsets(log.handle, hole.end)
            log.state.add_hole(first, hole.end)
            if hole.epoch is not None:
                log.state.add_epoch(hole.epoch, first)
                log.update_admission()
        self._parts.store.checkpointer.touch(log)

    def cut(self, offset: int) -> None:
        log, checkpointer = self._log, self._parts.store.checkpointer
        if offset == self.damaged_at:
            # Everywhere else a cut is between two groups: of one, all or nothing is in a log.
            offset = max(start_of_group(log, offset), self.start)
        with checkpointer.pause:
            end, is_journaled = self._parts.commands.cut(log, offset)
            checkpointer.trim_later(log)
        if self._damaged_at is not None and self._damaged_at >= end:
            self._damaged_at = None
        self._parts.on_cut(log.shard, end)
        if not is_journaled:
            # The disk is full: nothing may be appended before a state says so.
            self._parts.checkpoint()

    def find_damage(self, offset: int) -> None:
        """The reader has done that: the shard keeps the damaged offsets in `repaired`."""

    def give_up_damaged(self, offset: int) -> None:
        log = self._log
        if self._damage_from(max(offset, self.start)) is not None:
            self._parts.ranges.check_queue(log)
        while (first := self._damage_from(max(offset, self.start))) is not None:
            end = end_of_damage(log, first)
            with log.lock:
                log.state.add_hole(first, end)
            if self._damaged_at is not None and self._damaged_at >= first:
                self._damaged_at = None
            log.repaired = frozenset(offset for offset in log.repaired if not first <= offset < end)
            _log.error("damaged_records_given_up", shard=log.shard.name, first=first, end=end)
        self._parts.store.checkpointer.touch(log)

    def restart_at(self, offset: int) -> None:
        log = self._log
        if offset < log.next_offset:
            raise BadRequestError(
                f"shard {log.shard.name!r} ends at {log.next_offset}: it cannot begin anew at "
                f"{offset}, where it may have given out offsets"
            )
        with self._parts.store.checkpointer.pause:
            self._parts.commands.restart(log, offset)
        self._damaged_at = None
        self._parts.on_cut(log.shard, offset)

    def set_commit(self, offset: int) -> None:
        self._limit(offset)
        self._parts.on_commit()

    def _limit(self, offset: int) -> None:
        if offset > self.commit:
            self._log.limit_commit(Offset(offset))
            self._parts.store.checkpointer.touch(self._log)


class CompanionLog(SegmentReplicaLog):
    """The control commands of a shard. Commands name offsets that were committed when they were
    written, so they act as soon as they are committed themselves, whatever part of the records
    this replica has; a cut of its records takes back nothing of what they did."""

    def __init__(self, log: ShardLog, data: ShardLog, parts: ReplicaParts) -> None:
        super().__init__(log, parts)
        self._data: Final = data
        self.folded: Final = threading.Condition()
        """Notified when commands were done, and when this node stops to lead."""
        self.terms = 0
        """How often this node has stopped to lead."""

    def follow(self) -> None:
        super().follow()
        with self.folded:
            self.terms += 1
            self.folded.notify_all()

    def restart_at(self, offset: int) -> None:
        super().restart_at(offset)
        with self._data.lock:
            state = self._data.state
            state.control_offset = max(state.control_offset, Offset(offset))

    def set_commit(self, offset: int) -> None:
        self._limit(offset)
        self.fold()

    def fold(self) -> None:
        """Do what the committed commands say that were not done yet."""
        until = min(self.commit, self._log.commit)
        try:
            while (offset := self._next_command) < until:
                self._fold_some(offset, until)
        except CorruptionError:
            self._record_damage(self._next_command)
        with self.folded:
            self.folded.notify_all()

    @property
    def _next_command(self) -> int:
        return max(int(self._data.state.control_offset), self._log.earliest)

    def _fold_some(self, offset: int, until: int) -> None:
        query = Query(offset, until, _COMMANDS_PER_READ, _SIZE_PER_READ)
        page = self._parts.reader.read(self._log, query)
        for record in page.records:
            try:
                command = control.decode(record)
            except RequestError as error:
                _log.error("control_record_ignored", shard=self._data.shard.name, error=str(error))
                continue
            self._parts.commands.apply(self._data, command, record.offset)
        with self._data.lock:
            state = self._data.state
            state.control_offset = max(state.control_offset, Offset(max(page.next_offset, offset)))
        if page.next_offset <= offset:
            raise CorruptionError(
                self._log.log.files.directory,
                position=0,
                reason=f"command {offset} of {self._data.shard.name!r} cannot be read",
            )
