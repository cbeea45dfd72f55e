"""Changes of the metadata, as `MetadataClient.watch` delivers them.

Other packages import from here.

A closed union of tagged structures, stored as MessagePack arrays with the rules of `state.model`:
append fields with defaults, never change one. A tag is never used again for another meaning.
"""

from __future__ import annotations

from msgspec import Struct

from penstock.meta.state.model import Node, Segment, Shard, Topic


class TopicPut(Struct, frozen=True, array_like=True, tag="topic-put"):
    topic: Topic


class TopicDeleted(Struct, frozen=True, array_like=True, tag="topic-deleted"):
    """The topic and all of its shards take no more requests."""

    topic: Topic


class ShardPut(Struct, frozen=True, array_like=True, tag="shard-put"):
    shard: Shard


class ShardDeleted(Struct, frozen=True, array_like=True, tag="shard-deleted"):
    topic_id: str
    partition: int


class SegmentPut(Struct, frozen=True, array_like=True, tag="segment-put"):
    segment: Segment


class SegmentDeleted(Struct, frozen=True, array_like=True, tag="segment-deleted"):
    topic_id: str
    partition: int
    number: int


class NodePut(Struct, frozen=True, array_like=True, tag="node-put"):
    node: Node


class NodeRemoved(Struct, frozen=True, array_like=True, tag="node-removed"):
    node_id: int


Event = (
    TopicPut
    | TopicDeleted
    | ShardPut
    | ShardDeleted
    | SegmentPut
    | SegmentDeleted
    | NodePut
    | NodeRemoved
)
