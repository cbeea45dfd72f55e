"""What engines that keep each shard by itself have in common.

    caller ──▶ ShardedEngine ──▶ ShardStore
               checks arguments, finds the shard       holds the records

`ShardedEngine` checks every argument before a shard sees it, knows which shards exist, and refuses
everything once closed. A `ShardStore` keeps one shard's records; it is safe to call from any
thread, and it raises `UnknownShardError` for changes that arrive after its shard was deleted: a
caller may have found it just before.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from penstock.codec.validation import (
    Checked,
    check_key,
    check_limit,
    check_offset,
    check_producer,
    check_records,
    check_shard,
    check_text,
    check_time,
)
from penstock.engine.contract import (
    FOREVER_MS,
    RECORDS_PER_READ,
    SIZE_PER_READ,
    AdapterOffsetStrategy,
    Capabilities,
    Compacted,
    Isolation,
    ShardConfig,
    ShardInfo,
    Written,
)
from penstock.engine.transactions.stable_offsets import StableOffsets
from penstock.errors import (
    AlreadyExistsError,
    BadRequestError,
    ClosedError,
    UnknownShardError,
)
from penstock.platform.clock import Clock, SystemClock
from penstock.record import Offset, Producer, Record, ShardId, StoredRecord


class ShardStore(Protocol):
    """One shard's records. Arguments have been checked."""

    @property
    def config(self) -> ShardConfig: ...

    def alter(self, config: ShardConfig) -> None: ...

    def seal(self) -> None: ...

    def append(
        self, records: Sequence[Record], checked: Checked, producer: Producer | None, /
    ) -> Written: ...

    def page(self, start: int, max_records: int, max_size: int) -> list[StoredRecord]: ...

    def page_of_tag(
        self, tag: str, start: int, max_records: int, max_size: int
    ) -> list[StoredRecord]: ...

    def history(
        self, key: bytes, begin_ms: int | None, end_ms: int | None, limit: int
    ) -> list[StoredRecord]:
        """Return the live records of `key`, the last written first."""
        ...

    def delete_key(self, key: bytes) -> int: ...

    def delete_offset(self, offset: int) -> bool: ...

    def delete_before(self, offset: int) -> Offset: ...

    def first_since(self, timestamp_ms: int, start: int = 0) -> Offset | None:
        """Return the first live record from `start` on with a timestamp >= `timestamp_ms`."""
        ...

    def compact(self, stable_until: Callable[[], int | None], /) -> Compacted:
        """Compact what no open transaction may change; `stable_until` says where one begins, of all
        that were there before it is asked."""
        ...

    def end_transaction(self, producer_id: int, start: int, /, *, is_commit: bool) -> int: ...

    def remove_expired(self) -> Compacted:
        """Give back the room of records that have expired."""
        ...

    def first_within(self, size: int) -> int:
        """Return the first offset from which on all records together take at most `size`."""
        ...

    def info(self) -> ShardInfo: ...


S = TypeVar("S", bound=ShardStore)


