"""The logs of real segment stores on simulated disks, in place of simulated logs."""

from __future__ import annotations

import random
from typing import Final

from tests.engine.replication.simulated_log import Entry, OnGivenUp, ignore_given_up
from tests.engine.segment.rig import Rig

from penstock.codec.envelope import leader_epoch_of
from penstock.codec.format import Damage
from penstock.codec.select import core
from penstock.engine.segment.control import control_records as control
from penstock.engine.segment.queue.entry_rows import UnitRow
from penstock.engine.segment.queue.shard import ShardLog
from penstock.engine.segment.replica.replica_log import SegmentReplicaLog
from penstock.errors import CorruptionError
from penstock.record import Flush, QueueKind, Record, ShardId

SHARD: Final = ShardId("t", 0)
_FAR: Final = 1 << 40
"""Commands delete offsets from here on, which no record has: they carry values."""
LOST: Final = -1


class SegmentNode:
    """The store of one node."""

    def __init__(self, *, is_sync: bool, kind: QueueKind, seed: int) -> None:
        self._chance = random.Random(seed)
        self.rig: Final = Rig()
        flush = Flush.SYNC if is_sync else Flush.ASYNC
        self._flush: Final = flush
        self.rig.store.create_shard(SHARD, kind, flush)
        self.rig.store.checkpoint()
        self.is_tail_cut = False
        """The last start has found that the end of the log was damaged."""

    def log(self, stream: int) -> SegmentReplicaLog:
        return self.rig.store.replicas.logs(SHARD)[stream]

    def append(self, stream: int, value: int) -> int:
        """Append a value, some several times as a group; return the end."""
        store = self.rig.store
        if stream:
            command = control.DeleteOffsets(ranges=((_FAR + value, _FAR + value + 1),))
            store._commands.submit(store._table.get(SHARD), lambda _: [command])
        elif value % 4:
            store.append_unsynced(SHARD, [Record(b"%d" % value, key=b"%d" % (value % 7))])
        else:
            store.append_unsynced(SHARD, [Record(b"%d" % value, tags=("t",))] * 3)
        return self.log(stream).end

    def sync(self) -> None:
        if self._chance.random() < 0.2:
            self.rig.store.checkpoint()
        else:
            self.rig.store.flush()

    def restart(self) -> None:
        if self._chance.random() < 0.1:
            self.rig.restart()
        else:
            self.rig.kill()
        self._reopened()

    def lose_power(self, chance: random.Random) -> None:
        self.rig.crash(chance.randrange(1 << 30))
        self._reopened()

    def _reopened(self) -> None:
        store = self.rig.store
        store.set_flush(SHARD, self._flush)
        self.is_tail_cut = store.report.bytes_cut > 0


