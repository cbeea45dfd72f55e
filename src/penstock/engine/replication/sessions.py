"""Fetch sessions: which shards one node copies from another, and what the leader has to answer.

    follower  FetchSession: shards by name, those to list in the next fetch
    leader    ServedSession: the last position of each shard, those with news, the parked fetch

A fetch has a sequence number, one more than the one before. A leader that gets another one than it
expects answers with a reset; a repeated one it ignores. So a message that is lost, repeated or late
costs a new session at most.
"""

from __future__ import annotations

from typing import Final

from penstock.engine.replication.messages import Fetch, ShardFetch


class FetchSession:
    """The follower's end of a session with one leader."""

    __slots__ = ("_listed", "asked_at", "is_waiting", "leader", "sequence", "session", "shards")

    def __init__(self, leader: int, session: int) -> None:
        self.leader: Final = leader
        self.session = session
        self.sequence = 0
        self.shards: Final[set[str]] = set()
        self._listed: set[str] = set()
        self.is_waiting = False
        """Whether a fetch is at the leader."""
        self.asked_at = 0.0

    def begin_again(self, session: int) -> None:
        """Start a new session: the next fetch lists all shards."""
        self.session, self.sequence, self.is_waiting = session, 0, False
        self._listed = set(self.shards)

    def add(self, shard: str) -> None:
        self.shards.add(shard)
        self._listed.add(shard)

    def remove(self, shard: str) -> None:
        self.shards.discard(shard)
        self._listed.discard(shard)

    def list_again(self, shard: str) -> None:
        if shard in self.shards:
            self._listed.add(shard)

    def take_listed(self) -> list[str]:
        listed = sorted(self._listed)
        self._listed.clear()
        return listed


class ServedSession:
    """The leader's end of a session with one follower."""

    __slots__ = (
        "_ready",
        "broker_epoch",
        "known_commits",
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
        self.max_size = fetch.max_size
        self.positions: Final[dict[str, ShardFetch]] = {}
        """What the follower asked for and has not been answered."""
        self.known_commits: Final[dict[str, tuple[int, ...]]] = {}
        """The commit offsets of which the follower knows."""
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

    def take_ready(self) -> list[str]:
        """Return the shards with news; those that are not answered have to be woken again."""
        ready = list(self._ready)
        self._ready = {}
        return ready

    def answered(self, shard: str, commits: tuple[int, ...]) -> None:
        """Note that the follower was answered; it lists the shard in its next fetch."""
        self.positions.pop(shard, None)
        self.known_commits[shard] = commits

    def drop(self, shard: str) -> None:
        self.positions.pop(shard, None)
        self.known_commits.pop(shard, None)
        self._ready.pop(shard, None)
