"""The messages between the replicas of shards.

A follower keeps one fetch at its leader. The first fetch of a session lists all shards that the
follower copies from that node; later ones list those of which the last reply said something. A
fetch that has nothing to report is answered when there are records or news, or after a while. The
positions in a fetch are the acknowledgements: no other message carries them.
"""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct


class FetchError(IntEnum):
    NONE = 0
    NOT_LEADER = 1
    """The node does not lead the shard, or not yet: it may learn of its election later."""
    OLD_EPOCH = 2
    """The follower does not know the newest leader epoch."""
    NEW_EPOCH = 3
    """The leader does not know the newest leader epoch."""
    OLD_BROKER = 4
    """The follower has registered again since."""
    NOT_REPLICA = 5


class StreamPosition(Struct, frozen=True, array_like=True):
    """How far one log of a follower goes."""

    end: int
    epoch: int
    """The epoch of the record before `end`."""
    safe: int
    commit: int


class ShardFetch(Struct, frozen=True, array_like=True):
    shard: str
    leader_epoch: int
    partition_epoch: int
    """The newest that the follower knows: a leader lets it join the in-sync set only when it knows
    that it is outside."""
    positions: tuple[StreamPosition, ...]


class Fetch(Struct, frozen=True, array_like=True, tag="fetch"):
    broker_epoch: int
    session: int
    sequence: int
    """0 begins a session, and replaces the one before."""
    shards: tuple[ShardFetch, ...]
    max_size: int
    answered: int = -1
    """The last fetch of this session whose reply the follower has got: what that reply sent is in
    the positions, or was dropped. Followers of older releases do not say."""


class StreamReply(Struct, frozen=True, array_like=True):
    position: int
    """The end of the follower's log for which this is the reply. A log that has another end by now
    has got an earlier reply: this one says nothing to it."""
    commit: int
    start: int
    """Where the leader's log begins."""
    data: bytes = b""
    """Records from the follower's position on."""
    cut_epoch: int = -1
    cut_end: int = -1
    """Not negative: the follower's log differs. It has to cut its records after `cut_end`, and
    those of epochs above `cut_epoch`."""


class ShardReply(Struct, frozen=True, array_like=True):
    shard: str
    error: FetchError
    leader_epoch: int
    streams: tuple[StreamReply, ...] = ()


class FetchReply(Struct, frozen=True, array_like=True, tag="reply"):
    session: int
    sequence: int
    shards: tuple[ShardReply, ...]
    is_reset: bool = False
    """The leader does not know the session: the follower begins another."""
    after: int = -1
    """The fetch of this session that the leader answered before; -1: none. A follower that has not
    got that answer begins another session: it does not know what was in it."""


Message = Fetch | FetchReply
