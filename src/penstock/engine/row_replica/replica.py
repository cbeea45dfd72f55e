"""`Replica`: the copy of a shard on this node: its role, its commit offsets, its operations.

    client's delete ──▶ operation appended ──▶ replicas have it ──▶ committed ──▶ acts, here too
                                                                                    │
    client gets the answer ◀────────────────────────────────────────────────────────┘

Only one operation of clients is under way at a time. So what a leader decided (the records of a
key, what a compaction removes) holds when the operation acts: no other one came between. Evictions
of full memory shards do not wait; they remove the oldest records only, which changes no decision.

The stream of operations is bounded: after `SNAPSHOT_EVERY` of them, or `SNAPSHOT_SIZE` bytes, the
leader appends a snapshot, and a replica on which one acts drops the operations before the snapshot
before it. A follower that needs older ones begins anew with both logs: it copies the records as
its leader has them, without those that were deleted, and the snapshot says the rest.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Final

from penstock.engine.contract import Compacted
from penstock.engine.epoch_table import EpochTable
from penstock.engine.row_replica.operations import (
    OFFSETS_MAX,
    Before,
    EndTransaction,
    Operation,
    OperationEntry,
    Remove,
    Seal,
    Snapshot,
    removals,
)
from penstock.engine.row_replica.store import (
    Histories,
    Loaded,
    Removed,
    ReplicaStore,
    Update,
)
from penstock.errors import DeadlineError, NotLeaderError, RetryableError
from penstock.platform.clock import Clock

SNAPSHOT_EVERY: Final = 10_000
SNAPSHOT_SIZE: Final = 4 << 20
OPERATION_S_MAX: Final = 30.0
"""How long a client's operation may take until it has acted."""
PASS_OFFSETS: Final = 16 * OFFSETS_MAX
"""Offsets that compaction removes before it waits for the replicas."""


