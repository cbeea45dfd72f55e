"""How replicated shards are doing, for people: which lack replicas, a majority, or a leader."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from penstock.meta.state.constants import ACTIVE
from penstock.meta.state.metadata.replica_sets import is_replicated, shard_min_insync
from penstock.meta.state.metadata.rows import SHARDS, TOPICS
from penstock.meta.state.model import Shard, Topic
from penstock.meta.state.view import Reader


class ReplicaProblem(Struct, frozen=True):
    shard: Shard
    is_offline: bool
    """It has no leader."""
    spare: int
    """How many replicas in sync there are above the minimum; below 0: no write succeeds."""

    @property
    def word(self) -> str:
        if self.is_offline:
            return "offline"
        if self.spare < 0:
            return "refusing writes"
        return "at risk" if self.spare == 0 else "under-replicated"


class TopicReplicas(Struct, frozen=True):
    """The replicas of one topic."""

    topic: Topic
    shards: int
    moving: int
    problems: tuple[ReplicaProblem, ...]


def replicas_of(topic: Topic, shards: list[Shard]) -> TopicReplicas:
    replication = topic.config.replication
    problems = tuple(
        ReplicaProblem(shard, shard.leader is None, _spare(topic, shard))
        for shard in shards
        if shard.leader is None or len(shard.in_sync) < replication or _spare(topic, shard) < 0
    )
    moving = sum(1 for shard in shards if shard.is_moving)
    return TopicReplicas(topic, len(shards), moving, problems)


def _spare(topic: Topic, shard: Shard) -> int:
    return len(shard.in_sync) - shard_min_insync(shard, topic.config)


def replicated_topics(rows: Reader) -> Iterator[TopicReplicas]:
    """Yield the topics with several replicas, in the order of their ids."""
    for topic in list(TOPICS.scan(rows)):
        if topic.status != ACTIVE:
            continue
        shards = SHARDS.scan(rows, topic.topic_id)
        copied = [shard for shard in shards if is_replicated(shard, topic.config)]
        if copied:
            yield replicas_of(topic, copied)
