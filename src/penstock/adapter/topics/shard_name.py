"""The name of a shard: `{topic_id}_{partition}`."""

from __future__ import annotations

from penstock.record import ShardId


def build_storage_name(topic_id: str, partition: int) -> str:
    """Return the name under which a partition of a topic is stored."""
    return ShardId(topic_id, partition).name
