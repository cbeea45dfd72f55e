"""What a leader answers about one shard.

A reply brings records, a cut, a later start of the log, or a commit offset; there is none when the
follower knows everything. One that has left the in-sync set because of damage always gets a reply:
it cuts its log once it knows that this leader's log goes on where its own ends.
"""

from __future__ import annotations

from penstock.engine.replication.leader import LeaderReplica
from penstock.engine.replication.log import ReplicaLog
from penstock.engine.replication.messages import (
    Fetch,
    FetchError,
    FetchReply,
    ShardReply,
    StreamReply,
)
from penstock.engine.replication.sessions import ServedSession
from penstock.errors import CorruptionError


def reply_to(
    leader: LeaderReplica | None, node: int, session: ServedSession, shard: str, max_size: int
) -> ShardReply | None:
    """Return what the follower of a shard has to know, in the reply to its last fetch; None when it
    knows everything. This node does not lead the shard if `leader` equals None."""
    fetch = session.positions[shard]
    if leader is None:
        return ShardReply(shard, FetchError.NOT_LEADER, fetch.leader_epoch)
    epoch = leader.assignment.leader_epoch
    error = leader.check_fetch(node, fetch)
    if error is not FetchError.NONE:
        return ShardReply(shard, error, epoch)
    streams = leader.divergence(fetch)
    if streams is not None:
        return ShardReply(shard, FetchError.NONE, epoch, streams)
    streams_read = [
        read_stream(log, position.end, max_size)
        for log, position in zip(leader.logs, fetch.positions, strict=True)
    ]
    read = tuple(reply for reply, _ in streams_read)
    has_records = any(reply.data for reply in read)
    if has_records:
        leader.record_sent(node, tuple(after for _, after in streams_read), session.sequence)
    has_news = has_records or any(
        min(reply.commit, position.safe) > position.commit or reply.start > position.end
        for reply, position in zip(read, fetch.positions, strict=True)
    )
    is_damaged = node not in leader.assignment.in_sync and any(
        position.safe < position.commit for position in fetch.positions
    )
    return ShardReply(shard, FetchError.NONE, epoch, read) if has_news or is_damaged else None


def refusal_of(fetch: Fetch) -> FetchReply:
    """Answer a node that is not registered, or registered again: one of both will learn."""
    replies = tuple(
        ShardReply(asked.shard, FetchError.OLD_BROKER, asked.leader_epoch) for asked in fetch.shards
    )
    return FetchReply(fetch.session, fetch.sequence, replies, is_reset=True)


def has_only_commits(reply: ShardReply) -> bool:
    """Say whether a reply has nothing for a follower but commit offsets."""
    return reply.error is FetchError.NONE and all(
        not stream.data and stream.cut_end < 0 and stream.start <= stream.position
        for stream in reply.streams
    )


def read_stream(log: ReplicaLog, offset: int, max_size: int) -> tuple[StreamReply, int]:
    """Return the records from `offset` on, and where they end."""
    nothing = StreamReply(offset, log.commit, log.start)
    if not log.start <= offset < log.end:
        return nothing, offset
    try:
        data, after = log.read_range(offset, max_size)
    except CorruptionError:
        return nothing, offset  # the log knows; see `ReplicaCore._handle_damage`
    return StreamReply(offset, log.commit, log.start, data), after
