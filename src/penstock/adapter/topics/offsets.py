"""Consumers' offsets by topic and partition; `OffsetManager` keeps them by shard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from penstock.adapter.topics.routes import TopicRoutes
from penstock.errors import TopicReplacedError
from penstock.meta import DEFAULT_NAMESPACE
from penstock.offsets import OffsetCommit, OffsetManager
from penstock.record import Offset, ShardId

TopicPartition = tuple[str, int]
_ANY: Final[Mapping[str, str]] = {}


class TopicOffsets:
    """Methods may be called from any thread. An offset is the next to read."""

    def __init__(self, manager: OffsetManager, routes: TopicRoutes) -> None:
        self.manager: Final = manager
        self._routes: Final = routes

    def commit_offset(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        enable_cache: bool | None = None,
        topic_ids: Mapping[str, str] = _ANY,
    ) -> None:
        """Commit offsets of a group, all or none. Of topics in `topic_ids`, by name, only those
        with that id are meant; `TopicReplacedError` if another has the name by now."""
        if len(offsets) == 1:  # the most frequent case, without the dictionaries
            (((topic, partition), offset),) = offsets.items()
            shard = self._shard(topic, partition, namespace, topic_ids)
            self.manager.commit_offset(
                group, shard, offset, namespace=namespace, enable_cache=enable_cache
            )
            if not self._routes.has_topic(shard.topic):
                self.manager.remove_topic(shard.topic)
            return
        commits = self._by_shard(offsets, namespace, topic_ids)
        self.manager.commit_offsets(group, commits, namespace=namespace, enable_cache=enable_cache)
        self._remove_deleted_topics(commits)

    def reset_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        *,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """Set offsets, also backwards, so that no commit made before can undo it."""
        commits = self._by_shard(offsets, namespace)
        self.manager.reset_offsets(group, commits, namespace=namespace)
        self._remove_deleted_topics(commits)

    def get_offset_by_group(
        self, group: str, topics: Sequence[str] | None = None, *, namespace: str = DEFAULT_NAMESPACE
    ) -> dict[TopicPartition, Offset]:
        """Return what a group has committed, for some topics or all; partitions without an offset
        are left out, and so are topics that do not exist any more."""
        committed = self.manager.get_offsets(group, namespace=namespace)
        if topics is None:
            topics = self._routes.names_of({shard.topic for shard in committed}, namespace)
        by_partition: dict[TopicPartition, Offset] = {}
        for topic in topics:
            route = self._routes.find(topic, namespace)
            for partition in range(route.partitions):
                known = committed.get(ShardId(route.topic.topic_id, partition))
                if known is not None:
                    by_partition[topic, partition] = Offset(known.offset)
        return by_partition

    def _remove_deleted_topics(self, shards: Iterable[ShardId]) -> None:
        """Remove offsets of topics that were deleted during the commit. A deletion after the commit
        removes them itself."""
        for topic_id in {shard.topic for shard in shards}:
            if not self._routes.has_topic(topic_id):
                self.manager.remove_topic(topic_id)

    def _by_shard(
        self,
        offsets: Mapping[TopicPartition, int],
        namespace: str,
        topic_ids: Mapping[str, str] = _ANY,
    ) -> dict[ShardId, OffsetCommit]:
        commits: dict[ShardId, OffsetCommit] = {}
        for (topic, partition), offset in offsets.items():
            shard = self._shard(topic, partition, namespace, topic_ids)
            commits[shard] = OffsetCommit(Offset(offset))
        return commits

    def _shard(
        self, topic: str, partition: int, namespace: str, topic_ids: Mapping[str, str]
    ) -> ShardId:
        """Return the shard of an offset, by id: the name may go to another topic from now on."""
        route = self._routes.find(topic, namespace)
        if topic_ids.get(topic, route.topic.topic_id) != route.topic.topic_id:
            raise TopicReplacedError(topic)
        return route.id(partition)
