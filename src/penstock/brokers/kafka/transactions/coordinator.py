"""The transaction coordinator of this node: states, completion, recovery after a restart.

    InitProducerId ─▶ AddPartitions, AddOffsets ─▶ writes, TxnOffsetCommit ─▶ EndTxn
                                                                              │ decided: durable
                                                                              ▼
                                           markers in all shards ─▶ offsets committed ─▶ finished

Every step is durable in the meta service before its response. The order is the guarantee: once the
outcome is decided it can only be completed, by this process or by the next one, which finds all
that it needs in the state and writes the markers again. A repeated marker changes nothing for
readers, and neither does a repeated commit of the same offset.

In a cluster each node coordinates its share of the transactional ids. Nodes learn of a new
assignment at different times, so that for a moment two may act as the coordinator of one id: the
meta service checks every change against the transaction that it is meant for, and so do the nodes
that lead the partitions (`participant`) with every step. In a cluster the state of an id is
therefore read again with every request; a standalone node caches it.

Runs on the server's event loop. Requests of one transactional id run one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Final

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.cluster_view import ClusterView
from penstock.brokers.kafka.transactions.completion import EndProgress, TransactionCompleter
from penstock.brokers.kafka.transactions.index import TransactionIndex
from penstock.brokers.kafka.transactions.participant import TransactionParticipant, is_open
from penstock.brokers.kafka.transactions.participant_rpc import open_writer
from penstock.brokers.kafka.transactions.pending_offsets import PendingOffsets
from penstock.errors import BusyError, StoreError, TransactionRefusedError, UnknownShardError
from penstock.meta import (
    BeginProducer,
    Decide,
    Enlist,
    ForgetAborted,
    ForgetTransactions,
    NewOffset,
    StageOffsets,
    TransactionClient,
    TransactionCommand,
    TransactionPartition,
    TransactionState,
)
from penstock.platform.log import get_logger
from penstock.record import ShardId

TRANSACTIONS_MAX: Final = 100_000
IDLE_MS: Final = 7 * 86_400_000
"""How long an unused transactional id is kept; Kafka's default."""
END_WAIT_S: Final = 5.0
"""How long the next request waits for a transaction that is being ended."""
RETRY_S: Final = (0.05, 0.2, 1.0, 5.0)
SCAN_INTERVAL_S: Final = 60.0
"""How often all transactions are scanned, besides when nodes join or leave."""
LEFT_OVER_EVERY_S: Final = 5.0
_DROP_INTERVAL_S: Final = 600.0

_log: Final = get_logger(__name__)


class _Entry:
    """What is known of a transactional id; `state` is what the meta service has."""

    __slots__ = ("ending", "lock", "opened", "opened_ms", "state")

    def __init__(self, state: TransactionState | None) -> None:
        self.state = state
        self.lock: Final = asyncio.Lock()
        self.ending: asyncio.Task[None] | None = None
        self.opened: set[str] = set()
        """Shards whose leaders know of the transaction that began at `opened_ms`."""
        self.opened_ms = -1

    @property
    def is_busy(self) -> bool:
        return self.lock.locked() or (self.ending is not None and not self.ending.done())


