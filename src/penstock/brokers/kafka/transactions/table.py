"""The transactional ids that this node coordinates, with their states, and the way from a decision
to the end of a transaction.

In a cluster each node coordinates its share of the ids. Nodes learn of a new assignment at
different times, so that for a moment two may act as the coordinator of one id: the meta service
checks every change against the transaction that it is meant for, and so do the nodes that lead the
partitions (`participant`) with every step. In a cluster the state of an id is therefore read again
with every request; a standalone node caches it.

A transaction times out by the monotonic clock: this node counts from the moment at which it began
the transaction or loaded it. Before a load, the wall clock counts only what exceeds
`clock.step_max_ms`, because it may have been set by so much without being suspected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from functools import partial
from math import inf
from typing import Final

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.cluster_view import ClusterView
from penstock.brokers.kafka.transactions.completion import EndProgress, TransactionCompleter
from penstock.brokers.kafka.transactions.index import TransactionIndex
from penstock.errors import BusyError, StoreError, TransactionRefusedError
from penstock.meta import Decide, TransactionClient, TransactionCommand, TransactionState
from penstock.platform.log import get_logger

TRANSACTIONS_MAX: Final = 100_000
END_WAIT_S: Final = 5.0
"""How long the next request waits for a transaction that is being ended."""
RETRY_S: Final = (0.05, 0.2, 1.0, 5.0)

_log: Final = get_logger(__name__)


class TransactionEntry:
    """A transactional id; `state` is what the meta service has."""

    __slots__ = ("deadline", "ending", "lock", "name", "opened", "opened_ms", "state", "timed_ms")

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.state: TransactionState | None = None
        self.lock: Final = asyncio.Lock()
        self.ending: asyncio.Task[None] | None = None
        self.deadline = inf
        """When the transaction that began at `timed_ms` times out, on the monotonic clock."""
        self.timed_ms = -1
        self.opened: set[str] = set()
        """Shards whose leaders know of the transaction that began at `opened_ms`."""
        self.opened_ms = -1

    @property
    def is_ending(self) -> bool:
        return self.ending is not None and not self.ending.done()

    @property
    def is_busy(self) -> bool:
        return self.lock.locked() or self.is_ending

    def store(self, state: TransactionState | None, seconds_left: float, now: float) -> None:
        """Keep a state; a transaction that was not known gets `seconds_left` from `now` on."""
        self.state = state
        if state is None or state.status != "ongoing":
            self.deadline, self.timed_ms = inf, -1
        elif self.timed_ms != state.started_ms:
            self.deadline, self.timed_ms = now + seconds_left, state.started_ms


class TransactionTable:
    """Runs on the server's event loop. The lock of an entry is held by the caller of `current`,
    `check`, `change` and `decide`."""

    def __init__(
        self,
        broker: KafkaBroker,
        meta: TransactionClient,
        index: TransactionIndex,
        completer: TransactionCompleter,
        cluster: ClusterView | None,
    ) -> None:
        self._broker: Final = broker
        self._clock: Final = broker.clock
        self._step_max_ms: Final = broker.all_settings.clock.step_max_ms
        self._meta: Final = meta
        self._index: Final = index
        self._completer: Final = completer
        self._cluster: Final = cluster
        self._entries: Final[dict[str, TransactionEntry]] = {}

    def __iter__(self) -> Iterator[TransactionEntry]:
        return iter(list(self._entries.values()))

    def __contains__(self, transactional_id: str) -> bool:
        return transactional_id in self._entries

    def is_here(self, transactional_id: str) -> bool:
        return self._cluster is None or self._cluster.is_coordinator_of(transactional_id)

    def get(self, transactional_id: str, *, is_new: bool = False) -> TransactionEntry:
        """Return the entry of an id, or raise when another node coordinates it or it is unknown."""
        if not self.is_here(transactional_id):
            raise TransactionRefusedError(
                "not_here", f"another node coordinates transactional id {transactional_id!r}"
            )
        entry = self._entries.get(transactional_id)
        if entry is None:
            if self._cluster is None and not is_new:
                raise TransactionRefusedError(
                    "unknown_transaction", f"transactional id {transactional_id!r} is unknown"
                )
            if len(self._entries) >= TRANSACTIONS_MAX:
                raise BusyError(
                    f"{TRANSACTIONS_MAX} transactional ids are in use, the limit of a node: "
                    f"{transactional_id!r} is accepted when others have been idle for a week"
                )
            entry = self._entries[transactional_id] = TransactionEntry(transactional_id)
        return entry

    def adopt(self, state: TransactionState) -> None:
        """Coordinate the transaction of another process from now on, unless a request has."""
        name = state.transactional_id
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = TransactionEntry(name)
        if not entry.is_busy:
            self._load(entry, state)
            if state.status.startswith("prepare"):
                self._begin_to_end(entry)

    def drop(self, transactional_id: str) -> TransactionState | None:
        """Remove an id from memory; return its state."""
        entry = self._entries.pop(transactional_id, None)
        return None if entry is None else entry.state

    def drop_except(self, transactional_ids: Collection[str]) -> None:
        """Remove the ids that other nodes coordinate now."""
        for entry in self:
            if entry.name not in transactional_ids and not entry.is_busy:
                del self._entries[entry.name]

    # States

    async def check(
        self, entry: TransactionEntry, producer: tuple[str, int, int]
    ) -> TransactionState:
        """Return the state if the producer that sent a request is the current one."""
        state = await self.current(entry)
        if state is None:
            self._entries.pop(entry.name, None)  # unknown ids must not consume memory
        if state is None or state.producer_id != producer[1]:
            raise TransactionRefusedError(
                "unknown_transaction",
                f"transactional id {entry.name!r} does not belong to producer {producer[1]}",
            )
        if state.epoch != producer[2]:
            raise TransactionRefusedError(
                "fenced", f"the epoch of {entry.name!r} is {state.epoch}, not {producer[2]}"
            )
        return state

    async def current(self, entry: TransactionEntry) -> TransactionState | None:
        """Return the state after the end of the last transaction. In a cluster another node may
        have changed it, so the meta service is asked."""
        await self.wait_for_end(entry)
        if self._cluster is not None or entry.state is None:
            self._load(entry, await self._read(entry.name))
            if entry.state is not None and entry.state.status.startswith("prepare"):
                self._begin_to_end(entry)
                await self.wait_for_end(entry)
        return entry.state

    async def change(
        self, entry: TransactionEntry, command: TransactionCommand
    ) -> TransactionState:
        state = await self._broker.run_blocking(partial(self._meta.change_transaction, command))
        assert state is not None, "such a command leads to a state"
        entry.store(state, state.timeout_ms / 1000, self._clock.monotonic())
        self._index.record_epoch(state.producer_id, state.epoch)
        return state

    def _load(self, entry: TransactionEntry, state: TransactionState | None) -> None:
        """Keep a state that may be older than this process."""
        seconds_left = 0.0
        if state is not None:
            # A beginning in the future, or a held clock: the whole timeout is left.
            open_ms = self._clock.expiry_ms() - state.started_ms - self._step_max_ms
            seconds_left = max(0, state.timeout_ms - max(0, open_ms)) / 1000
        entry.store(state, seconds_left, self._clock.monotonic())

    async def _read(self, transactional_id: str) -> TransactionState | None:
        find = partial(self._meta.find_transaction, self._broker.namespace, transactional_id)
        return await self._broker.run_blocking(find)

    # Ends

    async def decide(
        self,
        entry: TransactionEntry,
        state: TransactionState,
        *,
        commit: bool,
        fence: bool,
        bumps: bool = False,
        new_producer_id: int = -1,
    ) -> TransactionState:
        decide = Decide(
            state.namespace,
            state.transactional_id,
            state.producer_id,
            state.epoch,
            commit,
            fence,
            state.started_ms,
            bumps,
            new_producer_id,
        )
        decided = await self.change(entry, decide)
        if decided.status.startswith("prepare"):
            self._begin_to_end(entry)
        return decided

    async def wait_for_end(self, entry: TransactionEntry) -> None:
        if entry.ending is None:
            return
        done, _ = await asyncio.wait([entry.ending], timeout=END_WAIT_S)
        if not done:
            raise TransactionRefusedError(
                "in_progress", f"the last transaction of {entry.name!r} is being ended"
            )
        entry.ending = None

    def _begin_to_end(self, entry: TransactionEntry) -> None:
        entry.ending = self._broker.spawn(self._end(entry), "end of a transaction")

    async def _end(self, entry: TransactionEntry) -> None:
        """Complete a decided transaction, however long that takes."""
        state, progress, tries = entry.state, EndProgress(), 0
        assert state is not None, "only what is decided is ended"
        while True:
            try:
                if tries and await self._is_ended_elsewhere(entry, state):
                    return
                self._load(entry, await self._completer.end(state, progress))
            except TransactionRefusedError as error:
                # Another node also acted as the coordinator and was faster.
                _log.info(
                    "transaction_ended_elsewhere", transactional_id=entry.name, reason=str(error)
                )
                self._load(entry, None)
                return
            except StoreError as error:
                pause = RETRY_S[min(tries, len(RETRY_S) - 1)]
                tries += 1
                _log.warning(
                    "transaction_not_ended",
                    transactional_id=entry.name,
                    reason=str(error),
                    tries=tries,
                )
                await asyncio.sleep(pause)
            else:
                return

    async def _is_ended_elsewhere(self, entry: TransactionEntry, state: TransactionState) -> bool:
        """Say whether another node must end, or has ended, a transaction."""
        if self._cluster is None:
            return False
        if not self.is_here(entry.name):
            self._load(entry, None)
            return True
        current = await self._read(entry.name)
        is_same = current is not None and current.started_ms == state.started_ms
        if current is not None and is_same and current.status.startswith("prepare"):
            return False
        self._load(entry, current)
        return True
