"""Which shards a job is about: those of the topics named, or all."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from penstock.errors import BadRequestError
from penstock.pipeline.store.named_view import NamedView
from penstock.record import ShardId


def chosen_shards(view: NamedView, path: str, topics: Sequence[str] | None) -> list[ShardId]:
    """Return the shards of these topics; refuse a topic that is not there."""
    shards = view.shards()
    if topics is None:
        return shards
    there = {shard.topic for shard in shards}
    for topic in topics:
        if topic not in there:
            near = get_close_matches(topic, there, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise BadRequestError(f"topic {topic!r} does not exist in {path}{hint}")
    return [shard for shard in shards if shard.topic in topics]
