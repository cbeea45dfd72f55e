"""What the controller decides, as pure functions: placement, failover, where Raft leaders sit.

The controller runs on the node that leads the group `metadata`; every decision is a command with an
epoch or a compare-and-set in it, so that one that comes late, or from a node that has lost its
lead, changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from penstock.meta.state import metadata_commands as cmd
from penstock.meta.state.model import Node, Shard

ONLINE = "online"
OFFLINE = "offline"


class Leadership(Struct, frozen=True):
    """One Raft group that this node leads, as far as the place of its leader matters."""

    group: str
    voters: tuple[int, ...]
    ready: frozenset[int]
    """Voters that are heard of and have nearly the whole log."""


def place_shards(
    partitions: Iterable[int],
    replication: int,
    nodes: Collection[int],
    load: Mapping[int, int],
    *,
    preferred: int | None = None,
) -> tuple[cmd.Placement, ...]:
    """Place shards on the nodes that hold least, leaders spread evenly.

    `load` counts the replicas that a node holds already. `preferred` leads what it can when every
    shard has one replica. Fewer nodes than `replication`: as many replicas as there are nodes.
    """
    held = Counter({node: load.get(node, 0) for node in nodes})
    led: Counter[int] = Counter()
    placed: list[cmd.Placement] = []
    for partition in partitions:
        if replication == 1 and preferred in held:
            assert preferred is not None, "it is one of the nodes"
            replicas = [preferred]
        else:
            ordered = sorted(held, key=lambda node: (held[node], node))
            replicas = ordered[: max(1, min(replication, len(ordered)))]
        leader = min(replicas, key=lambda node: (led[node], replicas.index(node)))
        for node in replicas:
            held[node] += 1
        led[leader] += 1
        placed.append(cmd.Placement(partition, tuple(replicas), leader))
    return tuple(placed)


def lost_nodes(nodes: Sequence[Node], alive: Collection[int]) -> list[cmd.Command]:
    """Say which nodes are gone; a node that has registered again meanwhile is not meant."""
    return [
        cmd.SetNodeStatus(node.node_id, OFFLINE, node.epoch)
        for node in nodes
        if node.status == ONLINE and node.node_id not in alive
    ]


def failovers(shards: Sequence[Shard], online: Collection[int]) -> list[cmd.Command]:
    """Give each shard whose leader is gone another one: only a replica that was in sync may lead.

    A shard without such a replica has no leader until one comes back.
    """
    load = Counter(shard.leader for shard in shards if shard.leader in online)
    decided: list[cmd.Command] = []
    for shard in shards:
        if shard.leader in online:
            continue
        able = [node for node in shard.replicas if node in shard.in_sync and node in online]
        if not able and shard.leader is None:
            continue
        leader = min(able, key=lambda node: (load[node], node), default=None)
        if leader is not None:
            load[leader] += 1
        decided.append(
            cmd.AssignLeader(
                topic_id=shard.topic_id,
                partition=shard.partition,
                leader=leader,
                epoch=shard.leader_epoch + 1,
            )
        )
    return decided


def raft_transfers(
    node_id: int, leads: Sequence[Leadership], metadata_leader: int
) -> list[tuple[str, int]]:
    """Return (group, node) for the offset groups that are led where the metadata is."""
    if metadata_leader != node_id:
        return []
    moves: list[tuple[str, int]] = []
    for number, one in enumerate(sorted(leads, key=lambda one: one.group)):
        others = sorted(one.ready - {node_id})
        if one.group != "metadata" and others:
            moves.append((one.group, others[number % len(others)]))
    return moves
