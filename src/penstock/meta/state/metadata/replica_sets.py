"""The rules by which the replicas of a shard change: in-sync set, eligible replicas, leader.

Pure functions from one `Shard` to the next. They keep one invariant: every replica in the in-sync
set or among the eligible ones has all committed records.

  * A leader commits only records that the whole in-sync set has, and none while the set is smaller
    than `min_insync`. So replicas that leave the set when it falls below that size keep everything
    that is committed: they become eligible. When the set is large enough again, they are not.
  * A node that cannot prove that it lost nothing (`is_proven`) leaves both sets. Topics that sync
    before they acknowledge are the exception: what such a replica was counted for is on its device.
  * A replica joins the set only by the word of the leader, which names the broker epoch under which
    it heard of it: a node that registered again meanwhile may have lost records since.
  * A leader is elected from the in-sync set, else from the eligible replicas, else there is none.
    An operator may name another one (`elect_unclean`), and so give records up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from penstock.meta.state.answers import Rejected
from penstock.meta.state.model import Shard, TopicConfig

BrokerEpochs = Mapping[int, int]
"""The broker epochs of the nodes that are registered and not fenced."""


def is_replicated(shard: Shard, config: TopicConfig) -> bool:
    """Return whether these rules hold for a shard; one with a single copy has rules of its own:
    see `data_loss`."""
    return config.replication > 1 or len(shard.replicas) > 1


def min_insync_of(config: TopicConfig) -> int:
    """Return how many replicas must have a record before it is committed."""
    if config.min_insync is not None:
        return config.min_insync
    return config.replication // 2 + 1


def shard_min_insync(shard: Shard, config: TopicConfig) -> int:
    """Return how many replicas of a shard must have a record before it is committed: those of its
    topic, or those that it had before its topic got more replicas."""
    minimum = min_insync_of(config)
    return min(minimum, shard.min_insync) if shard.min_insync else minimum


def follow_config(shard: Shard, before: TopicConfig, config: TopicConfig) -> Shard:
    """Return the shard after the replicas of its topic, or their minimum, were changed. One that
    is to get more replicas keeps the minimum that it had until enough of them are in sync: it is
    written to meanwhile."""
    old, minimum = shard_min_insync(shard, before), min_insync_of(config)
    after = shard
    if config.replication > before.replication and old < minimum > len(shard.in_sync):
        after = replace(after, min_insync=old)
    elif shard.min_insync >= minimum:
        after = replace(after, min_insync=0)
    if shard_min_insync(after, config) != old:
        after = change_min_insync(after)
    if not is_replicated(after, config):
        after = _as_single(after)
    if after == shard and is_replicated(shard, before) == is_replicated(shard, config):
        return shard
    return replace(after, partition_epoch=shard.partition_epoch + 1)


def with_topic_minimum(shard: Shard, config: TopicConfig) -> Shard:
    """Return the shard with the minimum of its topic, once enough replicas are in sync. To be
    called with every change that lets replicas join, in the entry of that change."""
    if not shard.min_insync or len(shard.in_sync) < min_insync_of(config):
        return shard
    return replace(shard, min_insync=0)


def change_in_sync(
    shard: Shard,
    *,
    sender: int,
    leader_epoch: int,
    partition_epoch: int,
    members: tuple[tuple[int, int], ...],
    brokers: BrokerEpochs,
    min_insync: int,
) -> Shard | Rejected:
    """Return the shard with the in-sync set that its leader asks for."""
    problem = _stale(shard, sender, leader_epoch, partition_epoch)
    if problem is not None:
        return Rejected("stale", problem, shard.name)
    nodes = tuple(node for node, _ in members)
    problem = _invalid_members(shard, sender, nodes)
    if problem is not None:
        return Rejected("bad_request", problem, shard.name)
    for node, epoch in members:
        if node not in shard.in_sync and brokers.get(node) != epoch:
            return Rejected(
                "stale",
                f"node {node} asks to join {shard.name} under broker epoch {epoch}, but the "
                f"current one is {brokers.get(node)}",
                shard.name,
            )
    return _with_in_sync(shard, nodes, min_insync)


def _stale(shard: Shard, sender: int, leader_epoch: int, partition_epoch: int) -> str | None:
    if sender != shard.leader:
        return f"node {sender} does not lead {shard.name}; node {shard.leader} does"
    if leader_epoch != shard.leader_epoch:
        return f"{shard.name} is at leader epoch {shard.leader_epoch}, not {leader_epoch}"
    if partition_epoch != shard.partition_epoch:
        return f"{shard.name} is at partition epoch {shard.partition_epoch}, not {partition_epoch}"
    return None


def _invalid_members(shard: Shard, sender: int, nodes: tuple[int, ...]) -> str | None:
    if len(set(nodes)) != len(nodes):
        return f"the in-sync set of {shard.name} names a node twice"
    for node in nodes:
        if node not in shard.replicas:
            return f"node {node} has no replica of {shard.name}"
    if sender not in nodes:
        return f"the leader {sender} of {shard.name} is always in sync"
    return None


def _with_in_sync(shard: Shard, nodes: tuple[int, ...], min_insync: int) -> Shard:
    if len(nodes) >= min_insync:
        eligible: tuple[int, ...] = ()
    else:
        former = dict.fromkeys((*shard.eligible, *shard.in_sync))
        eligible = tuple(node for node in former if node not in nodes)
    return replace(
        shard, in_sync=nodes, eligible=eligible, partition_epoch=shard.partition_epoch + 1
    )


def without_node(
    shard: Shard, node: int, *, brokers: BrokerEpochs, min_insync: int, is_proven: bool
) -> Shard:
    """Return the shard after a node was fenced, or registered again. One that may have lost
    records (`is_proven` is false) is not eligible any more, either. When the node led the shard,
    another one does, or none."""
    changed = shard
    if node in shard.in_sync:
        nodes = tuple(member for member in shard.in_sync if member != node)
        changed = _with_in_sync(shard, nodes, min_insync)
    if not is_proven and node in changed.eligible:
        changed = replace(
            changed,
            eligible=tuple(member for member in changed.eligible if member != node),
            partition_epoch=shard.partition_epoch + 1,
        )
    if shard.leader == node:
        changed = elect(
            replace(changed, leader=None, last_leader=node), brokers=brokers, min_insync=min_insync
        )
        changed = replace(changed, partition_epoch=shard.partition_epoch + 1)
    return changed


def restarted(shard: Shard, node: int, *, brokers: BrokerEpochs, min_insync: int) -> Shard:
    """Return the shard after its leader registered again with a proof: it may lead on, under an
    epoch of its own, because it does not know any more what it proposed."""
    if shard.leader != node:
        return shard
    vacant = replace(shard, leader=None, last_leader=node)
    return elect(vacant, brokers=brokers, min_insync=min_insync, preferred=node)


def elect(
    shard: Shard, *, brokers: BrokerEpochs, min_insync: int, preferred: int | None = None
) -> Shard:
    """Return the shard with a leader, if it has none and a replica may lead."""
    if shard.leader is not None:
        return shard
    candidates = [node for node in shard.replicas if node in shard.in_sync and node in brokers]
    in_sync = shard.in_sync
    if not candidates:
        candidates = [n for n in shard.replicas if n in shard.eligible and n in brokers]
        in_sync = ()
    if not candidates:
        return replace(
            shard,
            leader_epoch=shard.leader_epoch + 1,
            partition_epoch=shard.partition_epoch + 1,
        )
    leader = preferred if preferred in candidates else candidates[0]
    if not in_sync:
        # The others of the set keep what they have, but this leader has not heard of them.
        in_sync = (leader,)
        others = () if min_insync <= 1 else dict.fromkeys((*shard.in_sync, *shard.eligible))
        eligible = tuple(node for node in others if node != leader)
    else:
        eligible = shard.eligible
    return replace(
        shard,
        leader=leader,
        last_leader=leader,
        in_sync=in_sync,
        eligible=eligible,
        leader_epoch=shard.leader_epoch + 1,
        partition_epoch=shard.partition_epoch + 1,
    )


def move_leader(
    shard: Shard, to: int, *, brokers: BrokerEpochs, min_insync: int
) -> Shard | Rejected:
    """Return the shard led by another replica in sync."""
    if to not in shard.in_sync or to not in brokers:
        return Rejected("bad_request", f"node {to} is not in sync in {shard.name}", shard.name)
    if shard.leader == to:
        return shard
    vacant = replace(shard, leader=None)
    return elect(vacant, brokers=brokers, min_insync=min_insync, preferred=to)


def elect_unclean(shard: Shard, node: int, *, brokers: Collection[int]) -> Shard | Rejected:
    """Return the shard led by a replica that may lack committed records, by an operator's word."""
    if node not in shard.replicas or node not in brokers:
        return Rejected(
            "bad_request",
            f"node {node} has no replica of {shard.name}, or is not there",
            shard.name,
        )
    return replace(
        shard,
        leader=node,
        last_leader=node,
        in_sync=(node,),
        eligible=(),
        leader_epoch=shard.leader_epoch + 1,
        partition_epoch=shard.partition_epoch + 1,
    )


