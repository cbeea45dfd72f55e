"""Which node coordinates a consumer group: the one rule of native, gRPC and Kafka clients.

    coordinators = GroupCoordinators(node_id)
    meta.watch(0, coordinators.apply)
    coordinators.coordinator_of("billing")        # a node's number
    coordinators.is_here("billing")

Candidates are the nodes that are online and announce the storage API, through which the other
nodes reach them. Where some of them also serve Kafka clients only those are candidates: a Kafka
client talks to the coordinator itself. Of the candidates the one with the highest hash of (node,
namespace, group) coordinates the group, so a node that comes or goes moves only its own share.

Nodes learn of a change at slightly different moments, and two may take themselves for the
coordinator. No reply to a client depends on it: the epochs of the meta service order the commits of
both, and a node that takes a group over has the previous one save its cached commits (see
`penstock.offsets.cluster_manager`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Final

from penstock.meta.client import Node, Update
from penstock.meta.controller.decisions import STORAGE_LISTENER
from penstock.meta.events import NodePut, NodeRemoved
from penstock.meta.state.constants import DEFAULT_NAMESPACE, OFFLINE, ONLINE, STOPPING
from penstock.platform.clock import Clock, SystemClock

KAFKA_LISTENER: Final = "kafka"
"""Under this name a node announces where it serves Kafka clients."""

_KEPT_MAX: Final = 100_000
"""Groups whose coordinator is remembered until the candidates change."""


class GroupCoordinators:
    """Methods may be called from any thread."""

    def __init__(self, node_id: int, *, is_alone: bool = False, clock: Clock | None = None) -> None:
        """`is_alone`: without other nodes, this one coordinates everything."""
        self.node_id: Final = node_id
        self._clock: Final = clock if clock is not None else SystemClock()
        self._is_alone: Final = is_alone
        self._lock: Final = threading.Lock()
        self._nodes: dict[int, Node] = {}
        self._offline_since: dict[int, float] = {}
        """When this node learned that others are offline; without those that were so before."""
        self._candidates: tuple[int, ...] = ()
        self._kept: dict[tuple[str, str], int] = {}
        self._listeners: list[Callable[[], None]] = []
        self.is_known = is_alone
        """Whether the nodes of the cluster are known; before, a node coordinates nothing."""
        self.changes = 0
        """Grows with every change of the candidates: some groups have another coordinator then."""
        self.resets = 0
        """Grows when changes were missed: any group may have had another coordinator meanwhile."""

    def apply(self, update: Update) -> None:
        """Follow the metadata: give this to `watch`, from revision 0 on."""
        with self._lock:
            before = self._nodes.copy()
            if update.is_reset:
                self._nodes.clear()
                self.resets += 1
            for event in update.events:
                if isinstance(event, NodePut):
                    self._nodes[event.node.node_id] = event.node
                elif isinstance(event, NodeRemoved):
                    self._nodes.pop(event.node_id, None)
            self._update_offline(before)
            candidates = _candidates(self._nodes.values())
            is_changed = candidates != self._candidates or update.is_reset or not self.is_known
            if is_changed:
                # In this order: a reader that sees the new table sees the new candidates, too.
                self._candidates = candidates
                self._kept = {}
                self.changes += 1
            self.is_known = True
            listeners = list(self._listeners) if is_changed else []
        for listener in listeners:
            listener()

    def _update_offline(self, before: Mapping[int, Node]) -> None:
        for node_id in {*before, *self._nodes}:
            node, last = self._nodes.get(node_id), before.get(node_id)
            if node is None or node.status != OFFLINE:
                self._offline_since.pop(node_id, None)
            elif last is not None and last.status != OFFLINE:
                self._offline_since[node_id] = self._clock.monotonic()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Have `listener` called after each change of the candidates, on the thread that applies
        it; it must not block."""
        with self._lock:
            self._listeners.append(listener)

    def coordinator_of(self, group: str, namespace: str = DEFAULT_NAMESPACE) -> int:
        """Return the node that coordinates a group; this one while no candidate is known."""
        kept = self._kept
        coordinator = kept.get((namespace, group))
        if coordinator is not None:
            return coordinator
        candidates = self._candidates
        if self._is_alone or not candidates:
            return self.node_id
        coordinator = max(candidates, key=lambda node: _draw(node, namespace, group))
        if len(kept) < _KEPT_MAX and candidates is self._candidates:
            kept[namespace, group] = coordinator
        return coordinator

    def is_here(self, group: str, namespace: str = DEFAULT_NAMESPACE) -> bool:
        """Return whether this node coordinates a group; False until the nodes are known."""
        return self.is_known and self.coordinator_of(group, namespace) == self.node_id

    @property
    def nodes(self) -> list[Node]:
        """The nodes of the cluster, as far as they are known."""
        with self._lock:
            return list(self._nodes.values())

    def find(self, node_id: int) -> Node | None:
        """Return a node of the cluster; None: not known."""
        return self._nodes.get(node_id)

    def offline_s(self, node_id: int) -> float | None:
        """Return for how many seconds a node has been offline; None: it is not, or has been since
        before this node learned of it."""
        since = self._offline_since.get(node_id)
        return None if since is None else self._clock.monotonic() - since

    def is_online(self, node_id: int) -> bool:
        """Return whether a node is there, as far as the metadata knows."""
        node = self._nodes.get(node_id)
        return node is not None and node.status != OFFLINE

    def is_stopping(self, node_id: int) -> bool:
        """Return whether a node has said that it is about to stop, after it saved what it had."""
        node = self._nodes.get(node_id)
        return node is not None and node.status == STOPPING


def _candidates(nodes: Iterable[Node]) -> tuple[int, ...]:
    able = [node for node in nodes if node.status == ONLINE and STORAGE_LISTENER in node.listeners]
    with_kafka = [node for node in able if KAFKA_LISTENER in node.listeners]
    return tuple(sorted(node.node_id for node in with_kafka or able))


def _draw(node: int, namespace: str, group: str) -> bytes:
    return blake2b(f"{node}/{namespace}/{group}".encode(), digest_size=8).digest()
