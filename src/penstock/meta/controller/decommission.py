"""What would go, or has gone, with a node: shards that no other node has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.meta.controller.decisions import sole_copies
from penstock.meta.state.constants import ACTIVE, LOST
from penstock.meta.state.metadata.rows import SHARDS, TOPICS
from penstock.meta.state.view import Reader

_SHOWN: Final = 10


def only_there(rows: Reader, node_id: int) -> list[str]:
    """Return the shards, as topic/partition, of which only this node has everything. Those of
    deleted topics are nobody's loss."""
    found: list[str] = []
    for shard in sole_copies(SHARDS.scan(rows), node_id):
        topic = TOPICS.get(rows, shard.topic_id)
        if topic is not None and topic.status == ACTIVE:
            found.append(f"{topic.name}/{shard.partition}")
    return found


def lost_shards(rows: Reader) -> list[str]:
    """Return the shards, as topic/partition, whose nodes have come back without the records."""
    found: list[str] = []
    for shard in SHARDS.scan(rows):
        topic = TOPICS.get(rows, shard.topic_id) if shard.status == LOST else None
        if topic is not None and topic.status == ACTIVE:
            found.append(f"{topic.name}/{shard.partition}")
    return found


def listed(shards: Sequence[str]) -> str:
    """Return shards as a sentence names them."""
    more = len(shards) - _SHOWN
    return ", ".join(shards[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
