"""Which node coordinates a group: the one that wins the draw of its name among the nodes that serve
clients, so that a node which comes or goes moves only its own share.

The same rule as in the Kafka front end, whose members and ours must meet at one node.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final, Protocol
from zlib import crc32

from penstock.errors import StoreError
from penstock.log import get_logger
from penstock.meta.client import Node

KAFKA_LISTENER: Final = "kafka"
LOOK_EVERY_S: Final = 2.0
STOP_S: Final = 5.0

_log: Final = get_logger(__name__)


def draw_coordinator(name: str, nodes: Iterable[int]) -> int:
    """Return the node of `nodes` that coordinates the group `name`."""
    return max(nodes, key=lambda node: crc32(f"{node}/{name}".encode()))


def candidates(nodes: Iterable[Node]) -> list[int]:
    """Return the nodes that take part in the draw: those that serve Kafka clients; in a cluster
    that serves none, all nodes."""
    online = [node for node in nodes if node.status == "online" and node.listeners]
    with_kafka = [node for node in online if node.listeners.get(KAFKA_LISTENER)]
    return sorted(node.node_id for node in with_kafka or online)


class NodeLister(Protocol):
    def list_nodes(self) -> list[Node]: ...


class GroupPlacement:
    """Follows the nodes of a cluster, in a thread of its own."""

    def __init__(
        self, meta: NodeLister, node_id: int, on_change: Callable[[], None] = lambda: None
    ) -> None:
        self._meta: Final = meta
        self._node_id: Final = node_id
        self._on_change: Final = on_change
        self._nodes: list[int] = []
        self._ended: Final = threading.Event()
        self._thread: Final = threading.Thread(
            target=self._run, name="penstock-group-places", daemon=True
        )
        self._thread.start()

    def node_of(self, group: str) -> int | None:
        """Return the node that coordinates a group; None: not known yet."""
        nodes = self._nodes
        return draw_coordinator(group, nodes) if nodes else None

    def is_here(self, group: str) -> bool:
        return self.node_of(group) == self._node_id

    def look(self) -> None:
        try:
            nodes = candidates(self._meta.list_nodes())
        except StoreError as error:
            _log.debug("group_places_not_known", reason=str(error))
            return
        if nodes != self._nodes:
            self._nodes = nodes
            self._on_change()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        while True:
            self.look()
            if self._ended.wait(LOOK_EVERY_S):
                return