class SegmentLog:
    """Implements `ReplicaLog`, and what the simulation does to a log and sees of it."""

    def __init__(self, node: SegmentNode, stream: int, *, is_sync: bool) -> None:
        self.node: Final = node
        self.is_sync: Final = is_sync
        self._stream: Final = stream
        self.on_given_up: OnGivenUp = ignore_given_up
        self._flipped: dict[int, Entry] = {}
        self._cache: list[Entry] = []
        self._cached: tuple[object, int, int] | None = None

    @property
    def _log(self) -> SegmentReplicaLog:
        return self.node.log(self._stream)

    @property
    def start(self) -> int:
        return self._log.start

    @property
    def end(self) -> int:
        return self._log.end

    @property
    def safe(self) -> int:
        return self._log.safe

    @property
    def commit(self) -> int:
        return self._log.commit

    @property
    def last_epoch(self) -> int:
        return self._log.last_epoch

    @property
    def damaged_at(self) -> int | None:
        return self._log.damaged_at

    @property
    def has_failed(self) -> bool:
        return self._log.has_failed

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        return self._log.epoch_end(epoch)

    def begin_epoch(self, epoch: int) -> None:
        self._log.begin_epoch(epoch)

    def follow(self) -> None:
        self._log.follow()

    def read_range(self, offset: int, max_size: int) -> tuple[bytes, int]:
        return self._log.read_range(offset, max_size)

    def append_range(self, data: bytes) -> None:
        self._log.append_range(data)

    def cut(self, offset: int) -> None:
        self._log.cut(offset)
        self._flipped = {n: entry for n, entry in self._flipped.items() if n < self.end}

    def give_up_damaged(self, offset: int) -> None:
        for number, (epoch, value) in enumerate(self.records, self.start):
            if value < 0 and number >= offset and number in self._flipped:
                self.on_given_up(number, (epoch, -value))
        self._log.give_up_damaged(offset)
        self._cached = None

    def restart_at(self, offset: int) -> None:
        self._log.restart_at(offset)

    def set_commit(self, offset: int) -> None:
        assert self.commit <= offset <= self.end, "a commit offset never goes back"
        self._log.set_commit(offset)

    # The simulation

    def append(self, value: int) -> int:
        return self.node.append(self._stream, value)

    def sync(self) -> None:
        if self._stream == 0:
            self.node.sync()

    def restart(self) -> None:
        self._cached = None
        if self._stream == 0:
            self.node.restart()

    def lose_power(self, chance: random.Random) -> None:
        self._cached = None
        if self._stream == 0:
            self.node.lose_power(chance)

    def find_damage(self, offset: int) -> None:
        self._log._record_damage(offset)

    def trim(self, chance: random.Random) -> None:
        """Not here: a command of the leader does it."""

    def fail_device(self) -> None:
        """Not here."""

    def jump_clock(self, milliseconds: int) -> None:
        clock = self.node.rig.clock
        clock.set_now_ms(clock.now_ms() + milliseconds)

    def found_by_key(self) -> list[tuple[int, Entry]]:
        """Return the committed records as the key index finds them; nothing from a log with holes,
        of which a search by key says that they are lost."""
        if any(value <= 0 for _, value in self.records):
            return []
        store = self.node.rig.store
        found = [
            (int(record.offset), (0, int(record.value or b"0")))
            for key in range(7)
            for record in store.query_by_key(SHARD, b"%d" % key, limit=10_000)
        ]
        return sorted(found)

    @property
    def is_tail_cut(self) -> bool:
        return self.node.is_tail_cut

    @property
    def is_flipped(self) -> bool:
        return bool(self._flipped) and any(value < 0 for _, value in self.records)

    @property
    def records(self) -> list[Entry]:
        """What the log holds; a damaged record has a negative value, a hole 0."""
        log = self._log._log
        known = (log, log.truncation_generation, log.earliest)
        if self._cached != known:
            self._cache, self._cached = [], known
        next_offset = log.earliest + len(self._cache)
        end = log.next_offset
        while next_offset < end:
            try:
                rows = log.rows(log.unit_of(next_offset), end - next_offset)
            except CorruptionError:  # of a queue file: readers have it rebuilt, too
                self._log._parts.ranges.check_queue(log)
                rows = log.rows(log.unit_of(next_offset), end - next_offset)
            if not rows:
                break
            for row in rows:
                # A gap of a batch queue has no unit.
                missing = range(next_offset, row.first_offset)
                self._cache += [self._missing(log, offset) for offset in missing]
                self._cache += [self._entry(log, row)] * (row.end_offset - row.first_offset)
                next_offset = row.end_offset
        self._cache += [self._missing(log, offset) for offset in range(next_offset, end)]
        return self._cache

    def _entry(self, log: ShardLog, row: UnitRow) -> Entry:
        if row.is_blank or log.state.hole_end(row.first_offset) is not None:
            return self._missing(log, row.first_offset)
        files = log.log.files
        base = files.base_of(row.position)
        raw = core.decode_raw(files.buffer(base), base, row.position, True, files.strict)
        if isinstance(raw, Damage):
            return self._missing(log, row.first_offset)
        epoch = leader_epoch_of(raw.sys_flag, raw.prepared_transaction_offset)
        if self._stream == 0:
            return epoch, int(raw.body)
        command = control.decode(raw.body)
        assert isinstance(command, control.DeleteOffsets)
        return epoch, command.ranges[0][0] - _FAR

    def _missing(self, log: ShardLog, offset: int) -> Entry:
        epoch, value = self._flipped.get(offset, (0, LOST))
        return (epoch, 0) if log.state.hole_end(offset) is not None else (epoch, -abs(value))

    def flip(self, offset: int) -> None:
        log = self._log._log
        self._flipped[offset] = self.records[offset - log.earliest]
        position = log.position_of(offset)
        assert position is not None
        files = log.log.files
        base = files.base_of(position)
        files.buffer(base, writable=True)[position - base + 90] ^= 0x20
        self._cached = None
