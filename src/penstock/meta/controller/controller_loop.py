"""The controller's rounds: who is gone, and what follows from it.

Every node runs the loop; only the one that leads the group `metadata` decides. Nodes with an
internal port are watched by the `FailureDetector`; a member of an older release, which sends no
heartbeats to it, is lost when Raft has not heard of it for `SILENT_ROUNDS` rounds, and a node
without an internal port when its logged heartbeats stay out for `MISSED_HEARTBEAT_ROUNDS`. What is
decided is a command like any other, and is refused when the world has moved on. Shards are looked
at when one of them, or a node, changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from penstock.errors import StoreError
from penstock.meta.controller.decisions import failovers, lost_nodes, replica_nodes, short_of_room
from penstock.meta.controller.replica_decisions import (
    PreferredLeaders,
    completions,
    drains,
    movable,
    moves,
    vacancies,
)
from penstock.meta.controller.shard_counts import ShardCounts
from penstock.meta.raft.group.status import RaftStatus
from penstock.meta.state.constants import (
    ACTIVE,
    DRAINING,
    OFFLINE,
    ONLINE,
    REASSIGNMENT_ROLE,
    STOPPING,
)
from penstock.meta.state.metadata import commands as cmd
from penstock.meta.state.metadata.replica_sets import is_replicated, min_insync_of
from penstock.meta.state.metadata.rows import NODES, SHARDS, TOPICS, read_beats
from penstock.meta.state.model import Node, Shard, Topic
from penstock.meta.state.view import Reader
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)

ROUND_SECONDS: Final = 0.5
SILENT_ROUNDS: Final = 4
MISSED_HEARTBEAT_ROUNDS: Final = 5
BALANCE_ROUNDS: Final = 20
"""Leaders are moved for balance so rarely that a node which comes and goes does not pull them
along."""


class Liveness:
    """Counts for how many rounds each member was silent."""

    def __init__(self) -> None:
        self._silent: dict[int, int] = {}

    def alive(self, node_id: int, status: RaftStatus) -> set[int]:
        """Return who counts as alive after one more round."""
        before, self._silent = self._silent, {}
        for node, _, _, _, is_active in status.progress:
            heard = is_active or node == node_id
            self._silent[node] = 0 if heard else before.get(node, 0) + 1
        return {node for node, rounds in self._silent.items() if rounds < SILENT_ROUNDS}

    def reset(self) -> None:
        self._silent.clear()


class HeartbeatRounds:
    """Counts the rounds without a heartbeat of each node outside of the Raft groups."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}

    def alive(self, marks: Mapping[int, int]) -> set[int]:
        """Return who counts as alive after one more round; a mark grows with every heartbeat."""
        last, self._last = self._last, {}
        for node, mark in marks.items():
            known, rounds = last.get(node, (mark, -1))
            self._last[node] = (mark, rounds + 1 if mark == known else 0)
        return {
            node for node, (_, rounds) in self._last.items() if rounds < MISSED_HEARTBEAT_ROUNDS
        }

    def reset(self) -> None:
        self._last.clear()


class Registration(Protocol):
    def __call__(self) -> object: ...


