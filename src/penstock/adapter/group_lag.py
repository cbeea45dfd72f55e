"""The lag of a consumer group, also while some nodes are unreachable.

A partition whose leader does not respond is reported as a problem; the others are counted. A node
that does not respond is asked once, so that the call takes no longer than one time-out per node.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.adapter.driver_manager import StorageDriverManager
from penstock.errors import RetryableError, ShardLostError
from penstock.record import Offset

TopicPartition = tuple[str, int]


def lag_of(
    drivers: StorageDriverManager, offsets: Mapping[TopicPartition, Offset], namespace: str
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, str]]:
    """Return the lag of each partition in records, and for the others why it is unknown."""
    lag: dict[TopicPartition, int] = {}
    problems: dict[TopicPartition, str] = {}
    silent: dict[int, str] = {}
    for (topic, partition), offset in offsets.items():
        leader = _leader(drivers, topic, partition, namespace)
        if leader in silent:
            problems[topic, partition] = silent[leader]
            continue
        try:
            info = drivers.shard_info(topic, partition, namespace=namespace)
        except (RetryableError, ShardLostError) as error:
            problems[topic, partition] = str(error)
            if leader is not None and isinstance(error, RetryableError):
                silent[leader] = str(error)
        else:
            lag[topic, partition] = max(0, info.commit - max(offset, info.earliest))
    return lag, problems


def _leader(
    drivers: StorageDriverManager, topic: str, partition: int, namespace: str
) -> int | None:
    shard = drivers.routes.find(topic, namespace).shard(partition)
    meta = drivers.open_shard(shard).entry.meta
    return None if meta is None else meta.leader
