"""`EngineStorageAdapter`: `StorageAdapter` over the engines of this node.

The engines are synchronous. What only touches memory runs at once, on the event loop; what may
wait for a device goes to a bounded pool of threads:

    memory     everything at once
    rocksdb    everything in the pool
    segment    at once: writes without a sync, reads near the end of a shard (its pages are the ones
               just written). In the pool: the rest
    another node's shard    in the pool

One adapter serves one storage type; the driver manager keeps one for each (`driver_list`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from penstock.engine.contract import (
    RECORDS_PER_READ,
    SIZE_PER_READ,
    AdapterOffsetStrategy,
    Compacted,
    Isolation,
    ShardConfig,
    ShardInfo,
    Written,
)
from penstock.engine.handler import StorageEngineHandler
from penstock.engine.routing.storage_cache import ShardEntry
from penstock.errors import BadRequestError
from penstock.meta.client import DEFAULT_NAMESPACE, CommittedOffset
from penstock.offsets.manager import OffsetManager
from penstock.offsets.strategy import OffsetCommit
from penstock.platform.blocking_pool import BlockingPool
from penstock.record import Flush, Offset, Producer, Record, ShardId, StoredRecord

T = TypeVar("T")

MEMORY: Final = "EngineMemory"
SEGMENT: Final = "EngineSegment"

INLINE_BATCH_MAX: Final = 1_000
"""Records of a batch that are appended on the event loop: about a millisecond."""
HOT_RECORDS: Final = 10_000
"""Records before the end of a shard that count as still in memory."""


class EngineStorageAdapter:
    def __init__(
        self,
        handler: StorageEngineHandler,
        storage_type: str,
        offset_manager: OffsetManager,
        pool: BlockingPool,
    ) -> None:
        self.storage_type: Final = storage_type
        self._handler: Final = handler
        self._offsets: Final = offset_manager
        self._pool: Final = pool
        self._in_memory: Final = storage_type == MEMORY
        self._in_segments: Final = storage_type == SEGMENT

    # Shards

    async def create_shard(self, shard_name: str, config: ShardConfig) -> None:
        shard = ShardId.parse(shard_name)
        await self._call(partial(self._handler.create_shard, shard, self.storage_type, config))

    async def delete_shard(self, shard_name: str) -> None:
        shard = ShardId.parse(shard_name)
        await self._call(partial(self._handler.delete_shard, shard, self.storage_type))

    async def list_shard(self, topic_id: str | None = None) -> list[str]:
        found = await self._call(partial(self._handler.list_shard, self.storage_type, topic_id))
        return [shard.name for shard in found]

    async def shard_info(self, shard_name: str) -> ShardInfo:
        return await self._call(partial(self._handler.shard_info, shard_name))

    # Writing

    async def write(
        self, shard_name: str, record: Record, *, producer: Producer | None = None
    ) -> Written:
        handler = self._handler
        if self.takes_at_once(handler.find(shard_name), 1):
            return handler.write(shard_name, record, producer=producer)
        return await self._pool.run(partial(handler.write, shard_name, record, producer=producer))

    async def batch_write(
        self, shard_name: str, records: Sequence[Record], *, producer: Producer | None = None
    ) -> Written:
        handler = self._handler
        if not isinstance(records, Sequence):
            raise BadRequestError(f"records must be a sequence, not {type(records).__name__}")
        if self.takes_at_once(handler.find(shard_name), len(records)):
            return handler.batch_write(shard_name, records, producer=producer)
        call = partial(handler.batch_write, shard_name, records, producer=producer)
        return await self._pool.run(call)

    # Reading

    async def read_by_offset(
        self,
        shard_name: str,
        offset: Offset,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
        isolation: Isolation = Isolation.COMMITTED,
    ) -> list[StoredRecord]:
        call = partial(
            self._handler.read_by_offset,
            shard_name,
            offset,
            max_records=max_records,
            max_size=max_size,
            isolation=isolation,
        )
        if self.gives_at_once(self._handler.find(shard_name), offset):
            return call()
        return await self._pool.run(call)

    async def read_by_tag(
        self,
        shard_name: str,
        tag: str,
        *,
        start_offset: Offset = Offset(0),
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
    ) -> list[StoredRecord]:
        return await self._call(
            partial(
                self._handler.read_by_tag,
                shard_name,
                tag,
                start_offset=start_offset,
                max_records=max_records,
                max_size=max_size,
            )
        )

    async def read_by_key(self, shard_name: str, key: bytes) -> StoredRecord | None:
        return await self._call(partial(self._handler.read_by_key, shard_name, key))

    async def query_by_key(
        self,
        shard_name: str,
        key: bytes,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        limit: int = 64,
    ) -> list[StoredRecord]:
        return await self._call(
            partial(
                self._handler.query_by_key,
                shard_name,
                key,
                begin_ms=begin_ms,
                end_ms=end_ms,
                limit=limit,
            )
        )

    async def get_offset_by_timestamp(
        self, shard_name: str, timestamp_ms: int, strategy: AdapterOffsetStrategy
    ) -> Offset:
        return await self._call(
            partial(self._handler.get_offset_by_timestamp, shard_name, timestamp_ms, strategy)
        )

    # Deleting

    async def delete_by_key(self, shard_name: str, key: bytes) -> int:
        return await self._call(partial(self._handler.delete_by_key, shard_name, key))

    async def delete_by_offset(self, shard_name: str, offset: Offset) -> bool:
        return await self._call(partial(self._handler.delete_by_offset, shard_name, offset))

    async def delete_records_before(self, shard_name: str, offset: Offset) -> Offset:
        return await self._call(partial(self._handler.delete_records_before, shard_name, offset))

    async def compact(self, shard_name: str) -> Compacted:
        return await self._pool.run(partial(self._handler.compact, shard_name))

    # Consumers' offsets

    async def get_offset_by_group(
        self, group: str, *, namespace: str = DEFAULT_NAMESPACE
    ) -> dict[str, CommittedOffset]:
        call = partial(self._offsets.get_offsets, group, namespace=namespace)
        found = await self._pool.run(call)
        return {shard.name: committed for shard, committed in found.items()}

    async def commit_offset(
        self,
        group: str,
        offsets: Mapping[str, int],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        enable_cache: bool | None = None,
    ) -> None:
        found = [self._handler.find(name) for name in offsets]
        commits = {
            entry.id: OffsetCommit(Offset(offset))
            for entry, offset in zip(found, offsets.values(), strict=True)
        }

        def commit() -> None:
            self._offsets.commit_offsets(
                group, commits, namespace=namespace, enable_cache=enable_cache
            )
            # Deleted meanwhile: see `TopicOffsets`.
            for topic_id in {entry.id.topic for entry in found if entry.meta is None}:
                self._offsets.forget_topic(topic_id)

        await self._pool.run(commit)

    # At once, or in the pool

    def takes_at_once(self, entry: ShardEntry, count: int) -> bool:
        """Say whether a write cannot wait for anything but memory. A shard that was never written
        to since the start has its engine opened first, in the pool."""
        if count > INLINE_BATCH_MAX or entry.writer is None:
            return False
        if self._in_memory:
            return True
        return self._in_segments and entry.topic.config.flush is Flush.ASYNC

    def gives_at_once(self, entry: ShardEntry, offset: object) -> bool:
        if entry.reader is None or not isinstance(offset, int):
            return False
        return self._in_memory or (
            self._in_segments and 0 < entry.end_offset <= offset + HOT_RECORDS
        )

    async def _call(self, call: Callable[[], T]) -> T:
        return call() if self._in_memory else await self._pool.run(call)
