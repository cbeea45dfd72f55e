"""Which nodes serve Kafka clients, and which of them coordinates a group or a transaction.

A node announces its own address to the meta service and reads the others' every 2 s; a client with
an old address asks again. The coordinator of a name is that of the whole store,
`GroupCoordinators`: a group of Kafka clients and one of native consumers have the same.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, NamedTuple

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.errors import StoreError
from penstock.meta import KAFKA_LISTENER, ListenerAnnouncer, Node
from penstock.platform.log import get_logger

REFRESH_INTERVAL_S: Final = 2.0
_log: Final = get_logger(__name__)


class BrokerAddress(NamedTuple):
    node_id: int
    host: str
    port: int


class ClusterView:
    def __init__(self, broker: KafkaBroker) -> None:
        self._broker: Final = broker
        self._coordinators: Final = broker.coordinators
        self._others: list[BrokerAddress] = []

    @property
    def knows_all(self) -> bool:
        """Whether the other nodes are known; until then a node coordinates nothing."""
        return self._coordinators.is_known

    @property
    def changes(self) -> int:
        """Grows when nodes join or leave, which changes the coordinators of names."""
        return self._coordinators.changes

    @property
    def brokers(self) -> list[BrokerAddress]:
        """All nodes that serve Kafka clients, this one among them."""
        return sorted([self.own, *self._others])

    @property
    def own(self) -> BrokerAddress:
        return BrokerAddress(self._broker.node_id, *self._broker.advertised)

    def node_of(self, name: str) -> int:
        """Return the node that coordinates a group or a transaction."""
        return self._coordinators.coordinator_of(name, self._broker.namespace)

    def coordinator_of(self, name: str) -> BrokerAddress | None:
        """Return where the coordinator of a name serves Kafka clients; None: not known yet."""
        node_id = self.node_of(name)
        if node_id == self._broker.node_id:
            return self.own
        return _address(node_id, self._coordinators.address_of(node_id, KAFKA_LISTENER))

    def is_coordinator_of(self, name: str) -> bool:
        return self._coordinators.is_here(name, self._broker.namespace)

    async def watch(self) -> None:
        """Announce this node, and follow the others. A node alone has nothing to do here."""
        meta = self._broker.meta
        if not isinstance(meta, ListenerAnnouncer):
            return
        own = self.own
        announce = partial(meta.announce, KAFKA_LISTENER, f"{own.host}:{own.port}")
        try:
            await self._broker.run_blocking(announce)
        except StoreError as error:
            # The meta client repeats the announcement until it succeeds.
            _log.warning("kafka_listener_not_announced_yet", reason=str(error))
        while True:
            try:
                nodes = await self._broker.run_blocking(self._broker.meta.list_nodes)
            except StoreError as error:
                _log.warning("kafka_nodes_not_known", reason=str(error))
            else:
                self.update(nodes)
            await asyncio.sleep(REFRESH_INTERVAL_S)

    def update(self, nodes: list[Node]) -> None:
        """Update the addresses of the other nodes."""
        addresses = [
            _address(node.node_id, node.listeners.get(KAFKA_LISTENER, ""))
            for node in nodes
            if node.status == "online" and node.node_id != self._broker.node_id
        ]
        self._others = [address for address in addresses if address is not None]


def _address(node_id: int, text: str) -> BrokerAddress | None:
    host, separator, port = text.rpartition(":")
    return BrokerAddress(node_id, host, int(port)) if separator else None