class Replica:
    """Attributes change with the shard's lock held."""

    def __init__(self, store: ReplicaStore, clock: Clock, loaded: Loaded) -> None:
        self.store: Final = store
        self.saved = loaded.saved
        self.histories = loaded.histories
        self.operations: Final = loaded.operations
        """From `saved.operations_start` on."""
        self.epoch: int | None = None
        """The leader epoch under which clients may write; None: another node leads."""
        self.synced = store.log_end
        self.operations_synced = self.saved.operations_end
        self.cuts = 0
        """How often a log was cut: a sync that began before says nothing of what came after."""
        self.damaged_at: int | None = None
        self.operation_s = OPERATION_S_MAX
        self.snapshot_every = SNAPSHOT_EVERY
        self._clock: Final = clock
        self._size = sum(len(entry.body) for entry in self.operations)
        self._turn: Final = threading.Lock()
        self._results: Final[dict[int, Removed | None]] = {}
        """What operations did for which a client waits."""
        self._waiting: list[threading.Event] = []

    def reload(self, loaded: Loaded) -> None:
        """Begin again with what the shard has: a change that failed may be there after all."""
        self.saved, self.histories = loaded.saved, loaded.histories
        self.operations[:] = loaded.operations
        self._size = sum(len(entry.body) for entry in self.operations)
        self.synced = min(self.synced, self.store.log_end)
        self.operations_synced = min(self.operations_synced, self.saved.operations_end)

    # Roles

    def begin_epoch(self, epoch: int) -> None:
        with self.store.lock:
            self.epoch = epoch

    def follow(self) -> None:
        with self.store.lock:
            self.epoch = None
            self.wake()

    def check_leads(self) -> int:
        """Return the epoch for a client's write; the lock is held until it is in the log."""
        if self.epoch is None:
            raise NotLeaderError(self.store.shard.name, leader=None)
        return self.epoch

    def with_epoch(self, epoch: int, offset: int) -> Histories | None:
        """Return the histories with a record of `epoch` at `offset`; None: they are the same."""
        known = self.histories
        if known.records.latest == epoch:
            return None
        records = EpochTable.from_list(known.records.to_list())
        records.add(epoch, offset)
        return known._replace(records=records)

    # Progress, with the lock held

    def act(self) -> None:
        """Let the operations act that are committed."""
        with contextlib.suppress(RetryableError):  # the next call goes on
            while self.saved.acted < self.saved.operations_commit:
                index = self.saved.acted
                operation = self.operations[index - self.saved.operations_start].operation
                if operation.after > self.saved.commit:
                    break
                result = self._perform(index, operation)
                self.saved = self.saved._replace(acted=index + 1)
                if index in self._results:
                    self._results[index] = result

    def _perform(self, index: int, operation: Operation) -> Removed:
        store = self.store
        match operation:
            case Remove(_, offsets):
                return store.remove(offsets)
            case Before(offset):
                self._drop_before(offset)
            case Seal():
                store.seal_here()
            case EndTransaction(after, producer_id):
                store.trim_transaction(producer_id, after)
            case Snapshot(_, earliest, is_sealed):
                self._drop_before(earliest)
                if is_sealed:
                    store.seal_here()
                self._trim(index)
        return Removed()

    def _drop_before(self, offset: int) -> None:
        if offset > self.store.log_start:
            self.store.drop_before(offset)
            records = EpochTable.from_list(self.histories.records.to_list())
            records.drop_before(offset)
            if len(records) < len(self.histories.records):
                self.histories = self.histories._replace(records=records)
                self.store.save(Update(self.saved, histories=self.histories))

    def _trim(self, index: int) -> None:
        """Drop the operations before the snapshot before that at `index`."""
        saved = self.saved
        if index <= saved.snapshot:
            return
        old, start = saved.operations_start, max(saved.snapshot, saved.operations_start)
        operations = EpochTable.from_list(self.histories.operations.to_list())
        operations.drop_before(start)
        histories = self.histories._replace(operations=operations)
        saved = saved._replace(operations_start=start, snapshot=index)
        self.store.save(Update(saved, dropped=(old, start), histories=histories))
        self._size -= sum(len(entry.body) for entry in self.operations[: start - old])
        del self.operations[: start - old]
        self.saved, self.histories = saved, histories

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            event.set()

    # Operations of clients

    def delete_key(self, key: bytes) -> int:
        with self._my_turn() as deadline:
            self._await_records(deadline)

            def decide() -> Iterable[Operation]:
                return self._removals(self.store.offsets_of_key(key, self.saved.commit))

            return self._operate(decide, deadline).live

    def delete_offset(self, offset: int) -> bool:
        with self._my_turn() as deadline:

            def decide() -> Iterable[Operation]:
                commit = self.saved.commit
                if self.store.log_start <= offset < commit:
                    yield Remove(commit, (offset,))

            return self._operate(decide, deadline).live > 0

    def delete_before(self, offset: int) -> int:
        with self._my_turn() as deadline:

            def decide() -> Iterable[Operation]:
                target = min(offset, self.saved.commit)
                if target > self.store.log_start:
                    yield Before(target)

            self._operate(decide, deadline)
        # The offset has moved; what a sweep leaves only takes room until the next one.
        with contextlib.suppress(RetryableError):
            while self.store.sweep_some():
                pass
        return self.store.log_start

    def seal(self) -> None:
        with self._my_turn() as deadline:
            self._operate(
                lambda: () if self.store.is_sealed else (Seal(self.saved.commit),), deadline
            )

    def end_transaction(self, producer_id: int, start: int, *, is_commit: bool) -> int:
        with self._my_turn() as deadline:
            self._await_records(deadline)

            def decide() -> Iterable[Operation]:
                offsets = self.store.transacted_offsets(producer_id, start)
                if offsets is not None:
                    yield from self._removals(() if is_commit else offsets)
                    yield EndTransaction(self.saved.commit, producer_id)

            removed = self._operate(decide, deadline)
        if not is_commit:
            self.store.sync()
        return removed.records

    def compact(self, stable_until: Callable[[], int | None]) -> Compacted:
        with self._my_turn() as deadline:
            offsets, again_ms = self.store.compactable(stable_until)
            removed = self._remove_all(offsets, deadline)
        return Compacted(removed.records, removed.size, again_ms)

    def remove_expired(self) -> Compacted:
        """Remove what has expired; on a follower only what its leader has removed."""
        if self.epoch is None:
            while self.store.sweep_some():
                pass
            return Compacted(0, 0)
        with self._my_turn() as deadline:
            removed = self._remove_all(self.store.expired_offsets(self.saved.commit), deadline)
        return Compacted(removed.records, removed.size)

    def evict_before(self, offset: int) -> None:
        """Append an eviction; called with the lock held by a leader, which does not wait."""
        after = min(offset, self.saved.commit)
        is_pending = any(
            isinstance(entry.operation, Before)
            for entry in self.operations[self.saved.acted - self.saved.operations_start :]
        )
        if after > self.store.log_start and not is_pending:
            self._append((Before(after),))

    def _remove_all(self, offsets: Iterator[int], deadline: float) -> Removed:
        removed = Removed()
        while part := list(islice(offsets, PASS_OFFSETS)):
            removed = removed.plus(self._operate(partial(self._removals, part), deadline))
            deadline = self._clock.monotonic() + self.operation_s
        return removed

    def _removals(self, offsets: Iterable[int]) -> Iterable[Operation]:
        return removals(offsets, self.saved.commit)

    @contextlib.contextmanager
    def _my_turn(self) -> Iterator[float]:
        """Wait for the operations of other clients; yield when this one has to be over."""
        deadline = self._clock.monotonic() + self.operation_s
        with self.store.lock:
            self.store.check_exists()
            self.check_leads()
        if not self._turn.acquire(timeout=self.operation_s):
            raise DeadlineError(
                f"another operation on {self.store.shard.name!r} took longer than "
                f"{self.operation_s:g} s; nothing was done, try again"
            )
        try:
            yield deadline
        finally:
            self._turn.release()

    def _await_records(self, deadline: float) -> None:
        """Wait until what is in the log now is committed: an operation names such records only."""
        with self.store.lock:
            epoch, end = self.check_leads(), self.store.log_end
        self._wait(lambda: self.saved.commit >= end, epoch, deadline, "nothing was done")

    def _operate(self, decide: Callable[[], Iterable[Operation]], deadline: float) -> Removed:
        """Append the operations that `decide` returns; return what they did, once they acted."""
        with self.store.lock:
            self.store.check_exists()
            epoch = self.check_leads()
            indexes = self._append(tuple(decide()))
            for index in indexes:
                self._results[index] = None
        try:
            if indexes:
                self._make_safe()
                self.store.announce()
                self._wait(
                    lambda: self.saved.acted >= indexes.stop,
                    epoch,
                    deadline,
                    "the outcome is unknown",
                )
        finally:
            results = [self._results.pop(index, None) for index in indexes]
        removed = Removed()
        for result in results:
            removed = removed.plus(result or Removed())
        return removed

    def _make_safe(self) -> None:
        if self.store.waits_for_device:
            with self.store.lock:
                end, cuts = self.saved.operations_end, self.cuts
            self.store.sync()
            self.mark_synced(0, end, cuts)

    def mark_synced(self, end: int, operations_end: int, cuts: int) -> None:
        """Count for what was in the logs before a sync, unless one was cut since."""
        with self.store.lock:
            if cuts == self.cuts:
                self.synced = max(self.synced, end)
                self.operations_synced = max(self.operations_synced, operations_end)

    def _append(self, operations: tuple[Operation, ...]) -> range:
        """Append operations as the leader; the lock is held."""
        epoch, first = self.check_leads(), self.saved.operations_end
        entries = [OperationEntry.of(epoch, operation) for operation in operations]
        if entries and self._needs_snapshot(len(entries)):
            store = self.store
            # What pending operations change is not in it: they come before it and act first.
            snapshot = Snapshot(self.saved.commit, store.log_start, store.is_sealed, epoch)
            entries.append(OperationEntry.of(epoch, snapshot))
        self.append_operations(entries)
        return range(first, first + len(operations))

    def _needs_snapshot(self, added: int) -> bool:
        saved = self.saved
        is_long = saved.operations_end + added - saved.snapshot >= self.snapshot_every
        if not is_long and self._size < SNAPSHOT_SIZE:
            return False
        since = self.operations[max(0, saved.snapshot - saved.operations_start) :]
        pending = self.operations[saved.acted - saved.operations_start :]
        if any(isinstance(entry.operation, Snapshot) for entry in pending):
            return False
        return is_long or sum(len(entry.body) for entry in since) >= SNAPSHOT_SIZE

    def append_operations(self, entries: list[OperationEntry]) -> None:
        """Add to the log; the lock is held."""
        if not entries:
            return
        first = self.saved.operations_end
        epochs = EpochTable.from_list(self.histories.operations.to_list())
        for index, entry in enumerate(entries, first):
            epochs.add(entry.epoch, index)
        is_new = len(epochs) != len(self.histories.operations)
        histories = self.histories._replace(operations=epochs) if is_new else None
        saved = self.saved._replace(operations_end=first + len(entries))
        self.store.save(Update(saved, list(enumerate(entries, first)), histories=histories))
        self.saved, self.histories = saved, histories or self.histories
        self.operations.extend(entries)
        self._size += sum(len(entry.body) for entry in entries)

    def cut_operations(self, offset: int) -> None:
        with self.store.lock:
            self.store.check_exists()
            saved = self.saved
            epochs = EpochTable.from_list(self.histories.operations.to_list())
            epochs.truncate_from(offset)
            histories = self.histories._replace(operations=epochs)
            cut = saved._replace(
                operations_end=offset,
                operations_commit=min(saved.operations_commit, offset),
                acted=min(saved.acted, offset),
                snapshot=min(saved.snapshot, offset),
            )
            dropped = (offset, saved.operations_end)
            self.store.save(Update(cut, dropped=dropped, histories=histories))
            self.truncate_operations(offset - saved.operations_start)
            self.saved, self.histories = cut, histories
            self.operations_synced = min(self.operations_synced, offset)
            self.cuts += 1
            self.wake()

    def truncate_operations(self, kept: int) -> None:
        self._size -= sum(len(entry.body) for entry in self.operations[kept:])
        del self.operations[kept:]

    # Waiting

    def _wait(self, is_over: Callable[[], bool], epoch: int, deadline: float, outcome: str) -> None:
        while True:
            with self.store.lock:
                if is_over():
                    return
                self.store.check_exists()
                left = deadline - self._clock.monotonic()
                name = self.store.shard.name
                if self.epoch != epoch:
                    raise DeadlineError(f"this node leads {name!r} no more; {outcome}, try again")
                if left <= 0:
                    raise DeadlineError(
                        f"the replicas of {name!r} did not confirm within {self.operation_s:g} s; "
                        f"{outcome}, try again"
                    )
                event = threading.Event()
                self._waiting.append(event)
            self._clock.wait(event, left)
