"""Reads the whole commit log once, and derives from it what the other files should hold.

Every record is checked (its checksums, its identity, its position, its group). The units, index
entries and times that follow from it go to the checks that compare them with the files. Memory is
bounded by one log file: everything derived is handed on and forgotten.

    log ──▶ replay ──┬──▶ units            QueueCheck
                     ├──▶ index entries    IndexCheck
                     └──▶ block times      QueueCheck

Damage past the durable point, in a store that was not closed, is the torn tail of a crash; before
it, and anywhere in a closed store of ours, it is corruption.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from penstock.codec.codes import (
    REPLAY_DAMAGE,
    REPLAY_DONE,
    REPLAY_LEAP,
    REPLAY_NO_INDEX_ROOM,
    REPLAY_TRUNCATE_BATCH_QUEUE,
)
from penstock.codec.format import (
    CONTROL_SUFFIX,
    HOLE_REASON,
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT_SIZE,
    Damage,
    RawRecord,
    index_file_size,
)
from penstock.codec.select import Appender, core
from penstock.engine.segment.inspect.index_check import IndexCheck
from penstock.engine.segment.inspect.queue_check import QueueCheck
from penstock.engine.segment.inspect.report import DamagedSpans, Findings, TornTail
from penstock.engine.segment.readonly.snapshot import Snapshot
from penstock.errors import CorruptionError
from penstock.record import ShardId

_HOST: Final = bytes(8)
_RECORD_SIZE_MAX: Final = 1 << 31
_SLOTS: Final = 1
_ENTRIES_MAX: Final = 1 << 16
"""Index entries derived in one step; no record has more keys than this."""
_ENTRIES_AT: Final = INDEX_HEADER.size + INDEX_SLOT_SIZE * _SLOTS
_CHUNK_SIZE: Final = 1 << 20
_ZEROS: Final = bytes(_CHUNK_SIZE)


class _DerivedIndex:
    """Index files in memory that the replay fills, and from which entries are taken in order."""

    def __init__(self, appender: Appender) -> None:
        self._appender: Final = appender
        self._files: list[bytearray] = []
        self._taken = 1
        self.add()

    def add(self) -> None:
        file = bytearray(index_file_size(_SLOTS, _ENTRIES_MAX))
        self._files.append(file)
        self._appender.attach_index(file, _SLOTS, _ENTRIES_MAX)

    def drain(self) -> bytes:
        """Return the entries since the last call."""
        parts = []
        while self._files:
            file = self._files[0]
            count = max(1, INDEX_HEADER.unpack_from(file)[-1])
            start, stop = (_ENTRIES_AT + INDEX_ENTRY.size * n for n in (self._taken, count))
            parts.append(bytes(file[start:stop]))
            self._taken = count
            if count < _ENTRIES_MAX or len(self._files) == 1:
                break
            self._appender.release_index()
            del self._files[0]
            self._taken = 1
        return b"".join(parts)


class LogCheck:
    def __init__(
        self,
        snapshot: Snapshot,
        queues: QueueCheck,
        index: IndexCheck,
        damaged: DamagedSpans,
        findings: Findings,
    ) -> None:
        self._files: Final = snapshot.files
        self._findings: Final = findings
        self._queues: Final = queues
        self._index: Final = index
        self._damaged: Final = damaged
        self._closed: Final = not snapshot.unclosed
        self._own: Final = snapshot.is_own
        self._durable: Final = _durable_end(snapshot)
        self._appender: Final[Appender] = core.Appender(_HOST, _HOST, _RECORD_SIZE_MAX)
        self._derived: Final = _DerivedIndex(self._appender)
        self._truncations: Final = _truncations(snapshot)
        self._size: Final = len(self._files.bases) * self._files.file_size
        self._ends_damaged = False
        """No sound record was found after the last damage."""

    def run(self) -> int:
        """Check all files; return where the log ends."""
        position = self._files.start
        for base in self._files.bases:
            self._findings.checked.log_files += 1
            position = max(position, base)
            position, ended = self._check_file(base, position)
            if ended:
                break
        self._check_rest(position)
        self._truncate_shards(self._files.stop)
        self._index.finish()
        self._queues.finish()
        return position

    @property
    def newest_ms(self) -> int | None:
        """When the newest record was stored; None when the log ends with damage."""
        return None if self._ends_damaged else self._appender.last_store_timestamp_ms

    def _check_file(self, base: int, position: int) -> tuple[int, bool]:
        """Check the records of one file; return where to go on, and whether the log ended."""
        file_end = base + len(self._files.buffer(base))
        while position < file_end:
            self._truncate_shards(position)
            after, ended = self._step(base, position, file_end)
            self._findings.checked.log_bytes += after - position
            self._findings.progress("commit log", self._findings.checked.log_bytes, self._size)
            position = after
            if ended:
                return position, True
        return position, False

    def _step(self, base: int, position: int, file_end: int) -> tuple[int, bool]:
        stop = min([file_end, *(cut for cut, _, _ in self._truncations[:1] if cut > position)])
        buffer = self._files.buffer(base)
        after, status, damage = self._replay(buffer, base, position, stop, groups=True)
        if status == REPLAY_DAMAGE:
            assert damage is not None
            if after >= self._durable and damage.reason != HOLE_REASON:
                return self._end_at(after, damage.reason)
            if damage.position > after:
                # The first records of a group whose rest is damaged: they are served.
                again, _, _ = self._replay(buffer, base, after, damage.position, groups=False)
                after = max(again, damage.position)
            return self._after_damage(buffer, base, Damage(after, damage.reason), file_end), False
        if status == REPLAY_DONE and after < stop:
            if after >= self._durable:
                return after, True
            reason = Damage(after, "zeros where records were synced")
            return self._after_damage(buffer, base, reason, file_end), False
        return after, False

    def _replay(
        self, buffer: memoryview, base: int, start: int, stop: int, *, groups: bool
    ) -> tuple[int, int, Damage | None]:
        """Replay a part of the log, and hand on what follows from it."""
        after, records, status, damage, specials = self._appender.replay(
            buffer, base, start, stop, True, CONTROL_SUFFIX, groups, self._files.strict
        )
        self._findings.checked.records += records
        if records:
            self._ends_damaged = False
        if status in (REPLAY_TRUNCATE_BATCH_QUEUE, REPLAY_LEAP):
            position, handle = specials[-1]
            raw = core.decode_raw(buffer, base, position, True)
            assert isinstance(raw, RawRecord), "the replay has just read it"
            self._queues.check_derived(self._appender)
            is_cut = status == REPLAY_TRUNCATE_BATCH_QUEUE
            change = self._queues.cut if is_cut else self._queues.restart
            change(self._appender, handle, raw.queue_offset)
        if status == REPLAY_NO_INDEX_ROOM:
            self._derived.add()
        self._queues.check_derived(self._appender)
        self._index.check_entries(self._derived.drain())
        return after, status, damage

    def _after_damage(self, buffer: memoryview, base: int, damage: Damage, file_end: int) -> int:
        """Report damage; return where the next whole record begins, or else the log ends."""
        self._ends_damaged = True
        path = self._files.path_of(base)
        self._findings.add(path, damage.position - base, damage.reason)
        record_position = core.find_record(
            buffer, base, damage.position + 1, file_end, self._files.strict
        )
        ends_here = damage.position < self._durable <= file_end and damage.reason != HOLE_REASON
        end = self._durable if ends_here else file_end
        after = end if record_position < 0 else record_position
        self._damaged.add(damage.position, after)
        return after

    def _end_at(self, position: int, reason: str) -> tuple[int, bool]:
        base = self._files.base_of(position)
        inside = position - base
        if self._closed and self._own:
            self._findings.add(self._files.path_of(base), inside, reason)
        else:
            self._findings.torn_tail = TornTail(self._files.path_of(base), inside, reason)
        return position, True

    def _check_rest(self, end: int) -> None:
        """After the end there is nothing but zeros, unless a crash or a writer put it there."""
        if not (self._closed and self._own) or self._findings.entries:
            return
        for base in self._files.bases:
            if base + self._files.file_size <= end:
                continue
            # What was allocated and never written is most of a young log, and need not be read.
            for start, stop in self._files.written_ranges(max(base, end)):
                position = self._first_not_zero(base, start, stop)
                if position is not None:
                    reason = "bytes after the end of the log are not zero"
                    self._findings.add(self._files.path_of(base), position - base, reason)
                    return

    def _first_not_zero(self, base: int, start: int, stop: int) -> int | None:
        buffer = self._files.buffer(base)
        for position in range(start, stop, _CHUNK_SIZE):
            chunk = bytes(buffer[position - base : min(position + _CHUNK_SIZE, stop) - base])
            if chunk != _ZEROS[: len(chunk)]:
                return position + len(chunk) - len(chunk.lstrip(b"\0"))
        return None

    def _truncate_shards(self, position: int) -> None:
        """Repeat the truncations of shards that happened when the log ended here."""
        while self._truncations and self._truncations[0][0] <= position:
            _, shard, offset = self._truncations.pop(0)
            for handle, topic, partition, _, next_offset, _ in self._appender.queues():
                if (topic, partition) == shard and next_offset > offset:
                    self._queues.cut(self._appender, handle, offset)


def _durable_end(snapshot: Snapshot) -> int:
    """Return the position below which every byte of the log was promised: what was synced and,
    after a clean stop, everything that a checkpoint or a queue speaks of."""
    ends = [snapshot.durable]
    if not snapshot.unclosed:
        if snapshot.point is not None and snapshot.point.clean:
            ends.append(snapshot.point.position)
        for log in snapshot.shards.values():
            with suppress(CorruptionError):
                ends.append(snapshot.end_for(log))
    return max(ends)


def _truncations(snapshot: Snapshot) -> list[tuple[int, ShardId, int]]:
    states = {} if snapshot.known is None else snapshot.known.states
    return sorted(
        (position, shard, offset)
        for shard, state in states.items()
        for position, offset in state.truncations
    )
