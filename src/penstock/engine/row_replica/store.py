"""`ReplicaStore`: what a shard does for its `Replica`.

Unless it says otherwise, a method is called with the shard's lock held. A method that gets an
`Update` makes it durable together with its own change: both are there after a crash, or neither.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from penstock.engine.epoch_table import EpochTable
from penstock.engine.row_replica.logged_write import CopiedWrite
from penstock.engine.row_replica.operations import OperationEntry
from penstock.record import ShardId


class Saved(NamedTuple):
    """What a replica knows of itself beside its logs."""

    commit: int = 0
    operations_start: int = 0
    operations_end: int = 0
    operations_commit: int = 0
    acted: int = 0
    """Operations before this one have acted."""
    snapshot: int = 0
    """The newest snapshot that has acted; the operations before the one before it are dropped."""


class Histories(NamedTuple):
    """Which leader epoch began where, in the records and in the operations."""

    records: EpochTable
    operations: EpochTable


class Update(NamedTuple):
    saved: Saved
    operations: Sequence[tuple[int, OperationEntry]] = ()
    """To be put, with their indexes."""
    dropped: tuple[int, int] = (0, 0)
    """Operations [first, end) that are gone."""
    histories: Histories | None = None
    """When they changed."""


class Loaded(NamedTuple):
    """A replica as its shard has it."""

    saved: Saved
    histories: Histories
    operations: list[OperationEntry]


def ended(histories: Histories, epoch: int | None, end: int) -> Histories:
    """Return the histories of a shard whose last replica led under `epoch`, and whose further
    records have no epoch of their own: they count as written under that one."""
    records = EpochTable.from_list(histories.records.to_list())
    if epoch is not None and epoch > records.latest:
        records.add(epoch, end)
    return Histories(records, EpochTable())


def begun(former: tuple[Saved, Histories] | None, start: int, end: int) -> Loaded:
    """Return the state of a shard that has replicas from now on. `former`: what was left when it
    had some before. Nodes that were down since then may have copies of that time: so its epochs
    count on, and the numbers of its operations go on."""
    records, operations = EpochTable(), 0
    if former is not None:
        records = EpochTable.from_list(former[1].records.to_list())
        operations = former[0].operations_end
    records.truncate_from(end)  # an epoch without a record
    if end > start and not len(records):
        records.add(0, start)
    records.drop_before(start)
    saved = Saved(end, operations, operations, operations, operations, operations)
    return Loaded(saved, Histories(records, EpochTable()), [])


class Removed(NamedTuple):
    live: int = 0
    """Records that had not expired."""
    records: int = 0
    size: int = 0

    def plus(self, other: Removed) -> Removed:
        return Removed(self.live + other.live, self.records + other.records, self.size + other.size)


class ReplicaStore(Protocol):
    @property
    def shard(self) -> ShardId: ...

    @property
    def lock(self) -> threading.Lock: ...

    @property
    def waits_for_device(self) -> bool:
        """Whether the replica counts for what is on the device only."""
        ...

    @property
    def has_failed(self) -> bool:
        """Whether the device failed: nothing is written any more."""
        ...

    @property
    def is_sealed(self) -> bool: ...

    @property
    def log_start(self) -> int: ...

    @property
    def log_end(self) -> int: ...

    def check_exists(self) -> None:
        """Raise `UnknownShardError` after the shard was deleted; make ready for changes."""
        ...

    def announce(self) -> None:
        """Tell the replication of a new operation; called without the lock."""
        ...

    def sync(self) -> None:
        """Put all changes on the device; called without the lock."""
        ...

    # The logs

    def save(self, update: Update) -> None: ...

    def read_write(self, offset: int, max_size: int) -> CopiedWrite:
        """Return the write that has `offset`, with its records from there on. Offsets whose writes
        are not known are one write of about `max_size` bytes. Called without the lock."""
        ...

    def append_writes(self, writes: Sequence[CopiedWrite], update: Update) -> None: ...

    def write_border(self, offset: int) -> int:
        """Return where the write of `offset` begins."""
        ...

    def cut_records(self, offset: int, update: Update) -> None:
        """Remove the writes from `offset` on, at which one begins or the log ends."""
        ...

    def restart_records(self, offset: int, update: Update) -> None: ...

    def drop_damaged(self, offset: int) -> None:
        """Make holes of the records from `offset` on that cannot be read."""
        ...

    # What operations do

    def remove(self, offsets: Sequence[int]) -> Removed: ...

    def drop_before(self, offset: int) -> None: ...

    def seal_here(self) -> None: ...

    def trim_transaction(self, producer_id: int, until: int) -> None: ...

    def sweep_some(self) -> bool:
        """Remove a few rows of records before the first offset; return whether there may be
        more. Called without the lock."""
        ...

    # What leaders decide by

    def offsets_of_key(self, key: bytes, until: int) -> list[int]: ...

    def transacted_offsets(self, producer_id: int, start: int) -> list[int] | None:
        """Return what a producer wrote in its open transaction; None: it has none."""
        ...

    def expired_offsets(self, until: int) -> Iterator[int]:
        """Called without the lock."""
        ...

    def compactable(
        self, stable_until: Callable[[], int | None]
    ) -> tuple[Iterator[int], int | None]:
        """Return the offsets that a compaction removes, and when another one pays. Called without
        the lock, and with no other operation under way."""
        ...
