"""Opening a log after a clean stop, a crash or damage: where it ends, and what belongs to whom.

    start ── checkpoint L ─────────── durable point D ───────── end of what was written
              │ derived files agree     │ every byte was synced   │ the kernel may have kept any part
              └── replay from here ─────┴─────────────────────────┘

Replay gives the queues, the index and the shards' states what the log holds beyond L. At the first
bad record:

  * at or past D it is the torn tail of a crash. The log is cut there: zeroed, later files removed,
    synced, before the first append, because old records would otherwise reappear behind new ones.
    The report counts whole records found behind the cut.
  * before D it is corruption. It is reported and stays where it is: reading it raises, and the
    records behind it are kept.

Without a checkpoint that can be believed (none, or damaged states or index), L is the start of the
log, and everything derived is built again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from penstock.engine.segment.commit_log import CommitLog
from penstock.engine.segment.control import CONTROL_SUFFIX, data_shard, decode, is_control
from penstock.engine.segment.envelope import leader_epoch_of
from penstock.engine.segment.format import PRODUCER, Damage, RawRecord
from penstock.engine.segment.journal import JOURNAL, decode_line
from penstock.engine.segment.shard_log import ShardLog
from penstock.engine.segment.shard_state import ShardState
from penstock.engine.segment.shard_table import ShardTable
from penstock.engine.segment.twin import core
from penstock.errors import RequestError
from penstock.log import get_logger
from penstock.record import Offset, Position, Producer, ShardId

_log: Final = get_logger(__name__)

_DONE, _DAMAGE, _INDEX_FULL, _CUT_FIRST = range(4)
_ZERO_CHUNK: Final = 1 << 20
_ZEROS: Final = bytes(_ZERO_CHUNK)
Progress = Callable[[int, int], None]
"""Called with the bytes looked at and the bytes to look at."""


class DamagedPlace(Struct, frozen=True):
    path: str
    position: int
    reason: str


class RecoveryReport(Struct):
    """What opening a store found and did."""

    clean_stop: bool = True
    from_position: int = 0
    records_scanned: int = 0
    bytes_scanned: int = 0
    end_position: int = 0
    bytes_cut: int = 0
    cut_reason: str | None = None
    records_behind_cut: int = 0
    damaged: list[DamagedPlace] = []
    rebuilt: list[str] = []
    seconds: float = 0.0


class Replay:
    """One pass over the log that fills the queues and the index, and folds control records."""

    def __init__(
        self,
        log: CommitLog,
        table: ShardTable,
        states: dict[ShardId, ShardState],
        durable: int,
        more_index: Callable[[], None],
    ) -> None:
        self._log: Final = log
        self._files: Final = log.files
        self._table: Final = table
        self._states: Final = states
        self._durable: Final = durable
        self._more_index: Final = more_index
        self.report: Final = RecoveryReport(damaged=[], rebuilt=[])
        self.touched: Final[set[ShardLog]] = set()
        """Shards that the replay gave units to."""
        self._cuts: list[tuple[int, ShardId, int]] = []

    def run(self, start: int, progress: Progress | None = None) -> int:
        """Replay from `start` on; return the position at which the log ends."""
        report = self.report
        report.from_position = start
        # What was cut before the checkpoint is cut in the states already.
        self._cuts = sorted(
            (position, shard, offset)
            for shard, state in self._states.items()
            for position, offset in state.truncations
            if position > start
        )
        position = start
        while position < self._files.stop:
            self._cut_shards(position)
            after, ended = self._step(position)
            report.bytes_scanned += after - position
            if progress is not None:
                progress(after - start, max(after, self._durable) - start)
            position = after
            self._table.adopt(self._states)
            self.touched.update(self._table.drain_dirty())
            if ended:
                break
        self._cut_shards(position)
        report.end_position = position
        return position

    def _cut_shards(self, position: int) -> None:
        """Repeat the truncations of shards that happened when the log ended here."""
        while self._cuts and self._cuts[0][0] <= position:
            _, shard, offset = self._cuts.pop(0)
            log = self._table.find(shard)
            if log is not None and log.next_offset > offset:
                log.cut(offset)

    def _step(self, position: int, *, groups: bool = True) -> tuple[int, bool]:
        """Replay up to the end of a file; return where to go on, and whether the log ended."""
        base = self._files.base_of(position)
        file_end = base + self._files.file_size
        stop = min([file_end, *(cut for cut, _, _ in self._cuts[:1] if cut > position)])
        buffer = self._files.buffer(base)
        after, records, status, damage, specials = self._log.appender.replay(
            buffer, base, position, stop, True, CONTROL_SUFFIX, groups
        )
        self.report.records_scanned += records
        self._table.adopt(self._states)
        if status == _CUT_FIRST:
            bad_position, handle = specials.pop()
            self._cut_batch_queue(buffer, base, bad_position, handle)
        for special, handle in specials:
            self._fold(buffer, base, special, handle)
        if status == _INDEX_FULL:
            self._more_index()
        if status == _DAMAGE:
            assert damage is not None
            return self._behind_damage(buffer, base, damage, after)
        if status == _DONE and after < stop:
            # Zeros: nothing was ever written here, unless it should be there.
            if after >= self._durable:
                return after, True
            reason = Damage(after, "zeros where records were synced")
            return self._behind_damage(buffer, base, reason, after)
        return after, False

    def _cut_batch_queue(self, buffer: memoryview, base: int, position: int, handle: int) -> None:
        raw = core.decode_raw(buffer, base, position, True)
        assert isinstance(raw, RawRecord), "the replay has just read it"
        self._table.by_handle(handle).cut(raw.queue_offset)

    def _behind_damage(
        self, buffer: memoryview, base: int, damage: Damage, position: int
    ) -> tuple[int, bool]:
        file_end = base + self._files.file_size
        if position >= self._durable:
            self.report.cut_reason = damage.reason
            return position, True
        inside = damage.position - base
        place = DamagedPlace(self._files.path_of(base), inside, damage.reason)
        self.report.damaged.append(place)
        _log.error("log_damaged", path=place.path, position=inside, reason=damage.reason)
        if damage.position > position:
            # The first records of a group whose rest is damaged: they were acknowledged.
            after, records, _, _, specials = self._log.appender.replay(
                buffer, base, position, damage.position, True, CONTROL_SUFFIX, False
            )
            self.report.records_scanned += records
            self._table.adopt(self._states)
            for special, handle in specials:
                self._fold(buffer, base, special, handle)
            position = max(after, damage.position)
        found = core.find_record(buffer, base, position + 1, file_end)
        if found < 0:
            return max(file_end, min(self._durable, file_end)), False
        return found, False

    def _fold(self, buffer: memoryview, base: int, position: int, handle: int) -> None:
        """Take what a record says beyond its queue unit into the state of its shard."""
        raw = core.decode_raw(buffer, base, position, True)
        if isinstance(raw, Damage):
            return
        log = self._table.by_handle(handle)
        if log.shard == JOURNAL:
            self._fold_line(log, raw)
        elif is_control(log.shard):
            self._fold_command(data_shard(log.shard), raw)
        fold(log, raw)

    def _fold_line(self, journal: ShardLog, raw: RawRecord) -> None:
        if raw.queue_offset < journal.state.control_offset:
            return
        journal.state.control_offset = Offset(raw.queue_offset + 1)
        try:
            line = decode_line(raw.body)
        except RequestError as error:
            _log.error("journal_line_ignored", position=raw.position, error=str(error))
            return
        found = self._table.find(line.shard)
        state = self._states.get(line.shard) if found is None else found.state
        if state is None:
            self._table.add(line.shard, ShardState(line.kind), 0, 0).state.config = line.config
        elif not any(position > raw.position for position, _ in state.truncations):
            state.dropped = False
            state.config = line.config

    def _fold_command(self, shard: ShardId, raw: RawRecord) -> None:
        found = self._table.find(shard)
        state = self._states.get(shard) if found is None else found.state
        if state is None:
            return
        try:
            command = decode(raw.body)
        except RequestError as error:
            _log.error("control_record_ignored", shard=shard.name, error=str(error))
            return
        state.apply(command, Offset(raw.queue_offset))


def fold(log: ShardLog, raw: RawRecord) -> None:
    """Fold one record into the state of its shard; folding it again changes nothing."""
    state = log.state
    end = Position(raw.position + raw.size)
    if end <= state.folded_until:
        return
    written = producer_of(raw)
    if written is not None:
        producer, count = written
        state.producers.remember(producer, count, raw.queue_offset, raw.store_timestamp_ms)
    epoch = leader_epoch_of(raw.sys_flag, raw.prepared_transaction_offset)
    if epoch > max(0, state.epochs.latest):
        state.epochs.note(epoch, raw.queue_offset)
        log.epoch = epoch
    state.folded_until = end


def producer_of(raw: RawRecord) -> tuple[Producer, int] | None:
    """Return who wrote the records that begin with this one, and how many they are."""
    text = dict(raw.properties).get(PRODUCER)
    if text is None:
        return None
    try:
        producer_id, epoch, sequence, count = map(int, text.split(","))
    except ValueError:
        return None
    return Producer(producer_id, epoch, sequence), count


def clear_tail(log: CommitLog, end: int) -> tuple[int, int]:
    """Zero what lies behind `end`; return (bytes that were not zero, whole records among them)."""
    files = log.files
    dirty = records = 0
    for base in files.bases:
        if base + files.file_size <= end:
            continue
        buffer = files.buffer(base)
        start = max(end, base)
        found = _count_dirty(buffer, start - base)
        dirty += found
        if found:
            records += _count_records(buffer, base, start)
        del buffer
        if base > files.base_of(end):
            continue
        if found:
            files.zero(start)
    files.remove_from(files.base_of(end) + files.file_size)
    return dirty, records


def _count_dirty(buffer: memoryview, start: int) -> int:
    dirty = 0
    for at in range(start, len(buffer), _ZERO_CHUNK):
        chunk = bytes(buffer[at : at + _ZERO_CHUNK])
        if chunk != _ZEROS[: len(chunk)]:
            dirty += len(chunk.rstrip(b"\0"))
    return dirty


def _count_records(buffer: memoryview, base: int, start: int) -> int:
    records = 0
    end = base + len(buffer)
    position = core.find_record(buffer, base, start, end)
    while position >= 0:
        position, seen, _ = core.check_log(buffer, base, position, end)
        records += seen
        position = core.find_record(buffer, base, position, end) if seen else -1
    return records
