"""The transaction coordinator of this node: the requests of transactional producers.

    InitProducerId ─▶ AddPartitions, AddOffsets ─▶ writes, TxnOffsetCommit ─▶ EndTxn
                                                                              │ decided: durable
                                                                              ▼
                                           markers in all shards ─▶ offsets committed ─▶ finished

Every step is durable in the meta service before its response. The order is the guarantee: once the
outcome is decided it can only be completed, by this process or by the next one, which finds all
that it needs in the state and writes the markers again. A repeated marker changes nothing for
readers, and neither does a repeated commit of the same offset.

Runs on the server's event loop. Requests of one transactional id run one at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.cluster_view import ClusterView
from penstock.brokers.kafka.transactions.completion import TransactionCompleter
from penstock.brokers.kafka.transactions.index import TransactionIndex
from penstock.brokers.kafka.transactions.maintenance import (
    TransactionMaintenance,
    TransactionTakeover,
)
from penstock.brokers.kafka.transactions.participant import TransactionParticipant
from penstock.brokers.kafka.transactions.participant_rpc import open_writer
from penstock.brokers.kafka.transactions.pending_offsets import PendingOffsets
from penstock.brokers.kafka.transactions.table import TransactionEntry, TransactionTable
from penstock.errors import TransactionRefusedError
from penstock.meta import (
    EPOCH_MAX,
    BeginProducer,
    Enlist,
    NewOffset,
    StageOffsets,
    TransactionClient,
    TransactionPartition,
    TransactionState,
)
from penstock.record import ShardId


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
        self._cluster: Final = cluster
        self._index: Final = index
        self._participant: Final = participant
        self._completer: Final = TransactionCompleter(broker, meta, participant)
        self._table: Final = TransactionTable(broker, meta, index, self._completer, cluster)
        self._pending_offsets: PendingOffsets | None = None
        takeover: TransactionTakeover | None = None
        if cluster is not None:
            pending = self._pending_offsets = PendingOffsets(broker, meta, cluster)
            takeover = TransactionTakeover(broker, cluster, participant, pending, self._table)
            self._completer.node_of_group = cluster.node_of
        self.maintenance: Final = TransactionMaintenance(broker, meta, index, self._table, takeover)

    def recover(self, states: Iterable[TransactionState]) -> None:
        """Load the transactions of an earlier process: open ones go on, or time out; decided ones
        are completed. In a cluster this waits until the other nodes are known."""
        for state in states if self._pending_offsets is None else ():
            self._index.record_epoch(state.producer_id, state.epoch)
            self._table.adopt(state)

    async def begin_producer(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int]
    ) -> TransactionState:
        """Return the producer id and epoch for a producer, after aborting a transaction that its
        predecessor left open."""
        entry = self._table.get(transactional_id, is_new=True)
        async with entry.lock:
            state = await self._table.current(entry)
            if state is not None and state.status == "ongoing":
                _check_expected(state, expected)
                await self._table.decide(entry, state, commit=False, fence=True)
                await self._table.wait_for_end(entry)
            new_id = await self._new_producer_id()
            begin = BeginProducer(
                self._broker.namespace, transactional_id, timeout_ms, new_id, *expected
            )
            return await self._table.change(entry, begin)

    async def enlist(
        self,
        producer: tuple[str, int, int],
        shards: Sequence[ShardId] = (),
        groups: Sequence[str] = (),
    ) -> None:
        """Let a transaction write to `shards` and commit offsets of `groups`."""
        entry = self._table.get(producer[0])
        async with entry.lock:
            state = await self._table.check(entry, producer)
            is_ongoing = state.status == "ongoing"
            held = {partition.shard for partition in state.partitions} if is_ongoing else set()
            new = [shard.name for shard in shards if shard.name not in held]
            bound_of = self._participant.bound_of
            bounds = {
                name: await self._broker.run_blocking(partial(bound_of, name)) for name in new
            }
            if bounds or groups or not is_ongoing:
                state = await self._enlist(entry, producer, bounds, groups)
            await self._open_writers(entry, state)

    async def enlist_at(
        self,
        producer: tuple[str, int, int],
        bounds: Mapping[str, int],
        groups: Sequence[str] = (),
        *,
        waits: bool = True,
    ) -> TransactionState:
        """As `enlist`, for the leader of shards that end at `bounds`, which lets the producer write
        to them by itself. Without `waits` it is refused while the last transaction ends."""
        entry = self._table.get(producer[0])
        async with entry.lock:
            if not waits and entry.is_ending:
                raise TransactionRefusedError(
                    "in_progress", f"the last transaction of {producer[0]!r} is being ended"
                )
            state = await self._table.check(entry, producer)
            known = {partition.shard for partition in state.partitions}
            known_groups = {staged.group for staged in state.offsets}
            if state.status == "ongoing" and known.issuperset(bounds):
                groups = [group for group in groups if group not in known_groups]
                if not groups:
                    return state
            return await self._enlist(entry, producer, bounds, groups)

    async def _enlist(
        self,
        entry: TransactionEntry,
        producer: tuple[str, int, int],
        bounds: Mapping[str, int],
        groups: Sequence[str],
    ) -> TransactionState:
        partitions = tuple(TransactionPartition(shard, end) for shard, end in bounds.items())
        enlist = Enlist(self._broker.namespace, *producer, partitions, tuple(groups))
        return await self._table.change(entry, enlist)

    async def _open_writers(self, entry: TransactionEntry, state: TransactionState) -> None:
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
        entry = self._table.get(producer[0])
        async with entry.lock:
            await self._table.check(entry, producer)
            await self._table.change(entry, command)

    async def end(
        self, producer: tuple[str, int, int], *, commit: bool, bumps: bool = False
    ) -> tuple[int, int]:
        """Decide a transaction; this process, or the next one, completes it afterwards. Return the
        producer id and epoch for the next one: another epoch if the client can learn of it, so that
        a late batch of this transaction cannot become part of the next."""
        entry = self._table.get(producer[0])
        async with entry.lock:
            if not bumps or not self._can_bump():
                state = await self._table.check(entry, producer)
                await self._table.decide(entry, state, commit=commit, fence=False)
                return producer[1:]
            current = await self._table.current(entry)
            if current is not None and current.was_ended_by(*producer[1:], commit=commit):
                return current.next_producer  # asked again: the response was lost
            state = await self._table.check(entry, producer)
            new_id = -1
            if state.epoch >= EPOCH_MAX:
                new_id = await self._new_producer_id()
            decided = await self._table.decide(
                entry, state, commit=commit, fence=False, bumps=True, new_producer_id=new_id
            )
            return decided.next_producer

    def _can_bump(self) -> bool:
        return self._cluster is None or self._cluster.bumps_epochs

    async def _new_producer_id(self) -> int:
        return await self._broker.run_blocking(
            lambda: self._broker.meta.allocate_producer_ids(1)[0]
        )

    async def pending_offsets(self, group: str) -> Collection[ShardId]:
        """Return the shards whose offset in `group` a transaction may be about to change."""
        if self._pending_offsets is not None:
            states = await self._pending_offsets.find(group)
        else:
            states = [entry.state for entry in self._table if entry.state is not None]
        return {
            ShardId.parse(offset.shard)
            for state in states
            for staged in state.offsets
            if staged.group == group
            for offset in staged.offsets
        }


def _check_expected(state: TransactionState, expected: tuple[int, int]) -> None:
    if expected[1] >= 0 and expected != (state.producer_id, state.epoch):
        raise TransactionRefusedError(
            "fenced",
            f"the epoch of {state.transactional_id!r} is {state.epoch}, not {expected[1]}",
        )
