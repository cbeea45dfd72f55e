"""Which connections a node accepts after the handshake, and how it opens its own.

A node with Raft knows the others by the incarnations of their directories. A node without Raft has
none: its incarnation is the boot id of its registration, and ends with its run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.meta.raft.network.credentials import Credentials
from penstock.meta.raft.network.handshake import Opener, cluster_tag
from penstock.meta.raft.network.messages import (
    FRAME_VERSION,
    PROTOCOL,
    ChannelName,
    ConnectRequest,
)
from penstock.meta.state.constants import INTERNAL_LISTENER
from penstock.meta.state.model import Member, Node
from penstock.meta.storage import log_format as fmt


def data_nodes(nodes: Iterable[Node]) -> dict[int, Member]:
    """Return the nodes without Raft that have an internal port, as members of the network."""
    return {
        node.node_id: Member(
            node_id=node.node_id,
            address=node.listeners[INTERNAL_LISTENER],
            incarnation=node.boot_id,
        )
        for node in nodes
        if INTERNAL_LISTENER in node.listeners
    }


def network_members(
    members: Iterable[Member], others: Mapping[int, Member], mine: int
) -> list[Member]:
    """Return all nodes that have an internal port, but for this one. The registration of a node
    counts more than a membership that its earlier directory has left."""
    known = {member.node_id: member for member in members} | dict(others)
    return [member for node, member in known.items() if node != mine]


def check_addressee(mine: fmt.Identity, hello: ConnectRequest) -> str | None:
    """Return why a connection does not mean this node, or None."""
    if hello.cluster != cluster_tag(mine.cluster_id):
        return f"another cluster is meant; this node belongs to {mine.cluster_id}"
    if hello.to_node != mine.node_id:
        return f"node {hello.to_node} is meant; this is node {mine.node_id}"
    if hello.node_id == mine.node_id:
        return f"this is node {mine.node_id} itself: two nodes have one number"
    return None


def check_data_channel(
    mine: fmt.Identity, hello: ConnectRequest, known: Member | None, epoch: int
) -> str | None:
    """Return why a data channel is refused, or None. What comes on it counts as that of the node,
    so that this node must know it; `epoch` is that of its last registration."""
    if known is not None and known.incarnation == hello.incarnation:
        if hello.broker_epoch >= max(epoch, 1):
            return None
    elif known is None or hello.broker_epoch >= epoch:
        return (
            f"node {mine.node_id} does not know this directory of node {hello.node_id} as a member "
            "of the cluster yet"
        )
    return (
        f"node {hello.node_id} connects with the broker epoch {hello.broker_epoch}; its last "
        f"registration has {epoch}"
    )


def open_connection(
    credentials: Credentials, member: Member, channel: ChannelName, broker_epoch: int
) -> Opener:
    """Return the handshake of a connection to a node."""
    mine = credentials.identity
    hello = ConnectRequest(
        PROTOCOL,
        cluster_tag(mine.cluster_id),
        mine.node_id,
        mine.incarnation,
        member.node_id,
        member.incarnation,
        credentials.draw_nonce(),
        channel,
        broker_epoch,
        FRAME_VERSION,
    )
    return Opener(hello, credentials.hello_key)
