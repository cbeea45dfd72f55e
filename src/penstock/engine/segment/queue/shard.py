"""One shard of the store: its queue, its state, and the bounds within which it may be read.

    units in files  [.., held)      units in the appender's memory  [held, next)
    ────────────────────────────────┼───────────────────────────────────────────
                       drained by the background, then dropped from memory

Invariants:

  * earliest <= commit <= next; readers see [earliest, commit) minus the deleted ranges
  * a unit leaves memory only when it is in its file, so that every unit below `next` can be read
    from one of the two at any moment
  * who reads takes no lock: a read that fails asks whether the shard was cut meanwhile
  * `lock` guards the state and the files; appends take the log's lock, and this one inside it only
    when the record concerns the state (producers, control records, epochs)
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from typing import Final

from penstock.codec.format import PRE_BLANK, TIME_BLOCK
from penstock.engine.segment.index.sealed_files import SealedFiles
from penstock.engine.segment.log.commit_log import CommitLog
from penstock.engine.segment.paths import sums_path
from penstock.engine.segment.queue.entry_rows import UnitRow, unit_rows
from penstock.engine.segment.queue.producer_history import restore_producers
from penstock.engine.segment.queue.queue_files import UnitFiles
from penstock.engine.segment.queue.shard_state import ShardState
from penstock.engine.segment.queue.time_index import TimeIndex
from penstock.errors import CorruptionError
from penstock.record import Flush, Offset, Position, QueueKind, ShardId

_ROWS_PER_STEP: Final = 4096
_NO_OFFSET: Final = 1 << 62
_NONE_HEALED: Final[frozenset[int]] = frozenset()  # one for all: it takes 216 bytes
_FILES_READ_MAX: Final = 256
KIND_NUMBER: Final = {QueueKind.SIMPLE: 0, QueueKind.BATCH: 1}


class ShardLog:
    """What the store knows of one shard while it is open."""

    __slots__ = (
        "_checked",
        "_commit_limit",
        "_files_read",
        "_last_lookup",
        "_sealed",
        "_suspect",
        "deleting",
        "epoch_is_new",
        "flush",
        "handle",
        "is_following",
        "is_led",
        "lock",
        "log",
        "repaired",
        "shard",
        "state",
        "times",
        "truncation_generation",
        "units",
    )

    def __init__(
        self,
        shard: ShardId,
        handle: int,
        log: CommitLog,
        state: ShardState,
        units: UnitFiles,
        times: TimeIndex,
        sealed: SealedFiles,
    ) -> None:
        self.shard = shard
        self.handle = handle
        self.log = log
        self.state = state
        self.units = units
        self.times = times
        self.lock = threading.RLock()
        self.deleting = threading.Lock()
        """Held from the look at what is deleted to the deletion; taken before any other lock."""
        self.flush = Flush.ASYNC
        self.epoch_is_new = False
        """No record has the leader's epoch yet, and its table does not know it."""
        self.is_led = False
        """This node leads the shard; without a meaning where the shard is not replicated."""
        self.is_following = False
        """Another node decides what this shard holds."""
        self.update_admission()
        self.repaired = _NONE_HEALED
        """Offsets for which rebuilding the queue did not help: their records are damaged."""
        self.truncation_generation = 0
        """How often offsets were taken back; counted under `lock`, when all of it is done."""
        self._commit_limit: int | None = state.commit_offset if state.is_replicated else None
        self._sealed = sealed
        self._checked = False
        self._suspect = False
        self._last_lookup: list[tuple[int, int]] | None = None
        """Holds the last offset that was looked up, and its unit. A truncation leaves a concurrent
        lookup just then alone with the old list: what was found before it does not count after
        it."""
        self._files_read: dict[int, str] | None = None
        """Queue files that passed their checks when they were read, by number."""

    # Bounds

    @property
    def kind(self) -> QueueKind:
        return self.state.kind

    def set_flush(self, flush: Flush) -> None:
        self.flush = flush
        self.update_admission()

    def update_admission(self) -> None:
        """Hand the appender what an append has to know of this shard. To be called when the flush
        mode, `sealed`, `dropped`, `is_led` or the epochs changed. An append path does not append
        the first record of an epoch: it could not record it (`begin_epoch`)."""
        state = self.state
        self.epoch_is_new = state.leader_epoch > state.newest_epoch
        self.is_following = state.is_replicated and not self.is_led
        taking = not (state.sealed or state.dropped or self.epoch_is_new or self.is_following)
        sync = self.flush is Flush.SYNC
        self.log.appender.set_admission(
            self.handle, taking, sync, state.leader_epoch, self.is_following
        )

    @property
    def epoch(self) -> int:
        """The leader epoch of the records to come."""
        return self.state.leader_epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.state.leader_epoch = epoch
        self.update_admission()

    def begin_epoch(self, offset: int) -> None:
        """Note that the leader's epoch begins with the record at `offset`, if that is not known.
        The caller holds the log's lock."""
        if self.epoch_is_new:
            with self.lock:
                self.state.epochs.add(self.state.leader_epoch, offset)
                self.update_admission()

    @property
    def next_offset(self) -> int:
        return self.log.appender.next_offset(self.handle)

    @property
    def next_unit(self) -> int:
        return self.log.appender.next_unit(self.handle)

    @property
    def earliest(self) -> int:
        return min(self.state.floor_offset, self.next_offset)

    @property
    def commit(self) -> int:
        """The offset after the last record that is safe to show."""
        end = self.log.appender.shown_offset(self.handle)
        return end if self._commit_limit is None else min(end, self._commit_limit)

    def limit_commit(self, offset: Offset | None) -> None:
        """Show nothing at or past `offset` (replication decides); None lifts the limit."""
        self._commit_limit = offset

    @property
    def commit_limit(self) -> int | None:
        return self._commit_limit

    def become_replicated(self, commit: int) -> None:
        """Take no records of clients, and show nothing at or past `commit`, until replication says
        otherwise."""
        with self.lock:
            self._commit_limit = self.state.commit_offset = Offset(commit)
            self.state.replicate()
            self.is_led = False
            self.update_admission()

    def end_replication(self) -> None:
        """Take records of clients, and show all: this is the only copy. The log's lock is held."""
        with self.lock:
            self._commit_limit, self.is_led = None, False
            self.state.end_replication()
            self.update_admission()

    def was_truncated_since(self, generation: int) -> bool:
        """Say whether offsets were taken back since `generation` was read."""
        with self.lock:  # by a truncation under way, too
            return self.truncation_generation != generation

    # Units

    def read_units(self, unit: int, count: int) -> bytes:
        """Return `count` units from `unit` on, fewer only at the end or where memory ends and the
        files begin. Raise `CorruptionError` or `FileNotFoundError` when the files do not have them
        as they were written."""
        count = min(count, self.next_unit - unit)
        if count <= 0:
            return b""
        held = self.log.appender.read_units(self.handle, unit, count)
        if held:
            return held
        with self.lock:
            first_held, _ = self.log.appender.held_units(self.handle)
            if unit >= first_held:
                return self.log.appender.read_units(self.handle, unit, count)
            return self._read_files(unit, min(count, first_held - unit))

    def read_unit(self, unit: int) -> bytes:
        """Return one unit as `read_units` does, faster when its file was read before."""
        held = self.log.appender.read_units(self.handle, unit, 1)
        if held:
            return held
        number = unit // self.units.file_units
        with self.lock:
            read = self._files_read
            path = None if read is None else read.get(number)
            if path is not None:
                return self.units.read_in(path, unit)
            data = self.read_units(unit, 1)
            if data:
                if read is None or len(read) >= _FILES_READ_MAX:
                    read = self._files_read = {}
                read[number] = self.units.path_of(unit)
            return data

    def _read_files(self, unit: int, count: int) -> bytes:
        size = self.units.file_units
        for first in range(unit - unit % size, min(unit + count, self.state.queue_first), size):
            path = self.units.path_of(first)
            if not self.units.is_filled(path):
                relative = sums_path(self.shard, self.kind, path)
                if not self._sealed.check(relative, path):
                    raise CorruptionError(path, position=0, reason="it has no checksums")
        data = self.units.read(unit, count)
        if len(data) < count * self.units.unit_size:
            position = unit % size * self.units.unit_size
            path = self.units.path_of(unit)
            raise CorruptionError(path, position=position, reason="this queue file is short")
        return data

    def unit_of(self, offset: int) -> int:
        """Return the number of the unit that holds `offset`, or would be the first after it."""
        if self.kind is QueueKind.SIMPLE:
            return offset
        last = self._last_lookup
        if last is None:
            last = self._last_lookup = [(0, 0)]
        known_offset, known_unit = last[0]
        high = self.next_unit
        held, _ = self.log.appender.held_units(self.handle)
        if known_offset <= offset and held <= known_unit < high:
            low = known_unit  # in memory: no look at the files
        else:
            low = self.first_unit
            if known_offset <= offset and low <= known_unit < high:
                low = known_unit
        if low == known_unit:
            low, high = self._step_on(offset, low, high)
        while low < high:
            middle = (low + high) // 2
            if self.batch_end(middle) <= offset:
                low = middle + 1
            else:
                high = middle
        last[0] = (offset, low)
        return low

    def _step_on(self, offset: int, low: int, high: int) -> tuple[int, int]:
        """Narrow [low, high] down around the unit of `offset` in growing steps: a sequential reader
        is a few units after the last look-up."""
        step = 1
        while low + step <= high:
            if self.batch_end(low + step - 1) > offset:
                return low, low + step - 1
            low += step
            step *= 2
        return low, high

    def batch_end(self, unit: int) -> int:
        """Return the offset after the last message of a batch unit; of one that was cut off
        meanwhile, an offset that no shard reaches."""
        rows = self.rows(unit, 1)
        return rows[0].end_offset if rows else _NO_OFFSET

    def rows(self, unit: int, count: int) -> list[UnitRow]:
        """Return what units say, alike for both kinds of queue."""
        return unit_rows(self.kind, unit, self.read_units(unit, count))

    def rows_between(self, unit: int, stop: int) -> list[UnitRow]:
        """Return what all units of [unit, stop) say, from files and from memory; fewer when the
        shard was cut meanwhile."""
        rows: list[UnitRow] = []
        while unit + len(rows) < stop:
            more = self.rows(unit + len(rows), stop - unit - len(rows))
            if not more:
                break
            rows += more
        return rows

    def first_unit_at(self, position: int) -> UnitRow | None:
        """Return the first live unit whose record is at or after `position` of the log."""
        rows = self.rows(self._unit_at(position), 1)
        return rows[0] if rows else None  # none: it was the last, or is cut off

    def has_record_at(self, position: int) -> bool:
        """Say whether a live record is stored at or after `position` of the log."""
        return self._record_from(self._unit_at(position), self.next_unit)[1] is not None

    def _unit_at(self, position: int) -> int:
        low, high = self.unit_of(self.earliest), self.next_unit
        while low < high:
            middle = (low + high) // 2
            unit, row = self._record_from(middle, high)
            if row is not None and row.position < position:
                low = unit + 1
            else:
                high = middle
        return low

    def _record_from(self, unit: int, stop: int) -> tuple[int, UnitRow | None]:
        """Return the first unit of [unit, stop) that has a record, and its number."""
        while unit < stop:
            rows = self.rows(unit, min(_ROWS_PER_STEP, stop - unit))
            for number, row in enumerate(rows, unit):
                if not row.is_blank:
                    return number, row
            if not rows:
                break  # the shard was cut, or deleted, meanwhile
            unit += len(rows)
        return stop, None

    def first_live_position(self) -> int | None:
        """Return the position of the first record that can be read, or None when there is none."""
        _, row = self._record_from(self.unit_of(self.earliest), self.next_unit)
        return None if row is None else row.position

    @property
    def first_unit(self) -> int:
        """The oldest unit that the files may hold."""
        if self.kind is QueueKind.SIMPLE:
            return self.earliest
        first = self.units.first_unit()
        return self.log.appender.held_units(self.handle)[0] if first is None else first

    def position_of(self, offset: int) -> int | None:
        """Return where the record (or the batch) of `offset` is stored in the log, or None."""
        unit = self.read_units(self.unit_of(offset), 1)
        if not unit or unit == PRE_BLANK:
            return None
        return int.from_bytes(unit[:8], "big", signed=True)

    def offset_at(self, position: int) -> int:
        """Return the first live offset whose record is at or after `position` of the log."""
        row = self.first_unit_at(position)
        return self.next_offset if row is None else row.first_offset

    def blocks_from(self, timestamp_ms: int) -> Iterator[int]:
        """Yield the blocks of offsets that may hold a record of this time or a later one."""
        with self.lock:
            # Blocks that the appender still holds are not known here, and so are candidates.
            first, unfinished = self.earliest // TIME_BLOCK, self.next_offset // TIME_BLOCK
            blocks = list(self.times.candidates(timestamp_ms, first, unfinished))
        yield from blocks
        yield unfinished

    # Upkeep

    def drain(self) -> int:
        """Move units from memory to the files; return the number of bytes moved. The caller
        must have the shard saved with the next checkpoint."""
        with self.lock:
            first, data = self.log.appender.peek_units(self.handle)
            size = self.units.unit_size
            if data:
                self.check_units()
                self.units.write(first, data)
                self._extend_checksum(first, data)
                self.log.appender.drop_units(self.handle, first + len(data) // size)
            blocks = self.log.appender.drain_times(self.handle)
            if blocks:
                self.times.append(blocks)
            return len(data)

    def _extend_checksum(self, first: int, data: bytes) -> None:
        """Keep the checksum over the units of the newest file, from its begin on. Those before
        `first` were checked against the old one."""
        state = self.state
        size = self.units.unit_size
        stop = first + len(data) // size
        file_first = stop - 1 - (stop - 1) % self.units.file_units
        if state.queue_first == file_first and file_first + state.queue_units == first:
            state.queue_crc = zlib.crc32(data, state.queue_crc)
        elif first <= file_first:
            state.queue_crc = zlib.crc32(data[(file_first - first) * size :])
        else:
            state.queue_crc = zlib.crc32(self.units.read(file_first, stop - file_first))
        state.queue_first, state.queue_units = file_first, stop - file_first

    def pack_state(self, latest: int, commit: int, position: int) -> bytes:
        """Return the state as of the given ends, to be written to a file; what the log says below
        `position` is in it."""
        with self.lock:
            state = self.state
            state.latest_offset = Offset(latest)
            state.commit_offset = Offset(min(commit, latest))
            state.folded_until = Position(position)
            checksum = state.queue_crc
            # What was found damaged stays so until it is rebuilt, whatever was added since.
            state.queue_crc ^= self._suspect
            try:
                return state.to_bytes()
            finally:
                state.queue_crc = checksum

    def check_units(self) -> bool:
        """Return False when the newest file does not hold the units that were written; checked
        once, at the first use after opening."""
        if self._checked:
            return not self._suspect
        with self.lock:
            if not self._checked:
                self._suspect = not self._tail_is_good()
                self._checked = True
            return not self._suspect

    def _tail_is_good(self) -> bool:
        state = self.state
        if state.queue_units == 0:
            return True
        try:
            data = self.units.read(state.queue_first, state.queue_units)
        except FileNotFoundError:
            return False
        size = state.queue_units * self.units.unit_size
        return len(data) == size and zlib.crc32(data) == state.queue_crc

    def mark_rebuilt(self, stop: int) -> None:
        """The files up to unit `stop` were just written anew from the log."""
        self._checked, self._suspect = True, False
        self._last_lookup = None
        self._files_read = None
        self.restore_checksum(stop)

    def tail_file_exists(self, stop: int) -> bool:
        """Return whether the file of the last unit before `stop` is there, if there must be one."""
        if stop <= self.first_unit or stop == 0:
            return True
        return stop - 1 - (stop - 1) % self.units.file_units in self.units.first_units()

    def end_if_truncated(self, offset: int) -> int:
        """Return where the shard ends when it is cut at `offset`: a batch goes whole."""
        with self.lock:
            offset = min(offset, self.next_offset)
            unit = self.unit_of(offset)
            if self.kind is QueueKind.SIMPLE or unit >= self.next_unit:
                return offset
            return min(offset, self.rows(unit, 1)[0].first_offset)

    def cut(self, offset: int, *, with_state: bool = True, with_files: bool = True) -> int:
        """Drop everything from `offset` on from the queue; the log's bytes stay, dead. A batch
        that reaches past `offset` goes whole; returns where the shard ends now.

        Without `with_files`, the caller calls `trim_files` when the state is saved: until then
        readers in other processes, and a start, believe the old one.
        """
        with self.lock:
            unit = self.unit_of(offset)
            offset = self.end_if_truncated(offset)
            self.check_units()
            self.log.appender.truncate_queue(self.handle, offset, unit)
            first_held, _ = self.log.appender.held_units(self.handle)
            if unit <= first_held:
                if with_files:
                    self.units.cut(unit)
                else:
                    self.units.reopen(unit)
                self.restore_checksum(unit)
            self.times.truncate_from(offset // TIME_BLOCK)
            if self._commit_limit is not None:
                self._commit_limit = min(self._commit_limit, offset)
            self.repaired = frozenset(repaired for repaired in self.repaired if repaired < offset)
            forgotten: list[int] = []
            if with_state:
                forgotten = self.state.truncate_from(offset)
                self.update_admission()
            self._last_lookup = None
            self._files_read = None
            self.truncation_generation += 1
            restore_producers(self, forgotten, offset)
            return offset

    def trim_files(self) -> None:
        """Clear the files after the last unit that was moved there."""
        with self.lock:
            self.units.cut(self.log.appender.held_units(self.handle)[0])

    def clear_queue(self) -> None:
        """Drop the whole queue, also when its files are gone already."""
        with self.lock:
            self.log.appender.truncate_queue(self.handle, 0, 0)
            self.units.cut(0)
            self.times.clear()
            self.mark_rebuilt(0)
            self.truncation_generation += 1

    def drop(self, position: int) -> None:
        """The shard was deleted when the log ended at `position`: its queue is empty, its state
        knows nothing any more. Its files are of no use and go later (`remove_files`)."""
        with self.lock:
            if self.next_offset or self.next_unit:
                self.log.appender.truncate_queue(self.handle, 0, 0)
                self.state.add_truncation(position, 0)
            state = self.state
            state.queue_first = state.queue_units = state.queue_crc = 0
            self._checked, self._suspect = True, False
            self._last_lookup = None
            self._files_read = None
            self.state.clear()
            self.state.drop(position)
            self._commit_limit = None
            self.is_led = False
            self.update_admission()
            self.truncation_generation += 1

    def restart_at(self, offset: int) -> None:
        """Drop all records: the shard goes on at `offset`. The caller has written so into the
        journal, or found it there."""
        with self.lock:
            unit = offset if self.kind is QueueKind.SIMPLE else self.next_unit
            if self.kind is QueueKind.SIMPLE:
                self.units.remove_all()
            else:
                self.drain()
            self.log.appender.restart_queue(self.handle, offset, unit)
            self.times.clear()
            self.mark_rebuilt(unit)
            self.repaired = _NONE_HEALED
            self.state.restart_at(offset)
            if self._commit_limit is not None:
                self._commit_limit = offset
            self.update_admission()
            self.truncation_generation += 1

    def remove_files(self) -> bool:
        """Remove what a deleted shard has on disk; return False when it is not deleted. The caller
        makes that durable."""
        with self.lock:
            if not self.state.dropped:
                return False
            self.units.remove_all()
            self.times.remove()
            return True

    def revive(self) -> None:
        """Let a deleted shard exist again, empty. Nothing of what it was may come back, also after
        a power cut."""
        with self.lock:
            if self.units.names():
                self.units.remove_all()
                self.units.sync_removal()
            self.times.clear()
            self.state.dropped = False
            self.update_admission()

    def restore_checksum(self, stop: int) -> None:
        """Compute the checksum of the newest file's units below `stop` anew, from bytes that were
        just written or checked."""
        first = stop - stop % self.units.file_units
        try:
            data = self.units.read(first, stop - first) if stop > first else b""
        except FileNotFoundError:
            # A replay of dead records may cut a queue below the first unit that the log still has.
            data, stop = b"", first
        self.state.queue_first, self.state.queue_units = first, stop - first
        self.state.queue_crc = zlib.crc32(data)
