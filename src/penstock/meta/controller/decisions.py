"""The decisions of the controller, as pure functions: placement, failover, removal. Those about
shards with several replicas are in `replica_decisions`.

The controller runs on the node that leads the group `metadata`; every decision is a command with an
epoch or a compare-and-set in it, so that one that comes late, or from a node that has lost its
lead, changes nothing.

Invariants:

  * only a replica that is in sync may lead; a shard without such a replica has no leader, and one
    whose records are lost gets none
  * a draining node gets no new shards
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from penstock.meta.state.constants import (
    DATA_PEERS_ROLE,
    INTERNAL_LISTENER,
    LOST,
    OFFLINE,
    ONLINE,
    RACK,
)
from penstock.meta.state.metadata import commands as cmd
from penstock.meta.state.model import Node, Shard
from penstock.meta.state.offsets.commands import GroupName

STORAGE_LISTENER: Final = "storage"
"""The listener name under which a node announces the address of its storage API."""
_SHORT: Final = 10
"""A node with so many times less free disk than another gets shards last."""


class Load(Struct):
    """What nodes hold already, by node."""

    replicas: Mapping[int, int] = field(default_factory=dict)
    leaders: Mapping[int, int] = field(default_factory=dict)
    short: Collection[int] = ()
    """Nodes with little free disk: they get new shards last."""


class Leadership(Struct, frozen=True):
    """One Raft group that this node leads, as far as the place of its leader matters."""

    group: str
    voters: tuple[int, ...]
    ready: frozenset[int]
    """Voters that are heard of and have nearly the whole log."""


def load_of(shards: Iterable[Shard]) -> Load:
    replicas: Counter[int] = Counter()
    leaders: Counter[int] = Counter()
    for shard in shards:
        replicas.update(shard.replicas)
        if shard.leader is not None:
            leaders[shard.leader] += 1
    return Load(replicas, leaders)


def load_of_placements(placements: Iterable[cmd.Placement]) -> Load:
    replicas: Counter[int] = Counter()
    leaders: Counter[int] = Counter()
    for placement in placements:
        replicas.update(placement.replicas)
        leaders[placement.leader] += 1
    return Load(replicas, leaders)


def can_hold_shards(node: Node) -> bool:
    return node.status == ONLINE and STORAGE_LISTENER in node.listeners


def has_internal_port(node: Node) -> bool:
    """Return whether other nodes can reach the internal port of a node: a member of the Raft groups
    has one, and another node with `node.meta_listen`."""
    return bool(node.address) or INTERNAL_LISTENER in node.listeners


def replica_nodes(nodes: Iterable[Node]) -> set[int]:
    """Return the nodes that can have one of several replicas: copies are sent between internal
    ports. While a node runs a release that does not know the internal ports of nodes without the
    role `meta`, those have none."""
    known = list(nodes)
    are_all_known = all(DATA_PEERS_ROLE in node.roles for node in known)
    return {
        node.node_id
        for node in known
        if can_hold_shards(node)
        and (bool(node.address) or (are_all_known and has_internal_port(node)))
    }


def short_of_room(nodes: Iterable[Node]) -> frozenset[int]:
    """Return the nodes with less than a tenth of the free disk of the node that has most. A node
    that has not reported any is not among them."""
    free = {node.node_id: node.free_bytes for node in nodes if node.free_bytes >= 0}
    most = max(free.values(), default=0)
    return frozenset(node for node, size in free.items() if size * _SHORT < most)


def storage_nodes(nodes: Iterable[Node], asking: int, replication: int = 1) -> set[int]:
    """Return the nodes that new shards may be placed on: those that serve other nodes' requests,
    and with several replicas can copy them.

    A node that does not serve them has no way to the others, either, and keeps its shards.
    """
    known = list(nodes)
    if any(node.node_id == asking and STORAGE_LISTENER not in node.listeners for node in known):
        return {asking}
    if replication > 1:
        return replica_nodes(known) or {asking}
    return {node.node_id for node in known if can_hold_shards(node)} or {asking}


def racks_of(nodes: Iterable[Node]) -> dict[int, str]:
    """Return where nodes are, of those that say so."""
    return {node.node_id: rack for node in nodes if (rack := node.listeners.get(RACK))}


def place_shards(
    partitions: Iterable[int],
    replication: int,
    nodes: Collection[int],
    load: Load,
    own: Load | None = None,
    racks: Mapping[int, str] | None = None,
) -> tuple[cmd.Placement, ...]:
    """Spread the shards of a topic over the nodes, those that hold least first, leaders where
    fewest are.

    The topic's own shards count first: a node that has just joined holds nothing, and would
    otherwise get all of them, and all of the topic's traffic. Nodes that are short of free disk
    come after the others. `own` are those that the topic has already. Fewer nodes than
    `replication`: as many replicas as there are nodes. The first replica of each is its leader. No
    two replicas are on one rack while another rack has a node; a node without a rack counts as a
    rack of its own.
    """
    held = {node: load.replicas.get(node, 0) for node in nodes}
    led = {node: load.leaders.get(node, 0) for node in nodes}
    own = own if own is not None else Load()
    short = load.short
    held_here = {node: own.replicas.get(node, 0) for node in nodes}
    led_here = {node: own.leaders.get(node, 0) for node in nodes}
    placed: list[tuple[int, list[int], int]] = []
    for partition in partitions:
        ordered = sorted(
            held,
            key=lambda node: (node in short, held_here[node], held[node], led[node], node),
        )
        replicas = _spread(ordered, max(1, min(replication, len(ordered))), racks or {}, short)
        leader = min(replicas, key=lambda node: (led_here[node], led[node], replicas.index(node)))
        for node in replicas:
            held[node] += 1
            held_here[node] += 1
        led[leader] += 1
        led_here[leader] += 1
        placed.append((partition, replicas, leader))
    # The first ones were placed without a look at the last ones.
    for number, (partition, replicas, leader) in enumerate(placed):
        other = min(replicas, key=lambda node: (led_here[node], led[node], replicas.index(node)))
        if led_here[other] < led_here[leader] and led[other] + 1 < led[leader]:
            led[leader] -= 1
            led[other] += 1
            led_here[leader] -= 1
            led_here[other] += 1
            placed[number] = (partition, replicas, other)
    # The first replica is the preferred leader.
    return tuple(
        cmd.Placement(number, (leader, *(node for node in replicas if node != leader)), leader)
        for number, replicas, leader in placed
    )


def _spread(
    ordered: Sequence[int], count: int, racks: Mapping[int, str], short: Collection[int]
) -> list[int]:
    """Return the first `count` nodes in this order that share as few racks as can be; those that
    are short of room last."""
    if not racks:
        return list(ordered[:count])
    chosen: list[int] = []
    used: Counter[object] = Counter()

    def rank(node: int) -> tuple[bool, int]:
        return node in short, used[racks.get(node, node)]

    while len(chosen) < count:
        node = min(
            (candidate for candidate in ordered if candidate not in chosen), key=rank
        )  # the first of equals
        chosen.append(node)
        used[racks.get(node, node)] += 1
    return chosen


def lost_nodes(nodes: Sequence[Node], alive: Collection[int]) -> list[cmd.SetNodeStatus]:
    """Say which nodes are gone; a node that has registered again meanwhile is not meant."""
    return [
        cmd.SetNodeStatus(node.node_id, OFFLINE, node.epoch)
        for node in nodes
        if node.status != OFFLINE and node.node_id not in alive
    ]


def failovers(
    shards: Sequence[Shard], online: Collection[int], draining: Collection[int] = ()
) -> list[cmd.AssignLeader]:
    """Give each shard with one copy its leader when it is there, and none while it is gone."""
    here = {*online, *draining}
    load = _led(shards, here)
    decided: list[cmd.AssignLeader] = []
    for shard in shards:
        if shard.leader in here or shard.status == LOST:
            continue
        able = [node for node in shard.replicas if node in shard.in_sync and node in here]
        if not able and shard.leader is None:
            continue
        leader = min(able, key=lambda node: (node in draining, load[node], node), default=None)
        if leader is not None:
            load[leader] += 1
        in_sync = tuple(node for node in shard.in_sync if node in able) if able else shard.in_sync
        decided.append(_assign(shard, leader, in_sync))
    return decided


def last_replicas(shards: Iterable[Shard], node_id: int) -> list[Shard]:
    """Return the shards of which only one node has every committed record."""
    return [
        shard
        for shard in shards
        if {*shard.in_sync, *shard.eligible} == {node_id} and shard.status != LOST
    ]


def _led(shards: Iterable[Shard], nodes: Collection[int]) -> Counter[int]:
    return Counter(
        shard.leader for shard in shards if shard.leader is not None and shard.leader in nodes
    )


def _assign(
    shard: Shard,
    leader: int | None,
    in_sync: tuple[int, ...],
) -> cmd.AssignLeader:
    return cmd.AssignLeader(
        topic_id=shard.topic_id,
        partition=shard.partition,
        leader=leader,
        epoch=shard.leader_epoch + 1,
        in_sync=in_sync,
        expected_revision=shard.revision,
    )


def abandoned_shards(shards: Iterable[Shard], nodes: Collection[int]) -> list[Shard]:
    """Return the shards without a replica on a node of the cluster: no node would ever delete them.
    A node that is offline counts: it comes back and deletes its own."""
    return [shard for shard in shards if not any(node in nodes for node in shard.replicas)]


def idle_groups(
    groups: Iterable[tuple[GroupName, int]], before_ms: int, keep: Collection[GroupName]
) -> list[GroupName]:
    """Return those of (group, last commit) that have not committed since, but for `keep`: they
    have members."""
    return [name for name, last_ms in groups if last_ms < before_ms and name not in keep]


def raft_transfers(
    node_id: int, leads: Sequence[Leadership], metadata_leader: int
) -> list[tuple[str, int]]:
    """Return (group, node) for the offset groups that are led where the metadata is."""
    if metadata_leader != node_id:
        return []
    moves: list[tuple[str, int]] = []
    for number, lead in enumerate(sorted(leads, key=lambda lead: lead.group)):
        others = sorted(lead.ready - {node_id})
        if lead.group != "metadata" and others:
            moves.append((lead.group, others[number % len(others)]))
    return moves
