"""Which nodes serve Kafka clients, and which of them coordinates a group or a transaction.

A node announces its own address and rack to the meta service, and knows the others' from the
metadata, by `GroupCoordinators`. The coordinator of a name is that of the whole store: a group of
Kafka clients and one of native consumers have the same.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.errors import StoreError
from penstock.meta import EPOCH_BUMP_ROLE, KAFKA_LISTENER, OFFLINE, RACK, ListenerAnnouncer
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)

LISTED_S: Final = 10.0
"""For so long Metadata lists a node that has gone offline. librdkafka removes a broker that is not
listed together with the partitions it had there, before they have moved to a leader that the same
response names, and finds them again a second later."""


class BrokerAddress(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class ClusterView:
    def __init__(self, broker: KafkaBroker) -> None:
        self._broker: Final = broker
        self._coordinators: Final = broker.coordinators

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
        """All nodes that serve Kafka clients and are there, this one among them."""
        own = self.own
        others = (
            _address(node.node_id, node.listeners)
            for node in self._coordinators.nodes
            if node.status != OFFLINE and node.node_id != own.node_id
        )
        return sorted([own, *(address for address in others if address is not None)])

    @property
    def listed(self) -> list[BrokerAddress]:
        """`brokers`, and those that have gone offline a moment ago."""
        gone = (
            _address(node.node_id, node.listeners)
            for node in self._coordinators.nodes
            if node.node_id != self._broker.node_id and self._has_just_left(node.node_id)
        )
        return sorted([*self.brokers, *(address for address in gone if address is not None)])

    def _has_just_left(self, node_id: int) -> bool:
        offline_s = self._coordinators.offline_s(node_id)
        return offline_s is not None and offline_s < LISTED_S

    @property
    def registered(self) -> set[int]:
        """All nodes of the cluster, also those that are not there."""
        return {self._broker.node_id, *(node.node_id for node in self._coordinators.nodes)}

    @property
    def alive(self) -> set[int]:
        """The nodes that are there, whether they serve Kafka clients or not (yet)."""
        nodes = self._coordinators.nodes
        return {self._broker.node_id, *(node.node_id for node in nodes if node.status != OFFLINE)}

    @property
    def own(self) -> BrokerAddress:
        return BrokerAddress(
            self._broker.node_id, *self._broker.advertised, self._broker.rack or None
        )

    @property
    def bumps_epochs(self) -> bool:
        """Whether all nodes can bump the epoch of a producer at the end of a transaction."""
        nodes = self._coordinators.nodes
        return self.knows_all and all(EPOCH_BUMP_ROLE in node.roles for node in nodes)

    def find(self, node_id: int) -> BrokerAddress | None:
        """Return where a node serves Kafka clients; None: it does not, or is not there."""
        if node_id == self._broker.node_id:
            return self.own
        node = self._coordinators.find(node_id)
        if node is None or node.status == OFFLINE:
            return None
        return _address(node_id, node.listeners)

    def node_of(self, name: str) -> int:
        """Return the node that coordinates a group or a transaction."""
        return self._coordinators.coordinator_of(name, self._broker.namespace)

    def coordinator_of(self, name: str) -> BrokerAddress | None:
        """Return where the coordinator of a name serves Kafka clients; None: not known yet."""
        return self.find(self.node_of(name))

    def is_coordinator_of(self, name: str) -> bool:
        return self._coordinators.is_here(name, self._broker.namespace)

    async def announce(self) -> None:
        """Announce this node to the others. A node alone has nothing to do here."""
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


def _address(node_id: int, listeners: dict[str, str]) -> BrokerAddress | None:
    host, separator, port = listeners.get(KAFKA_LISTENER, "").rpartition(":")
    if not separator:
        return None
    return BrokerAddress(node_id, host, int(port), listeners.get(RACK) or None)
