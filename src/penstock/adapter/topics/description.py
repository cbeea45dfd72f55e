"""What is known of a topic: its configuration, and the bounds and leaders of its partitions."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from penstock.engine.contract import ShardInfo
from penstock.engine.handler import StorageEngineHandler
from penstock.errors import DeadlineError, NotLeaderError, ShardLostError, UnknownTopicError
from penstock.meta import Topic
from penstock.record import Offset


class PartitionDescription(Struct, frozen=True):
    info: ShardInfo
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    segments: int
    problem: str = ""
    """Why its bounds are unknown; `info` is empty then."""


class TopicDescription(Struct, frozen=True):
    """A topic and the bounds of its partitions."""

    topic: Topic
    partitions: tuple[PartitionDescription, ...]


def describe(
    handler: StorageEngineHandler, topic: Topic, shards: Iterable[str]
) -> TopicDescription:
    """Describe a topic whose partitions are in `shards`, in order."""
    return TopicDescription(
        topic, tuple(_describe_partition(handler, topic, name) for name in shards)
    )


def _describe_partition(
    handler: StorageEngineHandler, topic: Topic, shard_name: str
) -> PartitionDescription:
    entry = handler.find(shard_name)
    meta = entry.meta
    if meta is None:
        raise UnknownTopicError(topic.name)
    problem = ""
    try:
        info = handler.stable_info(shard_name)
    except (NotLeaderError, ShardLostError, DeadlineError) as error:
        zero = Offset(0)
        info, problem = ShardInfo(entry.id, zero, zero, zero, 0), str(error)
    return PartitionDescription(
        info=info,
        leader=meta.leader,
        leader_epoch=meta.leader_epoch,
        replicas=meta.replicas,
        segments=len(entry.segments),
        problem=problem,
    )
