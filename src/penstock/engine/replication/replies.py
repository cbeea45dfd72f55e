"""What a leader answers about one shard.

A reply brings records, a cut, a later start of the log, or a commit offset; there is none when the
follower knows everything.
"""

from __future__ import annotations

from penstock.engine.replication.leader import LeaderReplica
from penstock.engine.replication.log import ReplicaLog
from penstock.engine.replication.messages import FetchError, ShardFetch, ShardReply, StreamReply
from penstock.errors import CorruptionError


def reply_to(
    leader: LeaderReplica | None, node: int, fetch: ShardFetch, max_size: int
) -> ShardReply | None:
    """Return what the follower of a shard has to know; None when it knows everything. `leader` is
    None when this node does not lead the shard."""
    shard = fetch.shard
    if leader is None:
        return ShardReply(shard, FetchError.NOT_LEADER, fetch.leader_epoch)
    epoch = leader.assignment.leader_epoch
    error = leader.check_fetch(node, fetch)
    if error is not FetchError.NONE:
        return ShardReply(shard, error, epoch)
    streams = leader.divergence(fetch)
    if streams is not None:
        return ShardReply(shard, FetchError.NONE, epoch, streams)
    read = tuple(
        _read(log, position.end, max_size)
        for log, position in zip(leader.logs, fetch.positions, strict=True)
    )
    has_news = (
        any(min(s.commit, p.safe) > p.commit for s, p in zip(read, fetch.positions, strict=True))
        or any(stream.data for stream in read)
        or any(s.start > p.end for s, p in zip(read, fetch.positions, strict=True))
    )
    return ShardReply(shard, FetchError.NONE, epoch, read) if has_news else None


def has_only_commits(reply: ShardReply) -> bool:
    """Say whether a reply has nothing for a follower but commit offsets."""
    return reply.error is FetchError.NONE and all(
        not stream.data and stream.cut_end < 0 and stream.start <= stream.position
        for stream in reply.streams
    )


def _read(log: ReplicaLog, offset: int, max_size: int) -> StreamReply:
    if not log.start <= offset < log.end:
        return StreamReply(offset, log.commit, log.start)
    try:
        data, _ = log.read_range(offset, max_size)
    except CorruptionError:
        return StreamReply(offset, log.commit, log.start)  # the log knows; see `_handle_damage`
    return StreamReply(offset, log.commit, log.start, data)