def copied_anew(shard: Shard) -> Shard:
    """Return a shard whose leader was elected by an operator's word: the other replicas are as good
    as new ones. They may have committed records that the leader lacks, and drop these."""
    others = tuple(
        node for node in shard.replicas if node != shard.leader and node not in shard.removing
    )
    return replace(shard, adding=others)


def leave(shard: Shard, node: int, *, brokers: BrokerEpochs, min_insync: int) -> Shard | Rejected:
    """Return the shard after a replica found damage in its log, and may be counted no more. The
    last replica that has everything cannot leave: nothing could take its place."""
    others = [n for n in (*shard.in_sync, *shard.eligible) if n != node]
    if not others:
        return Rejected("bad_request", f"node {node} is the last replica in sync", shard.name)
    left = without_node(shard, node, brokers=brokers, min_insync=min_insync, is_proven=False)
    return replace(left, partition_epoch=shard.partition_epoch + 1)


def change_min_insync(shard: Shard) -> Shard:
    """Return the shard after the minimum of its topic changed: what made replicas eligible does not
    hold any more. Without a replica in sync nothing was, or will be, committed under either."""
    if not shard.eligible or not shard.in_sync:
        return shard
    return replace(shard, eligible=(), partition_epoch=shard.partition_epoch + 1)


