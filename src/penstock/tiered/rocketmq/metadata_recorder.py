"""Lets the metadata store of a node follow the manifest of one shard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from penstock.record import ShardId
from penstock.tiered.chunk.manifest import Manifest
from penstock.tiered.rocketmq.file_segment import FileSegmentMetadata
from penstock.tiered.rocketmq.metadata_store import QueueMetadata, TieredMetadataStore


class MetadataRecorder:
    def __init__(self, store: TieredMetadataStore | None, shard: ShardId) -> None:
        """Without a store, nothing is recorded."""
        self._store: Final = store
        self._shard: Final = shard
        self._recorded: dict[str, FileSegmentMetadata] | None = None
        """The rows of the store by path; None before they were read."""

    def record(self, manifest: Manifest | None, segments: Iterable[FileSegmentMetadata]) -> None:
        """Store the bounds, and the rows of segments that were added, have grown or are gone, also
        while another process uploaded."""
        if self._store is None or manifest is None:
            return
        self._store.upsert_queue(self._shard, manifest.start_offset, manifest.end_offset)
        recorded = self._rows(self._store) if self._recorded is None else self._recorded
        current = {segment.path: segment for segment in segments}
        for path, row in recorded.items():
            if path not in current:
                self._store.delete_file_segment(row)
        for path, segment in current.items():
            if recorded.get(path) != segment:
                self._store.update_file_segment(segment)
        self._recorded = current

    def _rows(self, store: TieredMetadataStore) -> dict[str, FileSegmentMetadata]:
        rows: list[FileSegmentMetadata] = []
        store.iterate_file_segment(rows.append, queue=self._shard)
        # The manifest has no update times.
        return {row.path: replace(row, update_ms=0) for row in rows}

    def reserve_ms(self) -> int | None:
        """Return the reserve time of the topic: how long the tier keeps its records; None when the
        store has none."""
        topic = None if self._store is None else self._store.get_topic(self._shard.topic)
        return topic.reserve_time if topic is not None and topic.reserve_time > 0 else None

    def delete(self) -> None:
        """Delete the rows of the shard, and of its topic with the last one."""
        if self._store is None:
            return
        self._store.delete_queue(self._shard)
        self._recorded = {}
        queues: list[QueueMetadata] = []
        self._store.iterate_queue(self._shard.topic, queues.append)
        if not queues:
            self._store.delete_topic(self._shard.topic)