class TransactionCoordinator:
    def __init__(
        self,
        broker: KafkaBroker,
        meta: TransactionClient,
        index: TransactionIndex,
        participant: TransactionParticipant,
        cluster: ClusterView | None = None,
    ) -> None:
        """`cluster`: there are other nodes, which coordinate their share."""
        self._broker: Final = broker
        self._meta: Final = meta
        self._index: Final = index
        self._participant: Final = participant
        self._limits: Final = broker.drivers.limits
        self._completer: Final = TransactionCompleter(broker, meta, participant)
        self._entries: Final[dict[str, _Entry]] = {}
        self._cluster: Final = cluster
        self._pending_offsets: PendingOffsets | None = None
        if cluster is not None:
            self._pending_offsets = PendingOffsets(broker, meta, cluster)
            self._completer.node_of_group = cluster.node_of
        self._next_left_over = self._next_scan = 0.0
        self._scanned_changes = -1

    def recover(self, states: Iterable[TransactionState]) -> None:
        """Load the transactions of an earlier process: open ones go on, or time out; decided ones
        are completed. In a cluster this waits until the other nodes are known."""
        for state in states if self._cluster is None else ():
            self._index.record_epoch(state.producer_id, state.epoch)
            self._adopt(state)

    def _adopt(self, state: TransactionState) -> None:
        entry = self._entries.setdefault(state.transactional_id, _Entry(None))
        if not entry.is_busy:
            entry.state = state
            if state.status.startswith("prepare"):
                self._begin_to_end(entry)

    def _is_here(self, transactional_id: str) -> bool:
        return self._cluster is None or self._cluster.is_coordinator_of(transactional_id)

    def check_here(self, transactional_id: str) -> None:
        """Raise when another node coordinates this id."""
        if not self._is_here(transactional_id):
            raise TransactionRefusedError("not_here", f"{transactional_id!r} is another node's")

    # Requests of producers

    async def begin_producer(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int]
    ) -> TransactionState:
        """Return the producer id and epoch for a producer, after aborting a transaction that its
        predecessor left open."""
        entry = self._entry_of(transactional_id, is_new=True)
        async with entry.lock:
            state = await self._current_state(entry, transactional_id)
            if state is not None and state.status == "ongoing":
                _check_expected(state, expected)
                await self._decide(entry, state, commit=False, fence=True)
                await self._wait_for_end(entry)
            new_id = await self._broker.run_blocking(
                lambda: self._broker.meta.allocate_producer_ids(1)[0]
            )
            begin = BeginProducer(
                self._broker.namespace, transactional_id, timeout_ms, new_id, *expected
            )
            return await self._change(entry, begin)

    async def enlist(
        self,
        producer: tuple[str, int, int],
        shards: Sequence[ShardId] = (),
        groups: Sequence[str] = (),
    ) -> None:
        """Let a transaction write to `shards` and commit offsets of `groups`."""
        entry = self._entry_of(producer[0])
        async with entry.lock:
            state = await self._checked(entry, producer)
            is_open = state.status == "ongoing"
            held = {partition.shard for partition in state.partitions} if is_open else set()
            new = [shard.name for shard in shards if shard.name not in held]
            partitions = [TransactionPartition(name, await self._end_of(name)) for name in new]
            if partitions or groups or not is_open:
                enlist = Enlist(self._broker.namespace, *producer, tuple(partitions), tuple(groups))
                state = await self._change(entry, enlist)
            await self._open_writers(entry, state)

    async def _open_writers(self, entry: _Entry, state: TransactionState) -> None:
        """Announce a transaction to the leaders of its partitions, once each."""
        if entry.opened_ms != state.started_ms:
            entry.opened, entry.opened_ms = set(), state.started_ms
        bounds = {
            partition.shard: partition.first_offset
            for partition in state.partitions
            if partition.shard not in entry.opened
        }
        for node, part in (await self._completer.by_leader(bounds)).items():
            await self._completer.run_step(node, open_writer(state, part))
            entry.opened.update(part)

    async def stage(
        self, producer: tuple[str, int, int], group: str, offsets: Sequence[NewOffset]
    ) -> None:
        """Keep offsets of a group until the transaction commits. Runs on the group's coordinator,
        which need not be the transaction's."""
        command = StageOffsets(self._broker.namespace, *producer, group, tuple(offsets))
        if self._pending_offsets is not None:
            self._pending_offsets.add(group, producer[0])
            await self._broker.run_blocking(partial(self._meta.change_transaction, command))
            self._pending_offsets.add(group, producer[0])  # a scan may have finished meanwhile
            return
        entry = self._entry_of(producer[0])
        async with entry.lock:
            await self._checked(entry, producer)
            await self._change(entry, command)

    async def end(self, producer: tuple[str, int, int], *, commit: bool) -> None:
        """Decide a transaction; this process, or the next one, completes it afterwards."""
        entry = self._entry_of(producer[0])
        async with entry.lock:
            state = await self._checked(entry, producer)
            await self._decide(entry, state, commit=commit, fence=False)

    async def pending_offsets(self, group: str) -> Collection[ShardId]:
        """Return the shards whose offset in `group` a transaction may be about to change."""
        if self._pending_offsets is not None:
            states = await self._pending_offsets.find(group)
        else:
            known = [entry.state for entry in self._entries.values()]
            states = [state for state in known if state is not None]
        return {
            ShardId.parse(entry.shard)
            for state in states
            for staged in state.offsets
            if staged.group == group
            for entry in staged.offsets
        }

    # Time

    async def watch(self) -> None:
        """Abort transactions that time out, drop idle ids, and take over the transactions of nodes
        that left the cluster."""
        clock = self._broker.clock
        interval = self._broker.settings.transaction_check_interval_ms / 1000
        next_drop = clock.monotonic() + _DROP_INTERVAL_S
        while True:
            await asyncio.sleep(interval)
            try:
                await self._take_over_if_due()
                await self.abort_overdue()
                if clock.monotonic() >= next_drop:
                    next_drop = clock.monotonic() + _DROP_INTERVAL_S
                    await self.drop_idle()
            except StoreError as error:
                _log.warning("transactions_not_watched", reason=str(error))

    async def _take_over_if_due(self) -> None:
        cluster, now = self._cluster, self._broker.clock.monotonic()
        if cluster is None or not cluster.knows_all:
            return
        if now >= self._next_left_over:
            await self._participant.release_left_over()
            self._next_left_over = now + LEFT_OVER_EVERY_S
        changes = cluster.changes
        if changes != self._scanned_changes or now >= self._next_scan:
            await self.take_over_transactions()
            self._scanned_changes, self._next_scan = changes, now + SCAN_INTERVAL_S

    async def take_over_transactions(self) -> None:
        """Take over transactions whose coordinator this node became, and leave the others."""
        assert self._pending_offsets is not None, "there are others"
        states = await self._pending_offsets.scan()
        states = [state for state in states if state.namespace == self._broker.namespace]
        here = {
            state.transactional_id: state
            for state in states
            if self._is_here(state.transactional_id)
        }
        for name, entry in list(self._entries.items()):
            if name not in here and not entry.is_busy:
                del self._entries[name]
        for name, state in here.items():
            # An ended one is loaded by the next request for it, or when it is idle for too long.
            if is_open(state) or name in self._entries or state.updated_ms < self._idle_ms():
                self._adopt(state)

    async def abort_overdue(self) -> int:
        """Abort transactions that are open for longer than their timeouts."""
        now_ms = self._broker.clock.now_ms()
        overdue = [entry for entry in self._entries.values() if _is_overdue(entry.state, now_ms)]
        for entry in overdue:
            async with entry.lock:
                name = "" if entry.state is None else entry.state.transactional_id
                state = await self._current_state(entry, name)
                if state is not None and _is_overdue(state, now_ms) and self._is_here(name):
                    _log.info("transaction_timed_out", transactional_id=name)
                    await self._decide(entry, state, commit=False, fence=True)
        return len(overdue)

    def _idle_ms(self) -> int:
        """Return the time of the last use before which an id is dropped."""
        return max(0, self._broker.clock.expiry_ms() - IDLE_MS)

    async def drop_idle(self) -> None:
        await self._drop_aborted()
        before_ms = self._idle_ms()
        idle = [
            name
            for name, entry in self._entries.items()
            if entry.state is not None
            and entry.state.updated_ms < before_ms
            and (entry.state.status == "empty" or entry.state.status.startswith("complete"))
            and not entry.lock.locked()
        ]
        for start in range(0, len(idle), 1_000):
            part = tuple(idle[start : start + 1_000])
            command = ForgetTransactions(self._broker.namespace, part, before_ms)
            await self._broker.run_blocking(partial(self._meta.change_transaction, command))
            for name in part:
                dropped = self._entries.pop(name, None)
                if dropped is not None and dropped.state is not None:
                    self._index.remove_epoch(dropped.state.producer_id)

    async def _drop_aborted(self) -> None:
        for shard in self._limits.shards_with_aborted():
            try:
                info = await self._broker.run_blocking(partial(self._broker.shard_info, shard))
                earliest: int | None = info.earliest
            except UnknownShardError:
                earliest = None
            gone = self._limits.forget_aborted(shard, earliest)
            for start in range(0, len(gone), 1_000):
                command = ForgetAborted(tuple(gone[start : start + 1_000]))
                await self._broker.run_blocking(partial(self._meta.change_transaction, command))

    # Steps

    def _entry_of(self, transactional_id: str, *, is_new: bool = False) -> _Entry:
        self.check_here(transactional_id)
        entry = self._entries.get(transactional_id)
        if entry is None:
            if self._cluster is None and not is_new:
                raise TransactionRefusedError("unknown_transaction", f"{transactional_id!r}")
            if len(self._entries) >= TRANSACTIONS_MAX:
                raise BusyError(f"{TRANSACTIONS_MAX} transactional ids are in use")
            entry = self._entries[transactional_id] = _Entry(None)
        return entry

    async def _checked(self, entry: _Entry, producer: tuple[str, int, int]) -> TransactionState:
        """Return the state if the producer that asks is the current one."""
        state = await self._current_state(entry, producer[0])
        if state is None:
            self._entries.pop(producer[0], None)  # unknown ids must not consume memory
        return _check(state, producer)

    async def _current_state(self, entry: _Entry, transactional_id: str) -> TransactionState | None:
        """Return the state after the end of the last transaction. In a cluster another node may
        have changed it, so the meta service is asked."""
        await self._wait_for_end(entry)
        if self._cluster is not None or entry.state is None:
            entry.state = await self._read_state(transactional_id)
            if entry.state is not None and entry.state.status.startswith("prepare"):
                self._begin_to_end(entry)
                await self._wait_for_end(entry)
        return entry.state

    async def _read_state(self, transactional_id: str) -> TransactionState | None:
        find = partial(self._meta.find_transaction, self._broker.namespace, transactional_id)
        return await self._broker.run_blocking(find)

    async def _decide(
        self, entry: _Entry, state: TransactionState, *, commit: bool, fence: bool
    ) -> None:
        decide = Decide(
            state.namespace,
            state.transactional_id,
            state.producer_id,
            state.epoch,
            commit,
            fence,
            state.started_ms,
        )
        decided = await self._change(entry, decide)
        if decided.status.startswith("prepare"):
            self._begin_to_end(entry)

    def _begin_to_end(self, entry: _Entry) -> None:
        entry.ending = self._broker.spawn(self._end(entry), "end of a transaction")

    async def _end(self, entry: _Entry) -> None:
        """Complete a decided transaction, however long that takes."""
        state, progress, tries = entry.state, EndProgress(), 0
        assert state is not None, "only what is decided is ended"
        while True:
            try:
                if tries and await self._is_ended_elsewhere(entry, state):
                    return
                entry.state = await self._completer.end(state, progress)
            except TransactionRefusedError as error:
                # Another node took itself for the coordinator and was faster.
                _log.info(
                    "transaction_ended_elsewhere",
                    transactional_id=state.transactional_id,
                    reason=str(error),
                )
                entry.state = None
                return
            except StoreError as error:
                pause = RETRY_S[min(tries, len(RETRY_S) - 1)]
                tries += 1
                _log.warning(
                    "transaction_not_ended",
                    transactional_id=state.transactional_id,
                    reason=str(error),
                    tries=tries,
                )
                await asyncio.sleep(pause)
            else:
                return

    async def _is_ended_elsewhere(self, entry: _Entry, state: TransactionState) -> bool:
        """Say whether a transaction is another node's to end, or was ended by one."""
        if self._cluster is None:
            return False
        if not self._is_here(state.transactional_id):
            entry.state = None
            return True
        current = await self._read_state(state.transactional_id)
        is_same = current is not None and current.started_ms == state.started_ms
        if current is not None and is_same and current.status.startswith("prepare"):
            return False
        entry.state = current
        return True

    async def _wait_for_end(self, entry: _Entry) -> None:
        if entry.ending is None:
            return
        done, _ = await asyncio.wait([entry.ending], timeout=END_WAIT_S)
        if not done:
            raise TransactionRefusedError("in_progress", "the last transaction is being ended")
        entry.ending = None

    async def _change(self, entry: _Entry, command: TransactionCommand) -> TransactionState:
        state = await self._broker.run_blocking(partial(self._meta.change_transaction, command))
        assert state is not None, "such a command leads to a state"
        entry.state = state
        self._index.record_epoch(state.producer_id, state.epoch)
        return state

    async def _end_of(self, shard: str) -> int:
        info = await self._broker.run_blocking(partial(self._broker.shard_info, shard))
        return info.latest


def _is_overdue(state: TransactionState | None, now_ms: int) -> bool:
    return (
        state is not None
        and state.status == "ongoing"
        and state.started_ms + state.timeout_ms < now_ms
    )


def _check(state: TransactionState | None, producer: tuple[str, int, int]) -> TransactionState:
    if state is None or state.producer_id != producer[1]:
        raise TransactionRefusedError("unknown_transaction", "no producer of that id")
    if state.epoch != producer[2]:
        raise TransactionRefusedError("fenced", f"epoch {producer[2]} is not {state.epoch}")
    return state


def _check_expected(state: TransactionState, expected: tuple[int, int]) -> None:
    if expected[1] >= 0 and expected != (state.producer_id, state.epoch):
        raise TransactionRefusedError("fenced", f"epoch {expected[1]} is not {state.epoch}")
