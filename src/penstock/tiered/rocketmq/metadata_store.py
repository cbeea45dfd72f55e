"""`TieredMetadataStore`: what this node knows of its tiers: topics, queues, file segments.

The manifests decide; this store follows them, so that a node knows what its tier holds when the
tier does not answer. It can be lost: `penstock tier rebuild` fills it from the tier alone. Every
update is one atomic write of the rows that change, never a rewrite of everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from msgspec import Struct

from penstock.record import ShardId
from penstock.tiered.rocketmq.file_segment import FileSegmentMetadata, FileSegmentType

NO_RESERVE_TIME: Final = -1


class TopicMetadata(Struct, frozen=True, kw_only=True):
    topic_id: int
    topic: str
    status: int = 0
    reserve_time: int = NO_RESERVE_TIME
    """Milliseconds that the tier keeps its records; -1: as the topic's configuration says."""
    update_ms: int = 0


class QueueMetadata(Struct, frozen=True, kw_only=True):
    queue: ShardId
    min_offset: int
    max_offset: int
    update_ms: int = 0


class TieredMetadataStore(Protocol):
    def set_max_topic_id(self, max_topic_id: int) -> None:
        """Give later topics numbers above `max_topic_id`."""
        ...

    def get_topic(self, topic: str) -> TopicMetadata | None: ...

    def iterate_topic(self, callback: Callable[[TopicMetadata], None]) -> None: ...

    def add_topic(self, topic: str, reserve_time: int) -> TopicMetadata:
        """Return the topic, added if it is new."""
        ...

    def update_topic_reserve_time(self, topic: str, reserve_time: int) -> None:
        """Have the tier keep the records of a topic for `reserve_time` milliseconds, from its next
        maintenance on, in place of the retention of its configuration; -1: as that says."""
        ...

    def update_topic_status(self, topic: str, status: int) -> None: ...

    def delete_topic(self, topic: str) -> None: ...

    def get_queue(self, queue: ShardId) -> QueueMetadata | None: ...

    def iterate_queue(self, topic: str, callback: Callable[[QueueMetadata], None]) -> None: ...

    def add_queue(self, queue: ShardId, base_offset: int) -> QueueMetadata:
        """Return the queue, added if it is new, and its topic, too."""
        ...

    def update_queue(self, metadata: QueueMetadata) -> None: ...

    def upsert_queue(self, queue: ShardId, min_offset: int, max_offset: int) -> None:
        """Add or update a queue."""
        ...

    def delete_queue(self, queue: ShardId) -> None:
        """Delete a queue and its file segments; nothing if it is gone."""
        ...

    def get_file_segment(self, segment: FileSegmentMetadata) -> FileSegmentMetadata | None:
        """Return what is stored for the path, type and base offset of `segment`."""
        ...

    def iterate_file_segment(
        self,
        callback: Callable[[FileSegmentMetadata], None],
        type_: FileSegmentType | None = None,
        queue: ShardId | None = None,
    ) -> None:
        """Go over all file segments, or those of a type, or of a queue."""
        ...

    def update_file_segment(self, segment: FileSegmentMetadata) -> FileSegmentMetadata:
        """Add or replace the segment of that path, type and base offset; return it with the time
        of this update."""
        ...

    def delete_file_segment(self, segment: FileSegmentMetadata | ShardId) -> None:
        """Delete one segment, or all of a queue; nothing if they are gone."""
        ...

    def destroy(self) -> None:
        """Delete everything."""
        ...

    def close(self) -> None: ...
