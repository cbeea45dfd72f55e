"""The regular rounds of the transaction coordinator: timeouts, idle ids, transactions whose
coordinator this node became, and records of aborted transactions that no longer exist."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.cluster_view import ClusterView
from penstock.brokers.kafka.transactions.index import TransactionIndex
from penstock.brokers.kafka.transactions.participant import TransactionParticipant, is_open
from penstock.brokers.kafka.transactions.pending_offsets import PendingOffsets
from penstock.brokers.kafka.transactions.table import TransactionTable
from penstock.errors import StoreError, UnknownShardError
from penstock.meta import ForgetAborted, ForgetTransactions, TransactionClient, TransactionCommand
from penstock.platform.log import get_logger

IDLE_MS: Final = 7 * 86_400_000
"""How long an unused transactional id is kept; Kafka's default."""
SCAN_INTERVAL_S: Final = 60.0
"""How often all transactions are scanned, besides when nodes join or leave."""
LEFT_OVER_INTERVAL_S: Final = 5.0
_DROP_INTERVAL_S: Final = 600.0
_COMMAND_ITEMS_MAX: Final = 1_000

_log: Final = get_logger(__name__)


class TransactionMaintenance:
    def __init__(
        self,
        broker: KafkaBroker,
        meta: TransactionClient,
        index: TransactionIndex,
        table: TransactionTable,
        takeover: TransactionTakeover | None,
    ) -> None:
        """`takeover`: in a cluster."""
        self._broker: Final = broker
        self._clock: Final = broker.clock
        self._meta: Final = meta
        self._index: Final = index
        self._table: Final = table
        self._takeover: Final = takeover
        self._limits: Final = broker.drivers.limits

    async def watch(self) -> None:
        """Abort transactions that time out, drop idle ids, and take over the transactions of nodes
        that left the cluster, until the task is cancelled."""
        interval = self._broker.settings.transaction_check_interval_ms / 1000
        next_drop = self._clock.monotonic() + _DROP_INTERVAL_S
        while True:
            await asyncio.sleep(interval)
            try:
                if self._takeover is not None:
                    await self._takeover.run_if_due()
                await self.abort_overdue()
                if self._clock.monotonic() >= next_drop:
                    next_drop = self._clock.monotonic() + _DROP_INTERVAL_S
                    await self.drop_idle()
            except StoreError as error:
                _log.warning("transactions_not_watched", reason=str(error))

    async def abort_overdue(self) -> int:
        """Abort transactions that are open for longer than their timeouts; return how many."""
        now, aborted = self._clock.monotonic(), 0
        for entry in self._table:
            if entry.deadline > now:
                continue
            async with entry.lock:
                state = await self._table.current(entry)
                if state is None or entry.deadline > now or not self._table.is_here(entry.name):
                    continue
                _log.info("transaction_timed_out", transactional_id=entry.name)
                await self._table.decide(entry, state, commit=False, fence=True)
                aborted += 1
        return aborted

    async def drop_idle(self) -> None:
        await self._drop_aborted()
        before_ms = idle_before_ms(self._broker)
        idle = [
            entry.name
            for entry in self._table
            if entry.state is not None
            and entry.state.updated_ms < before_ms
            and not is_open(entry.state)
            and not entry.lock.locked()
        ]
        for start in range(0, len(idle), _COMMAND_ITEMS_MAX):
            names = tuple(idle[start : start + _COMMAND_ITEMS_MAX])
            await self._change(ForgetTransactions(self._broker.namespace, names, before_ms))
            for name in names:
                state = self._table.drop(name)
                if state is not None:
                    self._index.remove_epoch(state.producer_id)

    async def _drop_aborted(self) -> None:
        for shard in self._limits.shards_with_aborted():
            try:
                info = await self._broker.run_blocking(partial(self._broker.shard_info, shard))
                earliest: int | None = info.earliest
            except UnknownShardError:
                earliest = None
            ranges = self._limits.remove_aborted(shard, earliest)
            for start in range(0, len(ranges), _COMMAND_ITEMS_MAX):
                await self._change(ForgetAborted(tuple(ranges[start : start + _COMMAND_ITEMS_MAX])))

    async def _change(self, command: TransactionCommand) -> None:
        await self._broker.run_blocking(partial(self._meta.change_transaction, command))


class TransactionTakeover:
    """In a cluster: transactions whose coordinator was, or becomes, another node."""

    def __init__(
        self,
        broker: KafkaBroker,
        cluster: ClusterView,
        participant: TransactionParticipant,
        pending_offsets: PendingOffsets,
        table: TransactionTable,
    ) -> None:
        self._broker: Final = broker
        self._cluster: Final = cluster
        self._participant: Final = participant
        self._pending_offsets: Final = pending_offsets
        self._table: Final = table
        self._next_left_over = self._next_scan = 0.0
        self._scanned_changes = -1

    async def run_if_due(self) -> None:
        now = self._broker.clock.monotonic()
        if not self._cluster.knows_all:
            return
        if now >= self._next_left_over:
            await self._participant.release_left_over()
            self._next_left_over = now + LEFT_OVER_INTERVAL_S
        changes = self._cluster.changes
        if changes != self._scanned_changes or now >= self._next_scan:
            await self.run()
            self._scanned_changes, self._next_scan = changes, now + SCAN_INTERVAL_S

    async def run(self) -> None:
        """Take over transactions whose coordinator this node became, and leave the others."""
        states = {
            state.transactional_id: state
            for state in await self._pending_offsets.scan()
            if state.namespace == self._broker.namespace
            and self._table.is_here(state.transactional_id)
        }
        self._table.drop_except(states.keys())
        idle_ms = idle_before_ms(self._broker)
        for name, state in states.items():
            # An ended one is loaded by the next request for it, or when it is idle for too long.
            if is_open(state) or name in self._table or state.updated_ms < idle_ms:
                self._table.adopt(state)


def idle_before_ms(broker: KafkaBroker) -> int:
    """Return the time of the last use before which an id is dropped."""
    return max(0, broker.clock.expiry_ms() - IDLE_MS)
