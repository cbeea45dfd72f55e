"""Fetch sessions: which shards one node copies from another, and what the leader has to answer.

    follower  FetchSession: shards by name, those to list in the next fetch
    leader    ServedSession: the last position of each shard, those with news, the parked fetch

A fetch has a sequence number, one more than the one before. A leader that gets another one than it
expects answers with a reset; a repeated one it ignores. So a message that is lost, repeated or late
costs a new session at most.
"""

from __future__ import annotations

from typing import Final

from penstock.engine.replication.messages import Fetch, FetchReply, ShardFetch

UNANSWERED_MAX: Final = 4


class FetchSession:
    """The follower's end of a session with one leader.

    A fetch that waits at the leader does not name shards that came later. Another fetch names them,
    and replaces it there: at most `UNANSWERED_MAX` may be unanswered, of which the leader answers
    the last, or one that it answered before it got the last.
    """

    __slots__ = (
        "_answered",
        "_listed",
        "asked_at",
        "has_gap",
        "leader",
        "sequence",
        "session",
        "shards",
    )

    def __init__(self, leader: int, session: int) -> None:
        self.leader: Final = leader
        self.session = session
        self.sequence = 0
        """That of the next fetch."""
        self._answered = -1
        """That of the last fetch that was answered."""
        self.shards: Final[set[str]] = set()
        self._listed: set[str] = set()
        self.asked_at = 0.0
        """Since when an answer is due."""
        self.has_gap = False
        """Whether a reply is lost, or late: what it said is not known."""

    @property
    def answered_until(self) -> int:
        """The last fetch whose reply has come; -1: none."""
        return self._answered

    @property
    def is_waiting(self) -> bool:
        """Whether a fetch is at the leader."""
        return self._answered < self.sequence - 1

    @property
    def may_send(self) -> bool:
        """Whether another fetch may go to the leader, and would say something."""
        if not self.shards:
            return False
        if not self.is_waiting:
            return True
        return bool(self._listed) and self.sequence - 1 - self._answered < UNANSWERED_MAX

    def begin_again(self, session: int) -> None:
        """Start a new session: the next fetch lists all shards."""
        self.session, self.sequence, self._answered = session, 0, -1
        self._listed = set(self.shards)

    def sent(self, now: float) -> None:
        if not self.is_waiting:
            self.asked_at = now
        self.sequence += 1

    def answered(self, now: float, reply: FetchReply) -> bool:
        """Note a reply; return whether it is one that this session waits for."""
        is_awaited = self._answered < reply.sequence < self.sequence
        if reply.session != self.session or not is_awaited:
            return False
        self.has_gap = reply.after != self._answered
        self._answered = reply.sequence
        self.asked_at = now
        return True

    def add(self, shard: str) -> None:
        self.shards.add(shard)
        self._listed.add(shard)

    def remove(self, shard: str) -> None:
        self.shards.discard(shard)
        self._listed.discard(shard)

    def list_again(self, shard: str) -> None:
        if shard in self.shards:
            self._listed.add(shard)

    def drain_listed(self) -> list[str]:
        listed = sorted(self._listed)
        self._listed.clear()
        return listed


class ServedSession:
    """The leader's end of a session with one follower."""

    __slots__ = (
        "_ready",
        "answered_until",
        "broker_epoch",
        "last_reply",
        "max_size",
        "parked_at",
        "positions",
        "sequence",
        "session",
    )  # fmt: skip

    def __init__(self, fetch: Fetch) -> None:
        self.session: Final = fetch.session
        self.broker_epoch: Final = fetch.broker_epoch
        self.sequence = fetch.sequence
        self.last_reply = -1
        """The fetch that was answered last."""
        self.answered_until = fetch.answered
        """The last fetch whose reply the follower has got; -1: it has none, or does not say."""
        self.max_size = fetch.max_size
        self.positions: Final[dict[str, ShardFetch]] = {}
        """What the follower asked for and has not been answered."""
        self._ready: dict[str, None] = {}
        self.parked_at: float | None = None
        """When the fetch came that waits for an answer."""

    def list_shard(self, fetch: ShardFetch) -> None:
        self.positions[fetch.shard] = fetch
        self._ready[fetch.shard] = None

    def wake(self, shard: str) -> bool:
        """Note that a shard has news; return whether the follower waits for them."""
        if shard in self.positions:
            self._ready[shard] = None
            return self.parked_at is not None
        return False

    def drain_ready(self) -> list[str]:
        """Return the shards with news; those that are not answered have to be woken again."""
        ready = list(self._ready)
        self._ready = {}
        return ready

    def answered(self, shard: str) -> None:
        """Note that the follower was answered; it lists the shard in its next fetch."""
        self.positions.pop(shard, None)

    def drop(self, shard: str) -> None:
        self.positions.pop(shard, None)
        self._ready.pop(shard, None)
