"""How far a group of consumers is behind, also while some nodes are away.

A partition whose leader is away, or does not answer, is reported as a problem; the others are
counted. A node that does not answer is asked once, so the whole takes no longer than one answer of
each node.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.adapter.topic_storage import TopicStorage
from penstock.errors import RetryableError, ShardLostError
from penstock.record import Offset

TopicPartition = tuple[str, int]


def lag_of(
    topics: TopicStorage, offsets: Mapping[TopicPartition, Offset], namespace: str
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, str]]:
    """Return how many records each partition has that are not committed, and why that is not
    known of others."""
    lag: dict[TopicPartition, int] = {}
    problems: dict[TopicPartition, str] = {}
    silent: dict[int, str] = {}
    for (topic, partition), offset in offsets.items():
        leader = _leader(topics, topic, partition, namespace)
        if leader in silent:
            problems[topic, partition] = silent[leader]
            continue
        try:
            info = topics.shard_info(topic, partition, namespace=namespace)
        except (RetryableError, ShardLostError) as error:
            problems[topic, partition] = str(error)
            if leader is not None and isinstance(error, RetryableError):
                silent[leader] = str(error)
        else:
            lag[topic, partition] = max(0, info.commit - max(offset, info.earliest))
    return lag, problems


def _leader(topics: TopicStorage, topic: str, partition: int, namespace: str) -> int | None:
    shard = topics.routes.find(topic, namespace).shard(partition)
    meta = topics.handler.find(shard).meta
    return None if meta is None else meta.leader