class ControllerLoop:
    """`start`, `close`; works on a thread of its own."""

    def __init__(
        self,
        node_id: int,
        *,
        clock: Clock,
        rows: Reader,
        counts: ShardCounts,
        status: Callable[[], RaftStatus],
        decide: Callable[[Sequence[cmd.Command]], object],
        register: Registration,
        listeners: Mapping[str, str],
    ) -> None:
        self._node_id = node_id
        self._clock = clock
        self._rows = rows
        self._counts = counts
        self._status = status
        self._decide = decide
        self._register = register
        self._listeners = listeners
        self._is_registered = False
        self._is_leaving = False
        self._rounds = 0
        self._seen_changes = self._balanced_changes = -1
        """Up to which change of shards and nodes there is nothing to decide."""
        self._liveness = Liveness()
        self._beats = HeartbeatRounds()
        self._preferred = PreferredLeaders()
        self._heard: set[int] | None = None
        """Which nodes counted as alive in the last round; None: this node did not lead then."""
        self.watched: Callable[[], Mapping[int, Node]] = dict
        """Returns the nodes whose end the failure detector notices."""
        self._is_stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-controller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def register_again(self) -> None:
        """Register this node with the next round, which begins now."""
        self._is_registered = False
        self._wake.set()

    def wake(self) -> None:
        """Begin the next round now: a node was fenced."""
        self._wake.set()

    def is_alive(self, node_id: int) -> bool:
        """Return whether this node, which leads, has heard of a node recently; True as long as it
        does not know."""
        heard = self._heard
        return heard is None or node_id in heard

    def leave(self) -> None:
        """Register this node no more: it is about to stop."""
        self._is_leaving = True

    def close(self) -> None:
        self._is_stopping = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        counted_at = self._clock.monotonic()
        while True:
            self._clock.wait(self._wake, ROUND_SECONDS)
            self._wake.clear()
            if self._is_stopping:
                return
            now = self._clock.monotonic()
            is_counted = now - counted_at >= ROUND_SECONDS
            counted_at = now if is_counted else counted_at
            try:
                self._round(is_counted=is_counted)
            except StoreError as error:
                # Without a majority nothing can be decided; the next round tries again.
                _log.debug("controller_round_failed", reason=str(error))

    def _round(self, *, is_counted: bool) -> None:
        """`is_counted`: a whole round has passed since the last one that counted silence."""
        mine = NODES.get(self._rows, self._node_id)
        # Concurrent registrations may have arrived in any order, and the last one decides which
        # address the others use: so check what is stored.
        is_missing = (
            mine is None
            or mine.status == OFFLINE
            or mine.listeners != self._listeners
            or not self._is_registered
        )
        if is_missing and not self._is_leaving:
            self._is_registered = True
            try:
                self._register()
            except StoreError:
                self._is_registered = False
                raise
        status = self._status()
        if status.role != "leader":
            self._liveness.reset()
            self._beats.reset()
            self._preferred.reset()
            self._heard = None
            self._seen_changes = self._balanced_changes = -1
            return
        if is_counted:
            self._fence_unwatched(status)
        self._maintain_shards(is_balancing=self._rounds % BALANCE_ROUNDS == 0)

    def _fence_unwatched(self, status: RaftStatus) -> None:
        watched = self.watched()
        nodes = [node for node in NODES.scan(self._rows) if node.node_id not in watched]
        self._heard = self._alive(status, nodes)
        lost = lost_nodes(nodes, self._heard)
        if lost:
            _log.warning("nodes_lost", nodes=", ".join(str(node.node_id) for node in lost))
            self._decide(lost)
        self._rounds += 1

    def _maintain_shards(self, *, is_balancing: bool) -> None:
        changes = self._counts.changes
        is_balancing = is_balancing and (
            changes != self._balanced_changes or self._preferred.is_waiting
        )
        if changes == self._seen_changes and not is_balancing:
            return
        nodes = list(NODES.scan(self._rows))
        topics = {topic.topic_id: topic for topic in TOPICS.scan(self._rows)}
        single: list[Shard] = []
        copied: list[Shard] = []
        for shard in SHARDS.scan(self._rows):
            topic = topics.get(shard.topic_id)
            if topic is None or not is_replicated(shard, topic.config):
                single.append(shard)
            elif topic.status == ACTIVE:
                copied.append(shard)
        commands = decide_placements(nodes, single, copied, topics)
        if not commands and is_balancing:
            online = {node.node_id for node in nodes if node.status == ONLINE}
            commands += _elections(self._preferred.check(copied, online))
            self._balanced_changes = changes
        if commands:
            # What is refused, or fails, is decided again with what is known then.
            self._decide(commands)
        else:
            self._seen_changes = changes

    def _alive(self, status: RaftStatus, nodes: Sequence[Node]) -> set[int]:
        members = {*status.configuration.voters, *status.configuration.learners}
        beats = read_beats(self._rows)
        marks = {
            node.node_id: max(node.epoch, beats.get(node.node_id, 0))
            for node in nodes
            if node.node_id not in members
        }
        return self._liveness.alive(self._node_id, status) | self._beats.alive(marks)


def decide_placements(
    nodes: Sequence[Node],
    single: Sequence[Shard],
    copied: Sequence[Shard],
    topics: Mapping[str, Topic],
) -> list[cmd.Command]:
    """Decide who leads which shard, and when that is decided, where its replicas go."""
    online = {node.node_id for node in nodes if node.status == ONLINE}
    draining = {node.node_id for node in nodes if node.status == DRAINING}
    leaving = draining | {node.node_id for node in nodes if node.status == STOPPING}
    commands: list[cmd.Command] = [*failovers(single, online, leaving)]
    commands += _elections(vacancies(copied, online | leaving))
    commands += _elections(drains(copied, online, leaving))
    if commands:
        return commands
    configs = {name: topic.config for name, topic in topics.items() if topic.status == ACTIVE}
    brokers = {node.node_id: node.epoch for node in nodes if node.status != OFFLINE}
    minimums = {name: min_insync_of(config) for name, config in configs.items()}
    commands += completions(copied, brokers, minimums)
    active = (shard for shard in single if shard.status == ACTIVE and shard.topic_id in configs)
    leaving_single = movable(active, _sources(nodes)) if draining else []
    commands += moves(
        [*copied, *leaving_single],
        {node.node_id for node in nodes},
        replica_nodes(nodes),
        draining,
        {name: config.replication for name, config in configs.items()},
        short=short_of_room(nodes),
        fixed=single,
    )
    return commands


def _sources(nodes: Sequence[Node]) -> set[int]:
    """Return the nodes that drain and from which others can copy; none as long as a node runs a
    release that gives no shard with one copy a second one."""
    if not all(REASSIGNMENT_ROLE in node.roles for node in nodes):
        return set()
    return {node.node_id for node in nodes if node.status == DRAINING and node.address}


def _elections(elections: Sequence[cmd.Election]) -> list[cmd.Command]:
    """Put elections into commands, as many as one may hold."""
    return [
        cmd.ElectLeaders(tuple(elections[start : start + cmd.PLACEMENTS_MAX]))
        for start in range(0, len(elections), cmd.PLACEMENTS_MAX)
    ]
