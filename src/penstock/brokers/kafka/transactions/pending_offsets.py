"""Which transactions may be about to commit offsets of a group: known at the group's coordinator,
which need not be that of the transactions."""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.cluster_view import ClusterView
from penstock.meta import TransactionClient, TransactionState


class PendingOffsets:
    """Keeps transactional ids only; the state of each is read when it is needed."""

    def __init__(self, broker: KafkaBroker, meta: TransactionClient, cluster: ClusterView) -> None:
        self._broker: Final = broker
        self._meta: Final = meta
        self._cluster: Final = cluster
        self._names: dict[str, set[str]] = {}
        """Transactional ids by group."""
        self._scanned = -1

    def add(self, group: str, transactional_id: str) -> None:
        self._names.setdefault(group, set()).add(transactional_id)

    async def find(self, group: str) -> list[TransactionState]:
        """Return the transactions that have staged offsets of a group."""
        if self._scanned != self._cluster.changes:
            await self.scan()  # the group may have been another node's until now
        states: list[TransactionState] = []
        for name in sorted(self._names.get(group, ())):
            ask = partial(self._meta.find_transaction, self._broker.namespace, name)
            state = await self._broker.run_blocking(ask)
            if state is not None and any(staged.group == group for staged in state.offsets):
                states.append(state)
        return states

    async def scan(self) -> list[TransactionState]:
        """Read all transactions; ids that are added meanwhile stay."""
        changes, before = self._cluster.changes, self._names
        self._names = {}
        try:
            states = await self._broker.run_blocking(self._meta.list_transactions)
        except BaseException:
            for group, names in before.items():
                self._names.setdefault(group, set()).update(names)
            raise
        for state in states:
            if state.namespace == self._broker.namespace:
                for staged in state.offsets:
                    self.add(staged.group, state.transactional_id)
        self._scanned = changes
        return states
