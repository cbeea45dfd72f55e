"""Opening a log after a clean stop, a crash or damage: where it ends, and what belongs to whom.

    start ── checkpoint L ─────────── durable point D ───────── end of what was written
              │ derived files agree     │ every byte was synced   │ kept by the kernel in any part
              └── replay from here ─────┴─────────────────────────┘

Replay gives the queues, the index and the shards' states what the log holds beyond L. At the first
bad record:

  * at or past D it is the torn tail of a crash. The log is cut there: zeroed, later files removed,
    synced, before the first append, because old records would otherwise reappear after new ones.
    The report counts whole records found after the cut.
  * before D it is corruption. It is reported and stays where it is: reading it raises, and the
    records after it are kept.

Without a checkpoint that can be believed (none, or damaged states or index), L is the start of the
log, and everything derived is built again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.codec.codes import (
    REPLAY_DAMAGE,
    REPLAY_DONE,
    REPLAY_LEAP,
    REPLAY_NO_INDEX_ROOM,
    REPLAY_TRUNCATE_BATCH_QUEUE,
)
from penstock.codec.envelope import leader_epoch_of
from penstock.codec.format import (
    BATCH_COUNT_MAX,
    CONTROL_SUFFIX,
    GAP_MAX,
    HOLE_REASON,
    RECORD_SIZE_MIN,
    Damage,
    RawRecord,
)
from penstock.codec.select import core
from penstock.engine.segment.control.control_records import (
    Command,
    control_shard,
    data_shard,
    decode,
    is_control,
)
from penstock.engine.segment.control.shard_catalog import (
    CATALOG,
    CreateEntry,
    DropEntry,
    RestartEntry,
    TruncateEntry,
    decode_entry,
)
from penstock.engine.segment.log.commit_log import CommitLog
from penstock.engine.segment.queue.producer_history import producer_of, restore_producers
from penstock.engine.segment.queue.shard import ShardLog
from penstock.engine.segment.queue.shard_state import ShardState
from penstock.engine.segment.queue.shard_table import ShardTable
from penstock.engine.segment.recovery.damaged_record import DamagedRecords, offsets_of_batch
from penstock.engine.segment.recovery.report import DamagedPlace, Progress, RecoveryReport
from penstock.errors import CorruptionError, RequestError
from penstock.platform.log import get_logger
from penstock.record import Offset, QueueKind, ShardId

_log: Final = get_logger(__name__)

_ZEROS_FOUND: Final = "zeros where records were synced"
SIZE_UNKNOWN: Final = 1 << 62
"""More than any queue accounts for."""


class Nameless(NamedTuple):
    """Damage at `position` that took `size` bytes: up to `records` records of unknown shards. If
    they were batches of one shard, they had up to `offsets` offsets."""

    position: int
    size: int
    records: int
    offsets: int


class Replay:
    """One pass over the log that fills the queues and the index, and folds control records.

    `latest` says how far each shard is known to have come, from its state, up to position `known`,
    or from what is found; `durable` up to where every byte was on the device. After a `clean` stop
    there is no torn tail: whatever is bad was damaged later.
    """

    def __init__(
        self,
        log: CommitLog,
        table: ShardTable,
        states: dict[ShardId, ShardState],
        more_index: Callable[[], None],
        *,
        durable: int,
        clean: bool,
        known: int,
    ) -> None:
        self._log: Final = log
        self._files: Final = log.files
        self._table: Final = table
        self._states: Final = states
        self._durable: Final = durable
        self._clean: Final = clean
        self._known: Final = known
        self._more_index: Final = more_index
        self.report: Final = RecoveryReport(damaged=[], rebuilt=[], clean_stop=clean)
        self.latest: Final = {shard: int(state.latest_offset) for shard, state in states.items()}
        self.touched: Final[set[ShardId]] = set()
        """Shards of which the replay changed the queue or the state."""
        self._truncations: list[tuple[int, ShardId, int]] = []
        self._folded: dict[ShardId, int] = {}
        self.nameless: Final[list[Nameless]] = []
        """Damage that does not tell whose records it hit."""
        self.spans: Final[list[tuple[int, int]]] = []
        """The bytes of the log that damage took, below the durable point."""
        self._damaged: Final = DamagedRecords()
        self.victims: Final[list[tuple[int, ShardId, int]]] = []
        """(position, shard, offset): whose record was hit, by what is left of its head."""

    def run(self, start: int, progress: Progress | None = None) -> int:
        """Replay from `start` on; return the position at which the log ends."""
        report = self.report
        report.from_position = start
        # What was cut before the checkpoint is cut in the states already.
        self._truncations = sorted(
            (position, shard, offset)
            for shard, state in self._states.items()
            for position, offset in state.truncations
            if position > start
        )
        position = start
        while position < self._files.stop:
            self._truncate_shards(position)
            after, ended = self._step(position)
            report.bytes_scanned += after - position
            if progress is not None:
                progress(after - start, max(after, self._durable) - start)
            position = after
            self._table.adopt(self._states)
            self._table.drain_dirty(lambda log: self.touched.add(log.shard))
            if ended:
                break
        self._truncate_shards(position)
        if position < self._durable:
            self._report_damage(Damage(position, "the log was on the device beyond this"))
        report.end_position = position
        return position

    def _truncate_shards(self, position: int) -> None:
        """Repeat the truncations of shards that happened when the log ended here."""
        while self._truncations and self._truncations[0][0] <= position:
            truncated_at, shard, offset = self._truncations.pop(0)
            self.latest[shard] = min(self.latest.get(shard, 0), offset)
            log = self._table.find(shard)
            if log is not None and log.next_offset > offset:
                log.cut(offset, with_state=truncated_at > log.state.folded_until)
                self.touched.add(shard)

    def _step(self, position: int) -> tuple[int, bool]:
        """Replay up to the end of a file; return where to go on, and whether the log ended."""
        base = self._files.base_of(position)
        file_end = base + self._files.file_size
        stop = min([file_end, *(cut for cut, _, _ in self._truncations[:1] if cut > position)])
        buffer = self._files.buffer(base)
        after, status, damage = self._replay(buffer, base, position, stop, groups=True)
        if status == REPLAY_NO_INDEX_ROOM:
            self._more_index()
        if status == REPLAY_LEAP and damage is None:
            return after, False  # the queue begins anew there
        if status in (REPLAY_DAMAGE, REPLAY_LEAP):
            assert damage is not None
            return self._after_damage(buffer, base, damage, after)
        if status == REPLAY_DONE and after < stop:
            # Zeros: nothing was ever written here, unless it should be there.
            return self._after_damage(buffer, base, Damage(after, _ZEROS_FOUND), after)
        return after, False

    def _replay(
        self, buffer: memoryview, base: int, start: int, stop: int, *, groups: bool
    ) -> tuple[int, int, Damage | None]:
        """Let the appender take the records of a part of a file, and fold what is special."""
        after, records, status, damage, specials = self._log.appender.replay(
            buffer, base, start, stop, True, CONTROL_SUFFIX, groups, self._files.strict
        )
        self.report.records_scanned += records
        self._table.adopt(self._states)
        is_last_undone = status in (REPLAY_TRUNCATE_BATCH_QUEUE, REPLAY_LEAP)
        undone = specials.pop() if is_last_undone else None
        for special, handle in specials:
            self._fold(buffer, base, special, handle)
        if undone is not None and status == REPLAY_LEAP:
            damage = self._check_leap(buffer, base, *undone)
        elif undone is not None:
            self._cut_batch_queue(buffer, base, *undone)
        return after, status, damage

    def _check_leap(
        self, buffer: memoryview, base: int, position: int, handle: int
    ) -> Damage | None:
        """Return None when the queue goes on at the offset of the record, as a line of the journal
        has just said, which came before the record."""
        raw = core.decode_raw(buffer, base, position, True)
        assert isinstance(raw, RawRecord), "the replay has just read it"
        expected = self._table.by_handle(handle).next_offset
        if raw.queue_offset - expected <= GAP_MAX:
            return None
        reason = f"offset {raw.queue_offset} of {raw.topic!r} follows {expected - 1}"
        return Damage(position, reason)

    def _cut_batch_queue(self, buffer: memoryview, base: int, position: int, handle: int) -> None:
        raw = core.decode_raw(buffer, base, position, True)
        assert isinstance(raw, RawRecord), "the replay has just read it"
        log = self._table.by_handle(handle)
        log.cut(raw.queue_offset, with_state=position >= log.state.folded_until)

    def _after_damage(
        self, buffer: memoryview, base: int, damage: Damage, position: int
    ) -> tuple[int, bool]:
        """Return where to go on after bytes that are not a record, and whether the log ends."""
        file_end = base + self._files.file_size
        limit = file_end if self._clean else min(file_end, self._durable)
        is_hole = damage.reason == HOLE_REASON
        limit = file_end if is_hole else limit
        if (
            not is_hole
            and position >= self._durable
            and not self._goes_on(buffer, base, position, limit)
        ):
            if damage.reason != _ZEROS_FOUND:
                self._refuse_foreign(buffer, base, damage.position)
                self.report.cut_reason = damage.reason
            return position, True
        self._report_damage(damage)
        if damage.position > position:
            # The first records of a group whose rest is damaged: they were acknowledged.
            after, _, _ = self._replay(buffer, base, position, damage.position, groups=False)
            position = max(after, damage.position)
        next_position = core.find_record(buffer, base, position + 1, limit, self._files.strict)
        if next_position < 0:
            # The durable point is the end of a record, and after a clean stop that of the log.
            ends_here = position < self._durable <= limit and not is_hole
            next_position = self._durable if ends_here else limit
        stop = min(next_position, max(self._durable, position + 1))
        self.spans.append((position, stop))
        self._find_victims(buffer, base, position, stop)
        return next_position, False

    def _refuse_foreign(self, buffer: memoryview, base: int, position: int) -> None:
        """Raise when the log would be cut at a record that is whole but has no checksum: no crash
        leaves one. (A page that got lost leaves zeros, or bytes that are not text.)"""
        if not self._files.strict:
            return
        raw = core.decode_raw(buffer, base, position, True)
        if isinstance(raw, RawRecord) and _is_text(raw.raw_properties) and "\0" not in raw.topic:
            raise CorruptionError(
                self._files.path_of(position),
                position=position - base,
                reason="a whole record without the checksum that all records of this store have; "
                "if RocketMQ wrote it, delete penstockRequiresChecksums and penstockChecksum from "
                "store.properties",
            )

    def _goes_on(self, buffer: memoryview, base: int, position: int, limit: int) -> bool:
        """Say whether a log that was closed has records after bytes that are not."""
        if not self._clean or position + 1 >= limit:
            return False
        written = self._files.written_ranges(position + 1)
        if not written:
            return False
        stop = min(limit, written[-1][1])
        return core.find_record(buffer, base, written[0][0], stop, self._files.strict) >= 0

    def _report_damage(self, damage: Damage) -> None:
        path = self._files.path_of(damage.position)
        inside = damage.position - self._files.base_of(damage.position)
        self.report.damaged.append(DamagedPlace(path, inside, damage.reason))
        _log.error("log_damaged", path=path, position=inside, reason=damage.reason)

    def _find_victims(self, buffer: memoryview, base: int, start: int, stop: int) -> None:
        """Find out whose records the damage hit, as far as their heads tell: their offsets must
        not be given out again, even when no later record of the shard shows that there was one."""
        position = start
        while position < stop:
            raw = self._damaged.read(buffer, base, position, stop)
            if isinstance(raw, Damage):
                self._add_nameless(position, stop)
                return
            log = self._table.find(ShardId(raw.topic, raw.queue_id))
            in_batch = offsets_of_batch(raw) or BATCH_COUNT_MAX
            if log is not None and raw.queue_offset == self._expected(log):
                count = 1 if log.kind is QueueKind.SIMPLE else in_batch
                self.latest[log.shard] = raw.queue_offset + count
                self.victims.append((position, log.shard, raw.queue_offset))
            elif stop > self._known:
                self.nameless.append(Nameless(position, raw.size, 1, in_batch))
            position += raw.size

    def _expected(self, log: ShardLog) -> int:
        return max(log.next_offset, self.latest.get(log.shard, 0))

    def _add_nameless(self, position: int, stop: int) -> None:
        """Note that nothing tells whose records these bytes were. What was there before the
        checkpoint is in the states."""
        size = stop - max(position, self._known)
        if size > 0:
            count = -(-size // RECORD_SIZE_MIN)
            self.nameless.append(Nameless(position, size, count, count * BATCH_COUNT_MAX))

    def _fold(self, buffer: memoryview, base: int, position: int, handle: int) -> None:
        """Take what a record says beyond its queue unit into the state of its shard."""
        raw = core.decode_raw(buffer, base, position, True)
        if isinstance(raw, Damage):
            return
        log = self._table.by_handle(handle)
        if log.shard == CATALOG:
            self._fold_line(raw)
        elif is_control(log.shard):
            self._fold_command(data_shard(log.shard), raw)
        if raw.position < log.state.folded_until:
            return
        if is_control(log.shard):
            log.state.dropped = False
        self.touched.add(log.shard)
        if raw.queue_offset < self._folded.get(log.shard, 0):
            # The shard was cut here, and the crash came before that was saved.
            log.state.truncate_from(raw.queue_offset)
        self._folded[log.shard] = raw.queue_offset + 1
        fold(log, raw)

    def _fold_line(self, raw: RawRecord) -> None:
        try:
            line = decode_entry(raw.body)
        except RequestError as error:
            _log.error("journal_line_ignored", position=raw.position, error=str(error))
            return
        if isinstance(line, DropEntry):
            self._drop(line.shard, raw)
            self._drop(control_shard(line.shard), raw)
            return
        if isinstance(line, TruncateEntry):
            self._cut_again(line, raw)
        elif isinstance(line, RestartEntry):
            self._restart_again(line, raw)
        else:
            self._keep_again(line, raw)

    def _keep_again(self, line: CreateEntry, raw: RawRecord) -> None:
        """Learn that a shard exists."""
        log = self._table.find(line.shard)
        state = self._states.get(line.shard) if log is None else log.state
        if state is None:
            start = line.start_offset if isinstance(line.start_offset, int) else 0
            unit = start if line.kind is QueueKind.SIMPLE else 0
            log = self._table.add(line.shard, ShardState(line.kind, start), start, unit)
            log.state.config, log.state.born_at = line.config, line.born_at
        elif raw.position < state.folded_until:
            return
        else:
            state.dropped = False
            state.config, state.born_at = line.config, line.born_at
        self.touched.add(line.shard)
        if line.replicated is True:
            self._mark_replicated(line.shard)
            self._mark_replicated(control_shard(line.shard))
        elif line.replicated is False:
            self._end_replication(line.shard)
            self._end_replication(control_shard(line.shard))

    def _end_replication(self, shard: ShardId) -> None:
        """Learn that a shard has become the only copy: all of it is committed."""
        log = self._table.find(shard)
        if log is None:
            state = self._states.get(shard)
            if state is not None:
                state.end_replication()
        else:
            log.end_replication()
        self.touched.add(shard)

    def _mark_replicated(self, shard: ShardId) -> None:
        """Learn that a shard has copies on other nodes. What a state does not say to be committed
        is not: replication will tell."""
        log = self._table.find(shard)
        if log is None:
            state = self._states.setdefault(shard, ShardState(QueueKind.SIMPLE))
            state.replicate()
        elif not log.state.is_replicated:
            log.become_replicated(log.state.floor_offset)
        self.touched.add(shard)

    def _drop(self, shard: ShardId, raw: RawRecord) -> None:
        """Delete a shard again. Its queue may hold records already that came after this line, of
        a new shard of that name: the first of them has replaced all older ones."""
        log = self._table.find(shard)
        if log is None:
            state = self._states.get(shard)
            if state is not None and raw.position >= state.folded_until:
                state.clear()
                state.drop(raw.position + raw.size)
            return
        if raw.position < log.state.folded_until:
            return
        # Only what came after the line is sure to be in memory: the files may be gone.
        last = self._log.appender.read_units(log.handle, log.next_unit - 1, 1)
        if log.next_unit and (not last or int.from_bytes(last[:8]) < raw.position):
            log.clear_queue()
            log.state.add_truncation(raw.position + raw.size, 0)
        log.state.clear()
        log.state.drop(raw.position + raw.size)
        log.limit_commit(None)
        log.update_admission()
        self.latest[shard] = 0
        self._folded.pop(shard, None)
        self.touched.add(shard)

    def _cut_again(self, line: TruncateEntry, raw: RawRecord) -> None:
        """Cut a shard as it was cut here. Its queue may hold records already that came after this
        line: the first of them has replaced all from its offset on."""
        shard, offset = line.shard, line.offset
        log = self._table.find(shard)
        state = self._states.get(shard) if log is None else log.state
        if state is None or raw.position < state.folded_until:
            return
        state.add_truncation(raw.position + raw.size, offset)
        forgotten = state.truncate_from(offset)
        self.latest[shard] = min(self.latest.get(shard, 0), offset)
        self.touched.add(shard)
        if log is None:
            return
        log.update_admission()
        # Only what came after the line is sure to be in memory: see `_drop`.
        last = self._log.appender.read_units(log.handle, log.next_unit - 1, 1)
        if log.next_offset > offset and (not last or int.from_bytes(last[:8]) < raw.position):
            log.cut(offset)
        restore_producers(log, forgotten, min(offset, log.next_offset))

    def _restart_again(self, line: RestartEntry, raw: RawRecord) -> None:
        """Let a shard begin anew as it did here. Its queue may hold records already that came after
        this line: then the offsets before them are below its floor."""
        shard, offset = line.shard, line.offset
        log = self._table.find(shard)
        state = self._states.get(shard) if log is None else log.state
        if state is None:
            state = self._states[shard] = ShardState(QueueKind.SIMPLE)
        elif raw.position < state.folded_until:
            return
        self.latest[shard] = offset
        self._folded.pop(shard, None)
        self.touched.add(shard)
        if log is None or log.next_offset > offset:
            state.restart_at(offset)
        else:
            log.restart_at(offset)

    def _fold_command(self, shard: ShardId, raw: RawRecord) -> None:
        log = self._table.find(shard)
        if log is None:
            # The shard has no record left in the log, or none yet.
            state = self._states.setdefault(shard, ShardState(QueueKind.SIMPLE))
        else:
            state = log.state
        if raw.position < state.folded_until or self._is_uncommitted(shard, raw):
            return
        self.touched.add(shard)
        try:
            command = decode(raw.body)
        except RequestError as error:
            _log.error("control_record_ignored", shard=shard.name, error=str(error))
            return
        state.apply(command, Offset(raw.queue_offset))

    def _is_uncommitted(self, shard: ShardId, raw: RawRecord) -> bool:
        """Say whether a command is not known to be committed: replication will tell."""
        companion = self._table.find(control_shard(shard))
        if companion is None or not companion.state.is_replicated:
            return False
        return raw.queue_offset >= companion.state.commit_offset


def fold(log: ShardLog, raw: RawRecord) -> None:
    """Fold one record into the state of its shard; folding it again changes nothing."""
    state = log.state
    written = producer_of(raw)
    if written is not None:
        producer, count = written
        state.producers.remember(producer, count, raw.queue_offset, raw.store_timestamp_ms)
    epoch = leader_epoch_of(raw.sys_flag, raw.prepared_transaction_offset)
    if epoch != state.newest_epoch:
        state.add_epoch(epoch, raw.queue_offset)
        log.update_admission()


def fold_appended(log: CommitLog, shard: ShardLog, start: int) -> list[tuple[Command, int]]:
    """Fold the records of a shard that were copied into the log from `start` on; return the
    commands among them, with their offsets."""
    base = log.files.base_of(start)
    buffer = log.files.buffer(base)
    epoch = shard.state.newest_epoch
    commands: list[tuple[Command, int]] = []
    for position in core.find_special(buffer, base, start, log.end, epoch, CONTROL_SUFFIX):
        raw = core.decode_raw(buffer, base, position, False)
        assert isinstance(raw, RawRecord), "it was verified before it was appended"
        with shard.lock:
            fold(shard, raw)
        if is_control(shard.shard) and not shard.state.is_replicated:
            commands.append((decode(raw.body), raw.queue_offset))
    return commands


def _is_text(properties: bytes) -> bool:
    try:
        return "\0" not in properties.decode()
    except UnicodeDecodeError:
        return False
