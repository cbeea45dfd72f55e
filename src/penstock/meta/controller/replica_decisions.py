"""The decisions of the controller about shards with several replicas, as pure functions.

Who leads after a node is gone is decided with the entry that fences it: see
`penstock.meta.state.metadata.replication`. Here are the decisions that can wait. Every one names
the partition epoch that it was made of, so that one that comes late changes nothing.

  * a node that drains leads only shards that no other replica in sync can lead, and then gives its
    replicas away, one after the other, where another node can take them
  * the first replica of a shard is its preferred leader; it leads again when it has been in sync
    for a while
  * the replicas of a removed node move to the nodes that hold fewest; the new ones copy first
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

from penstock.meta.state.metadata import commands as cmd
from penstock.meta.state.metadata.replica_sets import complete_reassignment
from penstock.meta.state.model import Shard

MOVES_MAX: Final = 100
"""Leaders that one round moves for balance, and shards that move at the same time."""


def vacancies(shards: Iterable[Shard], here: Collection[int]) -> list[cmd.Election]:
    """Fill the place of a leader where a replica may take it: the one that was missing is back."""
    decided: list[cmd.Election] = []
    for shard in shards:
        able = any(node in here for node in (*shard.in_sync, *shard.eligible))
        if shard.leader is None and able:
            decided.append(_elect(shard, None))
    return decided


def drains(
    shards: Sequence[Shard], online: Collection[int], draining: Collection[int]
) -> list[cmd.Election]:
    """Let others lead what a node leads that drains, evenly, where others can."""
    load = Counter(shard.leader for shard in shards if shard.leader in online)
    decided: list[cmd.Election] = []
    for shard in shards:
        able = [node for node in shard.replicas if node in shard.in_sync and node in online]
        if shard.leader in draining and able:
            leader = min(able, key=lambda node: (load[node], shard.replicas.index(node)))
            load[leader] += 1
            decided.append(_elect(shard, leader))
    return decided


def balances(
    shards: Sequence[Shard], online: Collection[int], *, moves_max: int = MOVES_MAX
) -> list[cmd.Election]:
    """Give shards back to their preferred leaders, once those are in sync."""
    decided: list[cmd.Election] = []
    for shard in shards:
        preferred = shard.preferred_leader
        is_able = preferred in shard.in_sync and preferred in online
        if is_able and shard.leader not in {None, preferred} and len(decided) < moves_max:
            decided.append(_elect(shard, preferred))
    return decided


class PreferredLeaders:
    """Which shards another replica leads than the preferred one, although that could: when two
    checks in a row find the same, the shard is given back."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], tuple[int, int | None]] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether the last check has found something that the next one may decide."""
        return bool(self._seen)

    def reset(self) -> None:
        self._seen.clear()

    def check(
        self, shards: Sequence[Shard], online: Collection[int], *, moves_max: int = MOVES_MAX
    ) -> list[cmd.Election]:
        elections = {
            (election.topic_id, election.partition): election
            for election in balances(shards, online, moves_max=len(shards))
        }
        epochs = {(shard.topic_id, shard.partition): shard.leader_epoch for shard in shards}
        seen, self._seen = (
            self._seen,
            {key: (epochs[key], election.leader) for key, election in elections.items()},
        )
        due = [election for key, election in elections.items() if seen.get(key) == self._seen[key]]
        return due[:moves_max]


def completions(
    shards: Iterable[Shard], brokers: Mapping[int, int], minimums: Mapping[str, int]
) -> list[cmd.ReassignReplicas]:
    """End reassignments that nothing holds up any more: usually the entry with which the last new
    replica joins does, but the minimum of a topic may have become less since."""
    return [
        cmd.ReassignReplicas(
            shard.topic_id,
            shard.partition,
            shard.partition_epoch,
            tuple(node for node in shard.replicas if node not in shard.removing),
            shard.throttle,
        )
        for shard in shards
        if shard.is_moving
        and complete_reassignment(
            shard, brokers=brokers, min_insync=minimums.get(shard.topic_id, 1)
        )
        != shard
    ]


def moves(
    shards: Sequence[Shard],
    nodes: Collection[int],
    able: Collection[int],
    draining: Collection[int],
    replication: Mapping[str, int],
    *,
    short: Collection[int] = (),
    fixed: Iterable[Shard] = (),
    moves_max: int = MOVES_MAX,
) -> list[cmd.ReassignReplicas]:
    """Move replicas from nodes that were removed, or that drain, to the nodes that hold fewest, and
    give each shard as many as its topic has. `able` are the nodes that can take some, `short` those
    with little free disk, which are chosen last; `fixed` are further shards that nodes hold. A
    shard that no replica has whole stays as it is: its node may join again with the records."""
    everything = chain(shards, fixed)
    held: Counter[int] = Counter(node for shard in everything for node in shard.replicas)
    under_way = sum(1 for shard in shards if _is_moving(shard, nodes))
    decided: list[cmd.ReassignReplicas] = []
    for shard in shards:
        is_whole = any(node in nodes for node in (*shard.in_sync, *shard.eligible))
        if _is_moving(shard, nodes) or not is_whole or under_way + len(decided) >= moves_max:
            continue
        target = _target(
            shard, nodes, able, draining, replication.get(shard.topic_id, 0), held, short
        )
        if target and set(target) != set(shard.replicas) - set(shard.removing):
            held.update(node for node in target if node not in shard.replicas)
            decided.append(
                cmd.ReassignReplicas(shard.topic_id, shard.partition, shard.partition_epoch, target)
            )
    return decided


def movable(shards: Iterable[Shard], draining: Collection[int]) -> list[Shard]:
    """Return the shards with one copy that another node can copy from a node that drains."""
    return [shard for shard in shards if shard.leader in draining and shard.leader in shard.in_sync]


def _is_moving(shard: Shard, nodes: Collection[int]) -> bool:
    """Return whether a shard moves to nodes that are there."""
    return bool(shard.adding or shard.removing) and all(node in nodes for node in shard.adding)


def _target(
    shard: Shard,
    nodes: Collection[int],
    able: Collection[int],
    draining: Collection[int],
    replication: int,
    held: Mapping[int, int],
    short: Collection[int],
) -> tuple[int, ...]:
    """Return where the replicas of a shard should be."""
    staying = [node for node in shard.replicas if node in nodes and node not in shard.removing]
    whole = {*shard.in_sync, *shard.eligible}
    count = max(1, replication or len(shard.replicas))
    others = sorted(
        (node for node in able if node not in staying),
        key=lambda node: (
            node in shard.removing,
            node in short,
            held.get(node, 0),
            node,
        ),
    )
    # What goes first, should there be too many: copies that lack records, never the leader's.
    staying_first = sorted(staying, key=lambda node: (node not in whole, node != shard.leader))
    kept = [node for node in staying_first if node not in draining]
    leaving = [node for node in staying_first if node in draining]
    # A node that drains keeps what no other can take.
    chosen = (kept + others[: max(0, count - len(kept))] + leaving)[:count]
    ordered = [node for node in staying if node in chosen]
    return (*ordered, *(node for node in chosen if node not in ordered))


def _elect(shard: Shard, leader: int | None) -> cmd.Election:
    return cmd.Election(shard.topic_id, shard.partition, shard.partition_epoch, leader)
