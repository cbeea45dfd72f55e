"""`Liveness`: the heartbeats and the failure detector of one member, put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from penstock.errors import StoreError
from penstock.meta.client_api.broker_lease import BrokerLease
from penstock.meta.controller.failure_detector import FailureDetector, Probe
from penstock.meta.raft.group.group_handle import GroupHandle
from penstock.meta.raft.members.heartbeats import Heartbeats
from penstock.meta.raft.network.frames import Beat, BeatAnswer
from penstock.meta.raft.node import RaftNode
from penstock.meta.state.constants import INTERNAL_LISTENER, OFFLINE, REPLICATION_ROLE
from penstock.meta.state.metadata import commands as cmd
from penstock.meta.state.metadata.rows import NODES
from penstock.meta.state.model import Node
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)


class Liveness:
    """`start`, `close`; implements `BeatingNode` over the group `metadata`."""

    def __init__(
        self,
        node: RaftNode,
        metadata: GroupHandle[cmd.Request, cmd.Answer],
        lease: BrokerLease,
        *,
        broker_epoch: Callable[[], int | None],
        register_again: Callable[[], None],
        probe: Callable[[int], Probe],
        fence: Callable[[Sequence[cmd.SetNodeStatus]], None],
        report: Callable[[str, int, str], None],
    ) -> None:
        """`report` shows a problem with a node in the status of the cluster."""
        self._node: Final = node
        self._metadata: Final = metadata
        self._broker_epoch: Final = broker_epoch
        self._register_again: Final = register_again
        node_id = node.identity.node_id
        self.beats: Final = Heartbeats(node_id, self, lease, clock=node.clock)
        self.detector: Final = FailureDetector(
            node_id,
            clock=node.clock,
            sessions=self.beats,
            status=lambda: node.status[0],
            watched=self.watched,
            probe=probe,
            fence=fence,
            succeed_leader=node.succeed_leader,
        )
        self._report: Final = report
        self.detector.on_unreached = self._report_unreached
        node.on_beat = self.beats.receive

    def start(self) -> None:
        self.beats.start()
        self.detector.start()

    def close(self) -> None:
        self.detector.close()
        self.beats.close()

    def watched(self) -> dict[int, Node]:
        """Return the nodes that send heartbeats here while this node leads."""
        configuration = self._metadata.configuration
        members = {*configuration.voters, *configuration.learners}
        return {
            node.node_id: node
            for node in NODES.scan(self._metadata.local)
            if (node.node_id in members and REPLICATION_ROLE in node.roles)
            or INTERNAL_LISTENER in node.listeners
        }

    def _report_unreached(self, node_id: int) -> None:
        known = NODES.get(self._metadata.local, node_id)
        address = None if known is None else known.listeners.get(INTERNAL_LISTENER)
        reason = (
            f"node {node_id} sends heartbeats, but its internal port, {address}, cannot be "
            "reached: it counts as offline; check node.meta_listen, server.advertised_host and "
            "its firewall"
        )
        _log.warning("node_unreachable", node=node_id, reason=reason)
        self._report("unreachable", node_id, reason)

    # What the heartbeats ask

    @property
    def broker_epoch(self) -> int | None:
        return self._broker_epoch()

    def beat_targets(self) -> tuple[int, ...]:
        leader = self._metadata.group.seen_leader
        if not leader or leader == self._node.identity.node_id:
            return (leader,) if leader else ()
        known = NODES.get(self._metadata.local, leader)
        return (leader,) if known is not None and REPLICATION_ROLE in known.roles else ()

    def leader_contact(self) -> tuple[int, int]:
        term, ticks = self._metadata.group.contact.report
        return term, int(ticks * self._node.tick_seconds * 1_000)

    def epoch_of(self, node_id: int) -> int | None:
        known = NODES.get(self._metadata.local, node_id)
        return None if known is None or known.status == OFFLINE else known.epoch

    def confirm_lead(self, done: Callable[[bool], None]) -> None:
        self._node.post(partial(self._confirm_lead, done), lambda _error: done(False))

    def _confirm_lead(self, done: Callable[[bool], None]) -> None:
        group = self._metadata.group
        term = group.term
        if not group.is_leader:
            done(False)
            return

        def confirmed(error: StoreError | None) -> None:
            # Another leader may have confirmed the read.
            done(error is None and group.is_leader and group.term == term)

        group.read(confirmed)

    def send_beat(self, to: int, frame: Beat | BeatAnswer) -> None:
        self._node.send_beat(to, frame)

    def register_again(self) -> None:
        self._register_again()
