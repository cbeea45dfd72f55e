"""Decommission check: the shards whose last replica is on a node, and those that are lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.meta.controller.decisions import last_replicas
from penstock.meta.state.constants import ACTIVE, LOST
from penstock.meta.state.metadata.rows import SHARDS, TOPICS
from penstock.meta.state.view import Reader

_SHOWN: Final = 10


def last_replica_shards(rows: Reader, node_id: int) -> list[str]:
    """Return the shards, as topic/partition, whose last replica in sync is on this node, without
    those of deleted topics."""
    names: list[str] = []
    for shard in last_replicas(SHARDS.scan(rows), node_id):
        topic = TOPICS.get(rows, shard.topic_id)
        if topic is not None and topic.status == ACTIVE:
            names.append(f"{topic.name}/{shard.partition}")
    return names


def lost_shards(rows: Reader) -> list[str]:
    """Return the shards, as topic/partition, whose nodes have come back without the records."""
    names: list[str] = []
    for shard in SHARDS.scan(rows):
        topic = TOPICS.get(rows, shard.topic_id) if shard.status == LOST else None
        if topic is not None and topic.status == ACTIVE:
            names.append(f"{topic.name}/{shard.partition}")
    return names


def listed(shards: Sequence[str]) -> str:
    """Return the names of shards for an error message, at most `_SHOWN` of them."""
    more = len(shards) - _SHOWN
    return ", ".join(shards[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