class ShardedEngine(ABC, Generic[S]):
    """A `StorageEngine` over one `ShardStore` for each shard."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock: Final = clock if clock is not None else SystemClock()
        self._shards: dict[ShardId, S] = {}
        self._directory = threading.Lock()  # held while the set of shards changes
        self._closed = False
        self.limits = StableOffsets()
        """What transactions keep from compactions; a node shares one with its readers."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities: ...

    @abstractmethod
    def _create(self, shard: ShardId, config: ShardConfig) -> S:
        """Make an empty shard, with none of what a deleted one of that name held."""

    @abstractmethod
    def _delete(self, store: S) -> None:
        """Remove everything a shard holds; changes to it raise `UnknownShardError` from now on."""

    @abstractmethod
    def _close(self) -> None:
        """Called once, with no shard being created or deleted."""

    # The shards

    def create_shard(self, shard: ShardId, config: ShardConfig) -> None:
        check_shard(shard)
        check_config(config)
        with self._directory:
            self._check_open()
            store = self._shards.get(shard)
            if store is None:
                self._shards[shard] = self._create(shard, config)
            elif store.config.kind is not config.kind:
                raise AlreadyExistsError(
                    f"shard {shard.name!r} exists with {store.config.kind.value}, "
                    f"not {config.kind.value}"
                )

    def alter_shard(self, shard: ShardId, config: ShardConfig) -> None:
        store = self._find(shard)
        check_config(config)
        if store.config.kind is not config.kind:
            raise BadRequestError(
                f"shard {shard.name!r} was created with {store.config.kind.value}; "
                "the queue kind cannot be altered"
            )
        store.alter(config)

    def delete_shard(self, shard: ShardId) -> None:
        check_shard(shard)
        with self._directory:
            self._check_open()
            store = self._shards.get(shard)
            if store is not None:
                self._delete(store)
                del self._shards[shard]

    def list_shard(self, topic: str | None = None) -> list[ShardId]:
        if topic is not None:
            check_text(topic, "topic")
        with self._directory:
            self._check_open()
            return sorted(s for s in self._shards if topic is None or s.topic == topic)

    def seal_shard(self, shard: ShardId) -> None:
        self._find(shard).seal()

    def shard_info(self, shard: ShardId) -> ShardInfo:
        return self._find(shard).info()

    # Records

    def write(self, shard: ShardId, record: Record, *, producer: Producer | None = None) -> Written:
        return self.batch_write(shard, (record,), producer=producer)

    def batch_write(
        self, shard: ShardId, records: Sequence[Record], *, producer: Producer | None = None
    ) -> Written:
        store = self._find(shard)
        if producer is not None:
            check_producer(producer)
        checked = check_records(records, shard, store.config.record_size_max)
        return store.append(records, checked, producer)

    def read_by_offset(
        self,
        shard: ShardId,
        offset: Offset,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
        isolation: Isolation = Isolation.COMMITTED,
    ) -> list[StoredRecord]:
        store = self._find(shard)
        check_offset(offset)
        check_limit(max_records, "max_records")
        check_limit(max_size, "max_size")
        # What belongs to transactions is kept from readers above (`handler`).
        if not isinstance(isolation, Isolation):
            raise BadRequestError(f"isolation must be an Isolation, not {isolation!r}")
        return store.page(offset, max_records, max_size)

    def read_by_tag(
        self,
        shard: ShardId,
        tag: str,
        *,
        start_offset: Offset = Offset(0),
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
    ) -> list[StoredRecord]:
        store = self._find(shard)
        check_text(tag, "tag")
        check_offset(start_offset, "start_offset")
        check_limit(max_records, "max_records")
        check_limit(max_size, "max_size")
        return store.page_of_tag(tag, start_offset, max_records, max_size)

    def read_by_key(self, shard: ShardId, key: bytes) -> StoredRecord | None:
        store = self._find(shard)
        check_key(key)
        records = store.history(key, None, None, 1)
        return records[0] if records else None

    def query_by_key(
        self,
        shard: ShardId,
        key: bytes,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        limit: int = 64,
    ) -> list[StoredRecord]:
        store = self._find(shard)
        check_key(key)
        check_time(begin_ms, "begin_ms")
        if end_ms is not None:
            check_time(end_ms, "end_ms")
        check_limit(limit, "limit")
        return store.history(key, begin_ms, end_ms, limit)

    def delete_by_key(self, shard: ShardId, key: bytes) -> int:
        store = self._find(shard)
        check_key(key)
        return store.delete_key(key)

    def delete_by_offset(self, shard: ShardId, offset: Offset) -> bool:
        store = self._find(shard)
        check_offset(offset)
        return store.delete_offset(offset)

    def delete_records_before(self, shard: ShardId, offset: Offset) -> Offset:
        store = self._find(shard)
        check_offset(offset)
        return store.delete_before(offset)

    def get_offset_by_timestamp(
        self, shard: ShardId, timestamp_ms: int, strategy: AdapterOffsetStrategy
    ) -> Offset:
        store = self._find(shard)
        check_time(timestamp_ms, "timestamp_ms")
        if not isinstance(strategy, AdapterOffsetStrategy):
            raise BadRequestError(f"strategy must be an AdapterOffsetStrategy, not {strategy!r}")
        offset = store.first_since(timestamp_ms)
        if offset is not None:
            return offset
        info = store.info()
        return info.earliest if strategy is AdapterOffsetStrategy.EARLIEST else info.latest

    def compact(self, shard: ShardId) -> Compacted:
        return self._find(shard).compact(lambda: self.limits.stable_until(shard.name))

    def end_transaction(
        self, shard: ShardId, producer_id: int, start: Offset, *, is_commit: bool
    ) -> int:
        """See `TransactionalEngine`."""
        store = self._find(shard)
        check_offset(producer_id, "producer_id")
        check_offset(start, "start")
        return store.end_transaction(producer_id, start, is_commit=is_commit)

    def apply_retention(self, shard: ShardId) -> Offset:
        store = self._find(shard)
        config, info = store.config, store.info()
        if not config.cleanup.deletes:
            return info.earliest
        keep_from = info.earliest
        if config.retention_records is not None:
            keep_from = Offset(max(keep_from, info.commit - config.retention_records))
        if config.retention_bytes is not None:
            keep_from = Offset(max(keep_from, store.first_within(config.retention_bytes)))
        if config.retention_ms is not None and config.retention_ms < FOREVER_MS:
            # From where the other limits let it begin: a young record in front of that is gone.
            young = store.first_since(self._clock.expiry_ms() - config.retention_ms, keep_from)
            keep_from = info.commit if young is None else young
        return store.delete_before(keep_from)

    # Beyond the contract

    def remove_expired(self, shard: ShardId) -> Compacted:
        """Give back the room of a shard's expired records. Readers see no difference: they are gone
        from every read at the moment they expire."""
        return self._find(shard).remove_expired()

    def close(self) -> None:
        """Release everything; closing again does nothing."""
        with self._directory:
            if not self._closed:
                self._closed = True
                self._close()

    def _find(self, shard: ShardId) -> S:
        self._check_open()
        check_shard(shard)
        store = self._shards.get(shard)
        if store is None:
            raise UnknownShardError(shard.name)
        return store

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this engine was closed")


def check_config(config: object) -> None:
    if not isinstance(config, ShardConfig):
        raise BadRequestError(f"config must be a ShardConfig, not {type(config).__name__}")
    check_limit(config.record_size_max, "record_size_max")
    for name in ("tombstone_retention_ms", "compaction_lag_ms"):
        if getattr(config, name) != 0:
            check_limit(getattr(config, name), name)
    for name in (
        "retention_ms",
        "retention_bytes",
        "retention_records",
        "memory_records_max",
        "memory_bytes_max",
    ):
        limit = getattr(config, name)
        if limit is not None:
            check_limit(limit, name)
