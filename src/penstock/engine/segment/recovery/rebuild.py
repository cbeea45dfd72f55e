"""Builds derived files again from the commit log, while the store runs.

A shard's queue: the units that the appender still holds in memory are right; what is rebuilt is the
part in files, up to the first unit held. The shard's lock is held all the time, so that nothing
drains meanwhile; appends to it go on.

The key index: all of it, because its files have entries of all shards. The log's lock is held all
the time; appends wait.

What damage took from the log cannot be derived from it again. Those offsets are noted as lost in
the states of their shards: a reader must learn that something was there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Final

from penstock.codec.codes import (
    REPLAY_DAMAGE,
    REPLAY_LEAP,
    REPLAY_NO_INDEX_ROOM,
    REPLAY_TRUNCATE_BATCH_QUEUE,
)
from penstock.codec.format import BATCH_UNIT, CONTROL_SUFFIX, PRE_BLANK, TIME_BLOCK, Damage
from penstock.codec.select import Appender, core
from penstock.engine.segment.index.key_index import KeyIndex
from penstock.engine.segment.log.commit_log import CommitLog
from penstock.engine.segment.log.log_files import FileSet
from penstock.engine.segment.queue.shard import ShardLog
from penstock.engine.segment.queue.unit_scans import find_lost
from penstock.platform.log import get_logger
from penstock.record import QueueKind

_log: Final = get_logger(__name__)
_HOST: Final = bytes(8)
_RECORD_SIZE_MAX: Final = 1 << 30
_BASE_OFFSET: Final = 4
"""The field of a batch unit."""


def rebuild_queue(files: FileSet, shard: ShardLog, end: int) -> None:
    """Write the queue files of `shard` anew from the records below `end` of the log."""
    with shard.lock:
        stop, _ = shard.log.appender.held_units(shard.handle)
        _log.warning("queue_rebuilt", shard=shard.shard.name, units=stop)
        shard.units.remove_all()
        shard.times.clear()
        builder = _SimpleBuilder if shard.kind is QueueKind.SIMPLE else _BatchBuilder
        builder(files, shard).run(end, stop)
        shard.mark_rebuilt(stop)
        shard.state.set_lost(find_lost(shard))


class _Builder(ABC):
    """Replays the log for one shard only, file by file, so that memory stays bounded."""

    def __init__(self, files: FileSet, shard: ShardLog) -> None:
        self._files: Final = files
        self._shard: Final = shard
        self._appender: Final[Appender] = core.Appender(_HOST, _HOST, _RECORD_SIZE_MAX)
        self._truncations: Final = sorted(shard.state.truncations)

    def run(self, end: int, stop: int) -> None:
        """Write units below number `stop` from the log below `end`."""
        position = self._files.start
        while position < end:
            position = self._step(position, end, stop)
            self._write_all(stop)
        self._finish(stop)

    def _step(self, position: int, end: int, stop: int) -> int:
        base = self._files.base_of(position)
        limit = min(end, base + self._files.file_size)
        while self._truncations and self._truncations[0][0] <= position:
            self._truncate_at(self._truncations.pop(0)[1])
        if self._truncations:
            limit = min(limit, self._truncations[0][0])
        buffer = self._files.buffer(base)
        after, _, status, damage, specials = self._appender.replay(
            buffer, base, position, limit, False, CONTROL_SUFFIX, False, self._files.strict
        )
        if status == REPLAY_TRUNCATE_BATCH_QUEUE:
            raw = core.decode_raw(buffer, base, specials[-1][0], True)
            assert not isinstance(raw, Damage), "the replay has just read it"
            self._cut_batch(specials[-1][1], raw.queue_offset)
            return after
        if status == REPLAY_LEAP:
            # A copy that began anew: what it had before is dead.
            self._write_all(stop)
            self._appender.remove_queue(specials[-1][1])
            return after
        if status == REPLAY_DAMAGE or after < limit:
            return _after_damage(self._files, base, after, damage, limit)
        return after

    def _truncate_at(self, offset: int) -> None:
        handle = self._handle()
        if handle >= 0 and self._appender.next_offset(handle) > offset:
            self._truncate(handle, offset)

    def _cut_batch(self, handle: int, offset: int) -> None:
        if handle == self._handle():
            self._truncate(handle, offset)
        else:
            # Another shard's units are thrown away anyway.
            self._appender.truncate_queue(handle, offset, self._appender.next_unit(handle))

    def _handle(self) -> int:
        for handle, topic, partition, _, _, _ in self._appender.queues():
            if (topic, partition) == self._shard.shard:
                return handle
        return -1

    def _write_all(self, stop: int) -> None:
        mine = self._handle()
        for handle in self._appender.dirty_queues():
            if handle == mine:
                self._write_units(*self._appender.peek_units(handle), stop)
                self._shard.times.append(self._appender.drain_times(handle))
            self._appender.drop_units(handle, self._appender.next_unit(handle))

    @abstractmethod
    def _truncate(self, handle: int, offset: int) -> None:
        """Drop the units from `offset` on."""

    @abstractmethod
    def _write_units(self, first: int, units: bytes, stop: int) -> None:
        """Take units from number `first` on; those at and after `stop` are in memory."""

    @abstractmethod
    def _finish(self, stop: int) -> None: ...


class _SimpleBuilder(_Builder):
    _next = 0
    _begun = False

    def _truncate(self, handle: int, offset: int) -> None:
        self._appender.truncate_queue(handle, offset, offset)
        self._shard.units.cut(offset)
        self._shard.times.truncate_from(offset // TIME_BLOCK)
        self._next = min(self._next, offset)

    def _write_units(self, first: int, units: bytes, stop: int) -> None:
        size = self._shard.units.unit_size
        count = max(0, min(len(units) // size, stop - first))
        if not count:
            return
        earliest = self._shard.earliest
        if not self._begun and earliest < first:
            self._shard.units.write(earliest, PRE_BLANK * (first - earliest))
        self._begun = True
        self._shard.units.write(first, units[: count * size])
        self._next = first + count

    def _finish(self, stop: int) -> None:
        """Units of records that damage took from the end say that there were some, as those in
        between and before the first do."""
        first = max(self._next, self._shard.earliest)
        if first < stop:
            self._shard.units.write(first, PRE_BLANK * (stop - first))


class _BatchBuilder(_Builder):
    """Batch units are numbered from the first that the shard ever had, which the log may no longer
    hold: they are collected, and numbered backwards from the first unit held in memory."""

    def __init__(self, files: FileSet, shard: ShardLog) -> None:
        super().__init__(files, shard)
        self._units: list[bytes] = []

    def _truncate(self, handle: int, offset: int) -> None:
        self._write_units(*self._appender.peek_units(handle), 0)
        self._appender.drop_units(handle, self._appender.next_unit(handle))
        self._units = [unit for unit in self._units if _base_offset(unit) < offset]
        self._appender.truncate_queue(handle, offset, len(self._units))

    def _write_units(self, first: int, units: bytes, stop: int) -> None:  # noqa: ARG002 - see `_finish`
        size = BATCH_UNIT.size
        self._units += [units[start : start + size] for start in range(0, len(units), size)]

    def _finish(self, stop: int) -> None:
        held = self._shard.log.appender.read_units(self._shard.handle, stop, 1)
        limit = _base_offset(held) if held else self._shard.next_offset
        kept = [unit for unit in self._units if _base_offset(unit) < limit][-stop:]
        if kept and stop:
            self._shard.units.write(stop - len(kept), b"".join(kept))


def _base_offset(unit: bytes) -> int:
    return int(BATCH_UNIT.unpack(unit)[_BASE_OFFSET])


def _after_damage(files: FileSet, base: int, after: int, damage: Damage | None, limit: int) -> int:
    """Return the first record after bytes that are not records, or `limit`."""
    start = after if damage is None else max(after, damage.position)
    record_position = core.find_record(files.buffer(base), base, start + 1, limit, files.strict)
    return limit if record_position < 0 else record_position


def rebuild_index(
    log: CommitLog, index: KeyIndex, shards: Iterable[ShardLog], now_ms: int
) -> set[ShardLog]:
    """Write the key index anew. Return the shards of which it could not read all records, and
    which know now what they lost. The caller holds the log's lock."""
    files, end = log.files, log.end
    index.detach(log.appender)
    index.clear()
    scratch = core.Appender(_HOST, _HOST, _RECORD_SIZE_MAX)
    index.add_file(scratch, now_ms)
    hurt: set[ShardLog] = set()
    position = files.start
    while position < end:
        base = files.base_of(position)
        stop = min(end, base + files.file_size)
        buffer = files.buffer(base)
        after, _, status, damage, specials = scratch.replay(
            buffer, base, position, stop, True, CONTROL_SUFFIX, False, files.strict
        )
        for handle in scratch.dirty_queues():
            scratch.drop_units(handle, scratch.next_unit(handle))
        if status == REPLAY_NO_INDEX_ROOM:
            index.add_file(scratch, now_ms)
        elif status == REPLAY_TRUNCATE_BATCH_QUEUE:
            _cut_anyhow(scratch, buffer, base, *specials[-1])
        elif status == REPLAY_LEAP:
            scratch.remove_queue(specials[-1][1])
        elif status == REPLAY_DAMAGE or after < stop:
            next_position = _after_damage(files, base, after, damage, stop)
            hurt.update(_mark_lost(shards, after, next_position))
            after = next_position
        position = after
        index.seal_full(scratch)
    index.hand_over(scratch, log.appender)
    return hurt


def _cut_anyhow(
    scratch: Appender, buffer: memoryview, base: int, position: int, handle: int
) -> None:
    """Make room for a record in a queue whose units are not needed."""
    raw = core.decode_raw(buffer, base, position, True)
    assert not isinstance(raw, Damage), "the replay has just read it"
    scratch.truncate_queue(handle, raw.queue_offset, scratch.next_unit(handle))


def _mark_lost(shards: Iterable[ShardLog], start: int, stop: int) -> Iterator[ShardLog]:
    """Note which records lay between two positions of the log."""
    for shard in shards:
        first, end = shard.offset_at(start), shard.offset_at(stop)
        if first < end:
            shard.state.add_lost([(first, end)])
            yield shard
