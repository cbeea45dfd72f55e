"""From the metadata to assignments: what `ReplicaCore` has to know of shards and nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from penstock.engine.replication.assignment import Assignment
from penstock.meta import Node, Shard, Topic, Update, is_replicated, shard_min_insync
from penstock.meta import events as event

_TAKES_PART: Final = frozenset({"online", "draining", "stopping"})


class MetadataChange(Struct, frozen=True):
    """What an update of the metadata means for the replication."""

    assignments: tuple[Assignment, ...]
    removed: tuple[str, ...]
    broker_epochs: dict[int, int]


class AssignmentView:
    """Follows the updates of the metadata, in order; one thread calls."""

    def __init__(self, node_id: int) -> None:
        self._node_id: Final = node_id
        self._topics: Final[dict[str, Topic]] = {}
        self._shards: Final[dict[str, Shard]] = {}
        """Replicated shards with a copy on this node, by name."""
        self._by_topic: Final[dict[str, set[str]]] = {}
        self._nodes: Final[dict[int, Node]] = {}

    def apply(self, update: Update) -> MetadataChange:
        changed: dict[str, None] = {}
        removed: dict[str, None] = {}
        if update.is_reset:
            removed = dict.fromkeys(self._shards)
            for known in (self._topics, self._shards, self._by_topic, self._nodes):
                known.clear()
        for item in update.events:
            self._apply(item, changed, removed)
        return MetadataChange(
            tuple(self._assignments(changed)), tuple(removed), self._broker_epochs()
        )

    def _apply(
        self, change: event.Event, changed: dict[str, None], removed: dict[str, None]
    ) -> None:
        match change:
            case event.TopicPut(topic):
                self._topics[topic.topic_id] = topic
                changed.update(dict.fromkeys(self._by_topic.get(topic.topic_id, ())))
            case event.TopicDeleted(topic):
                self._topics.pop(topic.topic_id, None)
            case event.ShardPut(shard):
                self._put(shard, changed, removed)
            case event.ShardDeleted(topic_id, partition):
                self._drop(f"{topic_id}_{partition}", removed)
            case event.NodePut(node):
                self._nodes[node.node_id] = node
            case event.NodeRemoved(node_id):
                self._nodes.pop(node_id, None)
            case event.SegmentPut() | event.SegmentDeleted():
                pass

    def all(self) -> MetadataChange:
        """Return everything that is known."""
        return MetadataChange(tuple(self._assignments(self._shards)), (), self._broker_epochs())

    def drop(self, shard: str) -> None:
        """Follow a shard no more: its only copy is here."""
        self._drop(shard, {})

    def _put(self, shard: Shard, changed: dict[str, None], removed: dict[str, None]) -> None:
        topic = self._topics.get(shard.topic_id)
        is_here = self._node_id in shard.replicas
        is_copied = topic is not None and is_replicated(shard, topic.config)
        # One that has become the only copy is replicated until its logs are those of one.
        is_ending = topic is not None and shard.name in self._shards and not is_copied
        if not is_here or not (is_copied or is_ending):
            self._drop(shard.name, removed)
            return
        self._shards[shard.name] = shard
        self._by_topic.setdefault(shard.topic_id, set()).add(shard.name)
        changed[shard.name] = None
        removed.pop(shard.name, None)

    def _drop(self, name: str, removed: dict[str, None]) -> None:
        shard = self._shards.pop(name, None)
        if shard is None:
            return
        removed[name] = None
        names = self._by_topic[shard.topic_id]
        names.discard(name)
        if not names:
            del self._by_topic[shard.topic_id]

    def _assignments(self, names: Iterable[str]) -> Iterable[Assignment]:
        for name in names:
            shard = self._shards.get(name)
            topic = None if shard is None else self._topics.get(shard.topic_id)
            if shard is not None and topic is not None:
                yield Assignment(
                    shard=shard.name,
                    replicas=shard.replicas,
                    in_sync=shard.in_sync,
                    eligible=shard.eligible,
                    leader=shard.leader,
                    leader_epoch=shard.leader_epoch,
                    partition_epoch=shard.partition_epoch,
                    min_insync=shard_min_insync(shard, topic.config),
                    throttle=shard.throttle if self._node_id in shard.adding else 0,
                    may_begin_anew=self._node_id in shard.adding
                    and self._node_id not in (*shard.in_sync, *shard.eligible),
                    is_single=not is_replicated(shard, topic.config),
                )

    def _broker_epochs(self) -> dict[int, int]:
        return {
            node.node_id: node.epoch for node in self._nodes.values() if node.status in _TAKES_PART
        }
