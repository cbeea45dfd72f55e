"""Everything known of one shard beyond its queue file.

Invariants, asserted when the state is packed:

  * 0 <= commit offset <= latest offset; the earliest offset is never past the latest
  * records below the floor and in the deleted ranges are never served

The floor and the deleted ranges come from commands that are committed, so they hold whatever
becomes of the records: `truncate_from` keeps them. A replica may learn of a deletion before it has
the record, or while it still has another, wrong record at that offset, which is then cut off and
replaced; forgetting the deletion with the wrong record would show the right one.

Most shards are idle and have no deletions, producers or epochs: those tables are made when they are
first needed, and an idle shard takes some 300 bytes of memory and 40 on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Self, assert_never

import msgspec
from msgspec import Struct

from penstock.codec.deleted_ranges import DeletedRanges
from penstock.engine.epoch_table import EpochTable
from penstock.engine.producer_table import ProducerTable, Write
from penstock.engine.segment.control.control_records import (
    Command,
    DeleteBefore,
    DeleteOffsets,
    Seal,
)
from penstock.errors import NotSupportedError
from penstock.record import Offset, Position, QueueKind

STATE_VERSION: Final = 1


class _Packed(Struct, array_like=True, gc=False):
    """A state as a file holds it. New fields go to the end, with defaults; a change of meaning
    is a new version."""

    version: int
    kind: QueueKind
    sealed: bool
    floor: int
    commit: int
    latest: int
    control: int
    folded_until: int
    queue_first: int
    queue_units: int
    queue_crc: int
    deleted: list[int]
    epochs: list[tuple[int, int]]
    producers: list[tuple[int, list[Write]]]
    truncations: list[tuple[int, int]] = []
    dropped: bool = False
    config: bytes = b""
    lost: list[int] = []
    dropped_at: int = 0
    epoch: int = 0
    born_at: int = 0
    replicated: bool = False
    holes: list[int] = []
    restated: int = 0


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Packed)


class _Replica(Struct, eq=False):
    """What only a replicated shard has."""

    restated_from: int = 0
    holes: DeletedRanges | None = None


class ShardState:
    __slots__ = (
        "_deleted",
        "_epochs",
        "_leader_epoch",
        "_lost",
        "_producers",
        "_replica",
        "born_at",
        "commit_offset",
        "config",
        "control_offset",
        "dropped",
        "dropped_at",
        "floor_offset",
        "folded_until",
        "kind",
        "latest_offset",
        "queue_crc",
        "queue_first",
        "queue_units",
        "sealed",
        "truncations",
    )

    def __init__(self, kind: QueueKind, start_offset: int = 0) -> None:
        self.kind: QueueKind = kind
        self.sealed: bool = False
        self.floor_offset = Offset(start_offset)
        """Nothing below is served: retention or a command removed it."""
        self.commit_offset = Offset(start_offset)
        """Readers never see this offset or a later one."""
        self.latest_offset = Offset(start_offset)
        """What the next record gets."""
        self.control_offset = Offset(0)
        """The next record of the companion queue that is to be folded into this state."""
        self.folded_until = Position(0)
        """Everything that the log says of this shard below this position is in this state."""
        self.queue_first = 0
        """The first unit of the unsealed tail file of the queue."""
        self.queue_units = 0
        """How many units of that file `queue_crc` covers."""
        self.queue_crc = 0
        """CRC-32 of those units."""
        self.config = b""
        """How the engine above keeps this shard; opaque here."""
        self.born_at = 0
        """Tells this shard from an earlier one of the same name: one more than the log's end when
        it was created; 0 where an earlier release created it, or where no journal line of it is
        left."""
        self.dropped = False
        """The shard was deleted; what the log still holds of it is dead."""
        self.dropped_at = Position(0)
        """Where the log ended when it was deleted: nothing after speaks of it."""
        self.truncations: tuple[tuple[int, int], ...] = ()
        """(position, offset): when the log ended at `position`, this shard was cut to `offset`. A
        replay of the log must do the same, or the dead records would come back."""
        self._leader_epoch = 0
        self._replica: _Replica | None = None
        self._deleted: DeletedRanges | None = None
        self._lost: DeletedRanges | None = None
        self._producers: ProducerTable | None = None
        self._epochs: EpochTable | None = None

    @property
    def is_replicated(self) -> bool:
        """Whether the shard has copies on other nodes: `commit_offset` is what replication
        allowed."""
        return self._replica is not None

    def replicate(self) -> None:
        """The shard has copies on other nodes from now on."""
        if self._replica is None:
            self._replica = _Replica()

    def end_replication(self) -> None:
        """This is the only copy from now on."""
        self._replica = None

    @property
    def restated_from(self) -> int:
        """The commands of the companion queue from here on say what all earlier ones said."""
        return 0 if self._replica is None else self._replica.restated_from

    @property
    def earliest_offset(self) -> Offset:
        """The first offset that may be read; the latest one when there is none."""
        return min(self.floor_offset, self.latest_offset)

    @property
    def deleted(self) -> DeletedRanges:
        """The deleted ranges, made when there are none: readers ask `deleted_between`."""
        if self._deleted is None:
            self._deleted = DeletedRanges()
        return self._deleted

    @property
    def producers(self) -> ProducerTable:
        if self._producers is None:
            self._producers = ProducerTable()
        return self._producers

    @property
    def epochs(self) -> EpochTable:
        if self._epochs is None:
            self._epochs = EpochTable()
        return self._epochs

    @property
    def newest_epoch(self) -> int:
        """The leader epoch of the newest record, 0 when there is none."""
        return 0 if self._epochs is None else max(0, self._epochs.latest)

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of the records to come. Not less than that of any record that ever was
        here: a cut takes records and their epochs, but an older leader stays refused."""
        return max(self._leader_epoch, self.newest_epoch)

    @leader_epoch.setter
    def leader_epoch(self, epoch: int) -> None:
        assert epoch >= self.leader_epoch, f"epoch {epoch} is before {self.leader_epoch}"
        self._leader_epoch = epoch

    def add_epoch(self, epoch: int, offset: int) -> None:
        """Learn the leader epoch of the record at `offset`, the newest."""
        if epoch < self.newest_epoch:
            # A newer epoch may have begun here that has written nothing.
            self._leader_epoch = self.leader_epoch
            self.epochs.truncate_from(offset)
        if epoch > self.newest_epoch:
            self.epochs.add(epoch, offset)

    def deleted_between(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the deleted ranges that share an offset with `[start, end)`."""
        return [] if self._deleted is None else self._deleted.overlapping(start, end)

    def is_deleted(self, offset: int) -> bool:
        """Return whether the record at `offset` must not be served although it is there."""
        if offset < self.floor_offset:
            return True
        return self._deleted is not None and offset in self._deleted

    def not_deleted(self, offsets: list[int]) -> list[int]:
        """Return those of ascending offsets at which a record is to be served."""
        if not offsets:
            return offsets
        first, last = offsets[0], offsets[-1]
        if first >= self.floor_offset and not self.deleted_between(first, last + 1):
            return offsets
        return [offset for offset in offsets if not self.is_deleted(offset)]

    def add_lost(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Learn that the log no longer holds these records: damage took them."""
        if self._lost is None:
            self._lost = DeletedRanges()
        self._lost.add_ranges(ranges)

    def set_lost(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Learn that these records are lost, and no others."""
        self._lost = DeletedRanges.from_list(ranges)

    @property
    def has_lost(self) -> bool:
        """Whether damage ever took a record of this shard."""
        return self._lost is not None

    def first_lost(self, start: int, end: int) -> int | None:
        """Return the first offset of `[start, end)` whose record should be there and is lost."""
        return next((first for first, _ in self._each_lost(start, end)), None)

    def last_lost(self, start: int, end: int) -> int | None:
        """Return the last offset of `[start, end)` whose record should be there and is lost."""
        lost = self.lost_between(start, end)
        return lost[-1][1] - 1 if lost else None

    def lost_between(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the lost ranges within `[start, end)`, ascending, without what was deleted."""
        return list(self._each_lost(start, end))

    def _each_lost(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        if self._lost is None:
            return
        start = max(start, self.floor_offset)
        for first, stop in self._lost.overlapping(start, end):
            offset, until = max(first, start), min(stop, end)
            for deleted, deleted_end in self.deleted_between(offset, until):
                if offset < deleted:
                    yield offset, deleted
                offset = max(offset, deleted_end)
            if offset < until:
                yield offset, until

    def add_hole(self, start: int, end: int) -> None:
        """Learn that these records are lost on every node: a hole takes their place."""
        self.add_lost([(start, end)])
        self.replicate()
        assert self._replica is not None
        if self._replica.holes is None:
            self._replica.holes = DeletedRanges()
        self._replica.holes.add(start, end)

    @property
    def _holes(self) -> DeletedRanges | None:
        return None if self._replica is None else self._replica.holes

    def hole_end(self, offset: int) -> int | None:
        """Return where the hole ends that `offset` is in, or None."""
        holes = self._holes
        if holes is None:
            return None
        return next((end for _, end in holes.overlapping(offset, offset + 1)), None)

    def next_hole(self, offset: int) -> int | None:
        """Return where the first hole after `offset` begins."""
        holes = self._holes
        if holes is None:
            return None
        return next((first for first, _ in holes if first > offset), None)

    def first_damaged(self, start: int, end: int) -> int | None:
        """Return the first offset of `[start, end)` whose record is lost here, and not given up
        as a hole."""
        for first, stop in self._each_lost(start, end):
            offset = first
            while offset < stop:
                after = self.hole_end(offset)
                if after is None:
                    return offset
                offset = after
        return None

    def apply(self, command: Command, control_offset: int) -> bool:
        """Fold the command at `control_offset` of the companion queue, which must be committed.

        Commands come in order; one that was folded before is passed over. Returns whether it was
        folded now.
        """
        if control_offset < self.control_offset:
            return False
        self.control_offset = Offset(control_offset + 1)
        match command:
            case DeleteOffsets():
                self.deleted.add_ranges(command.ranges)
                self.deleted.drop_before(self.floor_offset)
            case DeleteBefore():
                self.drop_before(command.offset)
                if isinstance(command.restates_from, int) and self._replica is not None:
                    self._replica.restated_from = command.restates_from
            case Seal():
                self.sealed = True
            case _:
                assert_never(command)
        return True

    def drop_before(self, offset: int) -> None:
        """Let the shard begin at `offset`, or where it began before if that is later."""
        if offset <= self.floor_offset:
            return
        self.floor_offset = Offset(offset)
        if self._deleted is not None:
            self._deleted.drop_before(offset)
        if self._lost is not None:
            self._lost.drop_before(offset)
        if self._epochs is not None:
            # An epoch that begins past the end would be taken for one with records.
            self._epochs.drop_before(self.earliest_offset)

    def restart_at(self, offset: int) -> None:
        """Forget all records; the log of this node begins at `offset`. What the commands said
        stays: it is the shard's, not this node's."""
        self._leader_epoch = self.leader_epoch
        self.latest_offset = self.commit_offset = Offset(offset)
        self.floor_offset = max(self.floor_offset, self.latest_offset)
        self._lost = self._producers = self._epochs = None
        if self._replica is not None:
            self._replica.holes = None
        if self._deleted is not None:
            self._deleted.drop_before(offset)

    def truncate_from(self, offset: int) -> list[int]:
        """Forget the records at and past `offset`: a replica's tail that the leader does not have.

        Deletions stay (see above). Returns the producers of whose writes the log may hold older
        ones that are not remembered.
        """
        assert offset >= 0
        self.latest_offset = min(self.latest_offset, Offset(offset))
        self.commit_offset = min(self.commit_offset, self.latest_offset)
        if self._lost is not None:
            self._lost.truncate_from(offset)
        if self._holes is not None:
            self._holes.truncate_from(offset)
        if self._epochs is not None:
            self._leader_epoch = self.leader_epoch
            self._epochs.truncate_from(offset)
        if self._producers is None:
            return []
        short = self._producers.short_after(offset)
        self._producers.truncate_from(offset)
        return short

    def add_truncation(self, position: int, offset: int) -> None:
        if (position, offset) not in self.truncations:
            self.truncations = (*self.truncations, (position, offset))

    def remove_truncations(self, position: int) -> None:
        """Remove those that concern only bytes below `position`, which the log no longer holds."""
        if self.truncations:
            self.truncations = tuple(
                truncation for truncation in self.truncations if truncation[0] > position
            )

    def clear(self) -> None:
        """Know nothing but the kind, the truncations and where the queue file stands."""
        self.sealed = False
        self.floor_offset = self.commit_offset = self.latest_offset = Offset(0)
        self.control_offset = Offset(0)
        self._deleted = self._lost = self._producers = self._epochs = None
        self._replica = None
        self._leader_epoch = 0
        self.born_at = 0
        self.config = b""

    def drop(self, position: int) -> None:
        """The shard exists no more; the log ends at `position`."""
        self.dropped = True
        self.dropped_at = Position(position)

    def is_gone(self, log_start: int) -> bool:
        """Return whether the shard was deleted and a log that starts there says nothing of it: it
        may be forgotten that it ever was, for no replay can bring it back."""
        return self.dropped and self.dropped_at <= log_start

    def to_bytes(self) -> bytes:
        assert 0 <= self.commit_offset <= self.latest_offset, (
            f"commit offset {self.commit_offset}, latest offset {self.latest_offset}"
        )
        packed = _Packed(
            version=STATE_VERSION,
            kind=self.kind,
            sealed=self.sealed,
            floor=self.floor_offset,
            commit=self.commit_offset,
            latest=self.latest_offset,
            control=self.control_offset,
            folded_until=self.folded_until,
            queue_first=self.queue_first,
            queue_units=self.queue_units,
            queue_crc=self.queue_crc,
            deleted=[] if self._deleted is None else self._deleted.to_steps(),
            epochs=[] if self._epochs is None else self._epochs.to_list(),
            producers=[] if self._producers is None else self._producers.to_list(),
            truncations=list(self.truncations),
            dropped=self.dropped,
            config=self.config,
            lost=[] if self._lost is None else self._lost.to_steps(),
            dropped_at=self.dropped_at if self.dropped else 0,
        )
        # Not above: Python 3.11 keeps tuples of 20 arguments, up to 2000 of them, and reuses none.
        packed.epoch = self._leader_epoch
        packed.born_at = self.born_at
        packed.replicated = self.is_replicated
        packed.holes = [] if self._holes is None else self._holes.to_steps()
        packed.restated = self.restated_from
        return _encoder.encode(packed)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Self:
        """Restore what `to_bytes` gave; raise NotSupportedError for what a newer release wrote,
        ValueError for anything else."""
        try:
            packed = _decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise ValueError(f"no shard state: {error}") from error
        if packed.version != STATE_VERSION:
            raise NotSupportedError(
                f"a shard state of version {packed.version} needs a newer release of Penstock"
            )
        if not 0 <= packed.commit <= packed.latest:
            raise ValueError(f"commit offset {packed.commit} past the latest, {packed.latest}")
        state = cls(packed.kind)
        state.sealed = packed.sealed
        state.floor_offset = Offset(packed.floor)
        state.commit_offset = Offset(packed.commit)
        state.latest_offset = Offset(packed.latest)
        state.control_offset = Offset(packed.control)
        state.folded_until = Position(packed.folded_until)
        state.queue_first = packed.queue_first
        state.queue_units = packed.queue_units
        state.queue_crc = packed.queue_crc
        state.truncations = tuple(packed.truncations)
        state.dropped = packed.dropped
        if packed.dropped:
            # Earlier releases did not say when: the state was saved after that.
            state.dropped_at = Position(packed.dropped_at or packed.folded_until)
        state.config = packed.config
        if packed.deleted:
            state._deleted = DeletedRanges.from_steps(packed.deleted)
        if packed.lost:
            state._lost = DeletedRanges.from_steps(packed.lost)
        if packed.epochs:
            state._epochs = EpochTable.from_list(packed.epochs)
        if packed.producers:
            state._producers = ProducerTable.from_list(packed.producers)
        state._leader_epoch = packed.epoch
        state.born_at = packed.born_at
        if packed.replicated:
            holes = DeletedRanges.from_steps(packed.holes) if packed.holes else None
            state._replica = _Replica(restated_from=packed.restated, holes=holes)
        return state
