"""Whether this node leads a partition, in the leader epoch that a client knows."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from penstock.meta import Shard


def leader_error(shard: Shard | None, node_id: int, epoch: int) -> int:
    """Return the code for a request to a partition, 0 to serve it; `epoch` -1: any."""
    if shard is None:
        return int(ErrorCode.unknown_topic_or_partition)
    if shard.leader != node_id:
        return int(ErrorCode.not_leader_or_follower)
    return epoch_error(shard, epoch)


def epoch_error(shard: Shard | None, epoch: int) -> int:
    """Return the code for a request with a leader epoch, 0 where this node knows the same."""
    if shard is None:
        return int(ErrorCode.unknown_topic_or_partition)
    if 0 <= epoch < shard.leader_epoch:
        return int(ErrorCode.fenced_leader_epoch)
    return int(ErrorCode.unknown_leader_epoch) if epoch > shard.leader_epoch else 0