def reassign(
    shard: Shard,
    target: tuple[int, ...],
    *,
    brokers: BrokerEpochs,
    min_insync: int,
    throttle: int = 0,
    keeps_order: bool = False,
) -> Shard | Rejected:
    """Return the shard on its way to other replicas, the preferred leader first. A reassignment
    that was under way ends. `keeps_order`: store the replicas as they were, for a cancellation."""
    if not keeps_order:
        shard = replace(shard, previous=())
    given_up = tuple(node for node in shard.adding if node not in target)
    if given_up:
        outcome = cancel_reassignment(shard, brokers=brokers, min_insync=min_insync)
        if isinstance(outcome, Rejected):
            return outcome
        shard = outcome
    settled = [node for node in shard.replicas if node not in shard.adding]
    before = shard.previous if shard.is_moving else shard.replicas
    removed = tuple(node for node in settled if node not in target)
    moving = replace(
        shard,
        replicas=(*target, *removed),
        adding=tuple(node for node in target if node not in settled),
        removing=removed,
        throttle=throttle,
        previous=before if keeps_order else (),
        partition_epoch=shard.partition_epoch + 1,
    )
    return complete_reassignment(moving, brokers=brokers, min_insync=min_insync)


def cancel_reassignment(
    shard: Shard, *, brokers: BrokerEpochs, min_insync: int
) -> Shard | Rejected:
    """Return the shard without the replicas that a reassignment was adding; the others are in the
    order that they had before it."""
    kept = tuple(node for node in shard.replicas if node not in shard.adding)
    if not set(kept) & {*shard.in_sync, *shard.eligible}:
        return Rejected(
            "bad_request",
            f"only replicas that are being added have all records of {shard.name}",
            shard.name,
        )
    restored = [node for node in shard.previous if node in kept]
    ordered = (*restored, *(node for node in kept if node not in restored), *shard.adding)
    return _drop(
        replace(shard, replicas=ordered), shard.adding, brokers=brokers, min_insync=min_insync
    )


def complete_reassignment(shard: Shard, *, brokers: BrokerEpochs, min_insync: int) -> Shard:
    """Return the shard without the replicas that are to go, once those that were added, and enough
    of all that stay, are in sync."""
    if not shard.adding and not shard.removing:
        return shard
    staying = [node for node in shard.replicas if node not in shard.removing]
    in_sync = [node for node in staying if node in shard.in_sync]
    is_added = all(node in shard.in_sync for node in shard.adding)
    if not is_added or len(in_sync) < max(1, min(min_insync, len(staying))):
        return shard
    return _drop(shard, shard.removing, brokers=brokers, min_insync=min_insync)


def _drop(shard: Shard, nodes: tuple[int, ...], *, brokers: BrokerEpochs, min_insync: int) -> Shard:
    """Return the shard without some of its replicas, and without a reassignment."""
    settled = replace(
        shard,
        replicas=tuple(node for node in shard.replicas if node not in nodes),
        adding=(),
        removing=(),
        throttle=0,
        previous=(),
        partition_epoch=shard.partition_epoch + 1,
    )
    for node in nodes:
        settled = without_node(
            settled, node, brokers=brokers, min_insync=min_insync, is_proven=False
        )
    return _as_single(settled) if len(settled.replicas) == 1 else settled


def _as_single(shard: Shard) -> Shard:
    """Return a shard whose only replica is in sync, if it may lead: the rules of one copy know no
    other."""
    if shard.eligible != shard.replicas:
        return shard
    return replace(shard, in_sync=shard.replicas, eligible=())
