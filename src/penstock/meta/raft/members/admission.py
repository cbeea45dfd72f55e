"""Decides whether a node that has proved knowledge of a key may join the groups.

The leader of `metadata` decides, for it knows which members live:

  * a live member stays: a node that comes with its number and another data directory is refused
  * an incarnation that is older than the recorded one is refused: it is an earlier directory
  * with the cluster's secret, or a token for exactly this node, a node may join or come back
  * with neither, only a node of `node.peers` that was not a member before, and only if the address
    that `node.peers` gives it answers with the same incarnation; from then on that one is recorded
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.errors import StoreError
from penstock.meta.raft.members.bootstrap import Peer
from penstock.meta.raft.network.credentials import Credentials, owns_incarnation
from penstock.meta.raft.network.messages import JoinRequest, PeerStatus
from penstock.meta.state.model import Member


class Admission:
    """`refusal` may take seconds: it asks another node."""

    def __init__(
        self,
        credentials: Credentials,
        peers: Sequence[Peer],
        *,
        find: Callable[[int], Member | None],
        leader: Callable[[], int],
        node_id: int,
        is_alive: Callable[[int], bool],
        ask: Callable[[Peer], PeerStatus | None],
    ) -> None:
        self._credentials = credentials
        self._peers = {peer.node_id: peer for peer in peers}
        self._find = find
        self._leader = leader
        self._node_id = node_id
        self._is_alive = is_alive
        self._ask: Final = ask

    def refusal(self, join: JoinRequest) -> str | None:
        """Return why a node may not join, or None."""
        if join.node_id == self._node_id:
            return f"this is node {self._node_id} itself: two nodes have one number"
        leader = self._leader()
        if leader != self._node_id:
            where = f"ask node {leader}" if leader else "no node does at the moment; try again"
            return f"this node does not lead metadata; {where}"
        try:
            known = self._find(join.node_id)
        except StoreError as error:
            return str(error)
        if known is not None and known.incarnation != join.incarnation:
            reason = self._refuse_replacing(known, join)
            if reason is not None:
                return reason
        return self._refuse_unproved(known, join)

    def _refuse_replacing(self, known: Member, join: JoinRequest) -> str | None:
        if self._is_alive(join.node_id):
            return (
                f"node {join.node_id} is a live member, with another data directory, at "
                f"{known.address}: give this node another node.id, or stop that one and wait a "
                "few seconds"
            )
        if join.incarnation <= known.incarnation:
            return (
                f"a newer data directory of node {join.node_id} is a member, at {known.address}: "
                f"this one is older, or was created under a clock that runs late"
            )
        return None

    def _refuse_unproved(self, known: Member | None, join: JoinRequest) -> str | None:
        if self._credentials.has_secret:
            return None
        if join.token:
            recorded = "" if known is None else known.incarnation
            if recorded in {self._credentials.replaced_by(join), join.incarnation}:
                return None
            return f"the join token of node {join.node_id} was used already; ask for another one"
        reason = self._refuse_first_contact(known, join)
        if reason is None:
            return None
        return (
            f"{reason}; run `penstock cluster add {join.node_id} {join.address}` and start the "
            "node with the token that it prints, or set node.secret_file on all nodes"
        )

    def _refuse_first_contact(self, known: Member | None, join: JoinRequest) -> str | None:
        if not owns_incarnation(join.seed, join.incarnation):
            return f"node {join.node_id} did not prove its incarnation"
        if known is not None:
            if known.incarnation == join.incarnation:
                return None
            return f"node {join.node_id} was a member with another data directory"
        peer = self._peers.get(join.node_id)
        if peer is None:
            return f"node {join.node_id} is not among the node.peers of this cluster"
        status = self._ask(peer)
        if status is None or status.incarnation != join.incarnation:
            return (
                f"{peer.address}, which node.peers gives node {join.node_id}, does not answer as "
                "the node that wants to join"
            )
        return None
