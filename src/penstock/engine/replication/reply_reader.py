"""Reads what a leader sends to a follower whose logs are prefixes of its own."""

from __future__ import annotations

from penstock.engine.replication.leader import LeaderReplica
from penstock.engine.replication.log import ReplicaLog
from penstock.engine.replication.messages import ShardFetch, StreamReply
from penstock.errors import CorruptionError


def read_reply(
    leader: LeaderReplica, node: int, fetch: ShardFetch, limit: int
) -> tuple[StreamReply, ...] | None:
    """Return records, commit offsets and starts of all logs; None when the follower knows them."""
    found = [
        read_stream(log, position.end, limit)
        for log, position in zip(leader.logs, fetch.positions, strict=True)
    ]
    read = tuple(reply for reply, _ in found)
    has_records = any(reply.data for reply in read)
    if has_records:
        leader.record_sent(node, tuple(after for _, after in found))
    has_news = has_records or any(
        min(reply.commit, position.safe) > position.commit or reply.start > position.end
        for reply, position in zip(read, fetch.positions, strict=True)
    )
    return read if has_news else None


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
