"""The conformance suite's view of an adapter: a `StorageEngine` whose every call crosses it.

The suite names shards as it likes; here they are made known as the meta service would, by updates
of the cache. Shards are created, listed and deleted by the handler.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from penstock.adapter.engine_adapter import EngineStorageAdapter
from penstock.codec.validation import check_shard
from penstock.engine.contract import (
    RECORDS_PER_READ,
    SIZE_PER_READ,
    AdapterOffsetStrategy,
    Capabilities,
    Compacted,
    Isolation,
    ShardConfig,
    ShardInfo,
    StorageEngine,
    Written,
)
from penstock.engine.engine_set import EngineSet
from penstock.engine.handler import StorageEngineHandler
from penstock.engine.routing.storage_cache import StorageCacheManager
from penstock.meta.client import Segment, Shard, Topic, TopicConfig, Update
from penstock.meta.events import SegmentPut, ShardDeleted, ShardPut, TopicPut
from penstock.record import Offset, Producer, Record, ShardId, StoredRecord
from penstock.testing.conformance import EngineHarness
from penstock.testing.conformance.engines import ENGINES

NODE = 1
STORAGE_TYPES = {"memory": "EngineMemory", "rocksdb": "EngineRocksDB", "segment": "EngineSegment"}


def topic_of(shard: ShardId, storage_type: str, config: ShardConfig, revision: int = 1) -> Topic:
    return Topic(
        topic_id=shard.topic,
        namespace="default",
        name=shard.topic,
        partitions=1,
        config=TopicConfig(
            storage_type=storage_type,
            queue_kind=config.kind.value,
            flush=config.flush.value,
            cleanup=config.cleanup.value,
            record_size_max=config.record_size_max,
        ),
        status="active",
        created_at_ms=0,
        revision=revision,
    )


def shard_of(shard: ShardId, *, leader: int | None = NODE, active_segment: int = 0) -> Shard:
    return Shard(
        topic_id=shard.topic,
        partition=shard.partition,
        replicas=(NODE,),
        in_sync=(NODE,),
        leader=leader,
        leader_epoch=0,
        active_segment=active_segment,
        first_segment=0,
        status="active",
        revision=1,
    )


def segment_of(
    shard: ShardId, number: int = 0, start: int = 0, end: int | None = None, status: str = "write"
) -> Segment:
    return Segment(
        topic_id=shard.topic,
        partition=shard.partition,
        number=number,
        start_offset=start,
        end_offset=end,
        status=status,
        leader=NODE,
        leader_epoch=0,
        created_at_ms=0,
    )


class AdapterEngine:
    """Implements `StorageEngine` by an adapter."""

    def __init__(self, engine: StorageEngine, storage_type: str) -> None:
        self._engine = engine
        self._storage_type = storage_type
        self._cache = StorageCacheManager()
        self._handler = StorageEngineHandler(
            self._cache, EngineSet({storage_type: lambda: engine}), node_id=NODE
        )
        self._adapter = EngineStorageAdapter(self._handler, storage_type)
        self._naming = threading.Lock()

    def make_known(self, shard: ShardId, config: ShardConfig) -> None:
        topic = topic_of(shard, self._storage_type, config)
        events = (TopicPut(topic), ShardPut(shard_of(shard)), SegmentPut(segment_of(shard)))
        self._cache.apply(Update(1, events))

    def _name(self, shard: ShardId) -> str:
        check_shard(shard)
        return shard.name

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    def create_shard(self, shard: ShardId, config: ShardConfig) -> None:
        name = self._name(shard)
        with self._naming:
            self._handler.create_shard(shard, self._storage_type, config)
            if name not in self._cache.shards:
                self.make_known(shard, config)

    def alter_shard(self, shard: ShardId, config: ShardConfig) -> None:
        self._name(shard)
        self._handler.alter_shard(shard, self._storage_type, config)

    def delete_shard(self, shard: ShardId) -> None:
        self._name(shard)
        with self._naming:
            self._engine.list_shard()  # a closed one refuses
            self._cache.apply(Update(1, (ShardDeleted(shard.topic, shard.partition),)))
            self._handler.delete_shard(shard, self._storage_type)

    def list_shard(self, topic: str | None = None) -> list[ShardId]:
        return self._handler.list_shard(self._storage_type, topic)

    def seal_shard(self, shard: ShardId) -> None:
        self._adapter.seal_shard(self._name(shard))

    def write(self, shard: ShardId, record: Record, *, producer: Producer | None = None) -> Written:
        return self._adapter.write(self._name(shard), record, producer=producer)

    def batch_write(
        self, shard: ShardId, records: Sequence[Record], *, producer: Producer | None = None
    ) -> Written:
        return self._adapter.batch_write(self._name(shard), records, producer=producer)

    def read_by_offset(
        self,
        shard: ShardId,
        offset: Offset,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
        isolation: Isolation = Isolation.COMMITTED,
    ) -> list[StoredRecord]:
        return self._adapter.read_by_offset(
            self._name(shard),
            offset,
            max_records=max_records,
            max_size=max_size,
            isolation=isolation,
        )

    def read_by_tag(
        self,
        shard: ShardId,
        tag: str,
        *,
        start_offset: Offset = Offset(0),
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
    ) -> list[StoredRecord]:
        return self._adapter.read_by_tag(
            self._name(shard),
            tag,
            start_offset=start_offset,
            max_records=max_records,
            max_size=max_size,
        )

    def read_by_key(self, shard: ShardId, key: bytes) -> StoredRecord | None:
        return self._adapter.read_by_key(self._name(shard), key)

    def query_by_key(
        self,
        shard: ShardId,
        key: bytes,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        limit: int = 64,
    ) -> list[StoredRecord]:
        return self._adapter.query_by_key(
            self._name(shard), key, begin_ms=begin_ms, end_ms=end_ms, limit=limit
        )

    def delete_by_key(self, shard: ShardId, key: bytes) -> int:
        return self._adapter.delete_by_key(self._name(shard), key)

    def delete_by_offset(self, shard: ShardId, offset: Offset) -> bool:
        return self._adapter.delete_by_offset(self._name(shard), offset)

    def delete_records_before(self, shard: ShardId, offset: Offset) -> Offset:
        return self._adapter.delete_records_before(self._name(shard), offset)

    def get_offset_by_timestamp(
        self, shard: ShardId, timestamp_ms: int, strategy: AdapterOffsetStrategy
    ) -> Offset:
        return self._adapter.get_offset_by_timestamp(self._name(shard), timestamp_ms, strategy)

    def compact(self, shard: ShardId) -> Compacted:
        return self._adapter.compact(self._name(shard))

    def apply_retention(self, shard: ShardId) -> Offset:
        """What the handler's upkeep calls."""
        return self._engine.apply_retention(shard)

    def shard_info(self, shard: ShardId) -> ShardInfo:
        return self._adapter.shard_info(self._name(shard))

    def close(self) -> None:
        self._engine.close()


class AdapterHarness(EngineHarness):
    """One of Penstock's engines behind an adapter."""

    def __init__(self, name: str, directory: Path) -> None:
        super().__init__()
        self._inner = ENGINES[name](directory)
        self.clock = self._inner.clock
        self.base_config = self._inner.base_config
        self._storage_type = STORAGE_TYPES[name.partition("-")[0]]
        self._outer: AdapterEngine | None = None

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    def make(self) -> StorageEngine:
        return self._behind(self._inner.make())

    def reopen(self) -> StorageEngine:
        return self._behind(self._inner.reopen())

    def crash(self) -> StorageEngine:
        return self._behind(self._inner.crash())

    def close(self) -> None:
        self._inner.close()

    def _behind(self, engine: StorageEngine) -> StorageEngine:
        self._outer = AdapterEngine(engine, self._storage_type)
        for shard in engine.list_shard():
            self._outer.make_known(shard, self.base_config)
        return self._outer
