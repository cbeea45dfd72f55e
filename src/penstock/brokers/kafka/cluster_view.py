"""Which nodes serve Kafka clients, and which of them coordinates a group or a transaction.

A node tells the meta service its own address and looks at the others' a few times a minute; a
client that was told an old one asks again. The coordinator of a name is the node that wins its
draw, so that a node which comes or goes moves only its own share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.errors import StoreError
from penstock.groups.placing import KAFKA_LISTENER, draw_coordinator
from penstock.log import get_logger
from penstock.meta.client import ListenerAnnouncer, Node

LISTENER: Final = KAFKA_LISTENER
LOOK_EVERY_S: Final = 2.0
_log: Final = get_logger(__name__)


class BrokerAddress(NamedTuple):
    node_id: int
    host: str
    port: int


class ClusterView:
    def __init__(self, broker: KafkaBroker, *, knows_all: bool = True) -> None:
        """`knows_all`: there are no others to be found first."""
        self._broker: Final = broker
        self._others: list[BrokerAddress] = []
        self.knows_all = knows_all
        """Before it is known who else is there, a node coordinates nothing."""
        self.changes = 0
        """Grows when nodes come or go: others coordinate then what some did before."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when nodes came or went."""

    @property
    def brokers(self) -> list[BrokerAddress]:
        """All nodes that serve Kafka clients, this one among them."""
        return sorted([self.own, *self._others])

    @property
    def own(self) -> BrokerAddress:
        return BrokerAddress(self._broker.node_id, *self._broker.advertised)

    def coordinator_of(self, name: str) -> BrokerAddress:
        brokers = {one.node_id: one for one in self.brokers}
        return brokers[draw_coordinator(name, brokers)]

    def is_coordinator_of(self, name: str) -> bool:
        if not self.knows_all:
            return False
        return not self._others or self.coordinator_of(name).node_id == self._broker.node_id

    async def watch(self) -> None:
        """Announce this node, and follow the others. A node alone has nothing to do here."""
        meta = self._broker.meta
        if not isinstance(meta, ListenerAnnouncer):
            return
        own = self.own
        announce = partial(meta.announce, LISTENER, f"{own.host}:{own.port}")
        try:
            await self._broker.run_blocking(announce)
        except StoreError as error:
            # The meta service says it again by itself until it is known.
            _log.warning("kafka_listener_not_announced_yet", reason=str(error))
        while True:
            try:
                nodes = await self._broker.run_blocking(self._broker.meta.list_nodes)
            except StoreError as error:
                _log.warning("kafka_nodes_not_known", reason=str(error))
            else:
                self.note(nodes)
            await asyncio.sleep(LOOK_EVERY_S)

    def note(self, nodes: list[Node]) -> None:
        """Take over which nodes there are."""
        others: list[BrokerAddress] = []
        for node in nodes:
            host, found, port = node.listeners.get(LISTENER, "").rpartition(":")
            if found and node.status == "online" and node.node_id != self._broker.node_id:
                others.append(BrokerAddress(node.node_id, host, int(port)))
        is_changed = {one.node_id for one in others} != {one.node_id for one in self._others}
        self._others = others
        is_changed = is_changed or not self.knows_all
        self.knows_all = True
        if is_changed:
            self.changes += 1
            self.on_change()
