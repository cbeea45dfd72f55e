"""Plans of reassignments, as pure functions: where the replicas of shards should be.

A plan keeps replicas where they are as far as it can: each that moves is copied. Nodes that are
short of free disk get replicas last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from penstock.errors import BadRequestError
from penstock.meta.client import ReplicaMove
from penstock.meta.state.model import Shard


def plan_to(
    shards: Sequence[Shard], nodes: Collection[int], short: Collection[int] = ()
) -> list[ReplicaMove]:
    """Return the moves after which all replicas are on `nodes`, evenly."""
    held: Counter[int] = Counter(node for shard in shards for node in _settled(shard))
    moves: list[ReplicaMove] = []
    for shard in shards:
        settled = _settled(shard)
        if len(settled) > len(nodes):
            raise BadRequestError(
                f"{shard.name} has {len(settled)} replicas, but only {len(nodes)} nodes are to "
                "hold them"
            )
        target = [node for node in settled if node in nodes]
        others = sorted(
            (node for node in nodes if node not in target),
            key=lambda node: (node in short, held[node], node),
        )
        target += others[: len(settled) - len(target)]
        held.subtract(settled)
        held.update(target)
        moves += _moved(shard, settled, target)
    return moves


def plan_balance(
    shards: Sequence[Shard], nodes: Collection[int], short: Collection[int] = ()
) -> list[ReplicaMove]:
    """Return the moves after which the nodes hold about as many replicas each, and about as many
    shards prefer each as their leader. Replicas on other nodes than `nodes` move to these."""
    targets = {move.shard: list(move.replicas) for move in plan_to(shards, nodes, short)}
    current = {shard.id: targets.get(shard.id, _settled(shard)) for shard in shards}
    held: Counter[int] = Counter(node for target in current.values() for node in target)
    for target in current.values():
        _even_out(target, held, nodes, short)
    led: Counter[int] = Counter(target[0] for target in current.values())
    for target in current.values():
        best = min(target, key=lambda node: (led[node], target.index(node)))
        if led[best] + 1 < led[target[0]]:
            led[target[0]] -= 1
            led[best] += 1
            target.remove(best)
            target.insert(0, best)
    moves: list[ReplicaMove] = []
    for shard in shards:
        moves += _moved(shard, _settled(shard), current[shard.id])
    return moves


def _even_out(
    target: list[int], held: Counter[int], nodes: Collection[int], short: Collection[int]
) -> None:
    """Move replicas of one shard from nodes that hold more to nodes that hold less."""
    for _ in range(len(target)):
        others = [node for node in nodes if node not in target and node not in short]
        fullest = max(target, key=lambda node: (node in short, held[node]))
        emptiest = min(others, key=lambda node: (held[node], node), default=None)
        if emptiest is None or (held[emptiest] + 1 >= held[fullest] and fullest not in short):
            return
        target[target.index(fullest)] = emptiest
        held[fullest] -= 1
        held[emptiest] += 1


def _settled(shard: Shard) -> list[int]:
    """Return where the replicas of a shard are, or go with a reassignment under way."""
    return [node for node in shard.replicas if node not in shard.removing]


def _moved(shard: Shard, settled: list[int], target: list[int]) -> list[ReplicaMove]:
    return [ReplicaMove(shard.id, tuple(target))] if settled != target else []
