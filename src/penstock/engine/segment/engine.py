"""The segment engine: the storage contract on a segment store.

Deletes are control records of the shard's companion queue; a compaction deletes, in the same way,
what a later record of the same key replaced. A shard's configuration is kept with its state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.codec.select import IS_NATIVE, core
from penstock.codec.validation import (
    INT64_MAX,
    INT64_MIN,
    check_key,
    check_limit,
    check_offset,
    check_producer,
    check_records,
    check_shard,
    check_text,
    check_time,
)
from penstock.engine.compaction import CompactionRules
from penstock.engine.contract import (
    FOREVER_MS,
    RECORD_SIZE_MAX,
    RECORDS_PER_READ,
    SIZE_PER_READ,
    AdapterOffsetStrategy,
    BatchEngine,
    BatchPage,
    Capabilities,
    ColumnEngine,
    ColumnQuery,
    Compacted,
    Isolation,
    NativeAppend,
    NativeAppendEngine,
    ReplicatedEngine,
    ShardConfig,
    ShardInfo,
    ShardPart,
    SharedSyncEngine,
    TryWriteEngine,
    VerifiedEngine,
    Written,
)
from penstock.engine.per_shard_engine import check_config
from penstock.engine.segment.control.shard_compaction import find_removable
from penstock.engine.segment.read.transaction_records import find_transaction_records
from penstock.engine.segment.retention import RetentionPolicy
from penstock.engine.segment.store import SegmentStore
from penstock.engine.transactions.stable_offsets import Ranges, StableOffsets
from penstock.errors import (
    BadRequestError,
    ClosedError,
    RecordTooLargeError,
    StoreError,
    UnknownShardError,
)
from penstock.record import Flush, Offset, Producer, Record, ShardId, StoredRecord

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.engine.replication.log import ReplicaLog

RECORD_OVERHEAD_MAX: Final = 96 << 10
"""Bytes that a record takes in the log beyond its contents: head, topic, properties."""
_LARGE: Final = RECORD_SIZE_MAX // 2
_CONFIGS_REMEMBERED: Final = 256
_FAR: Final = 1 << 60
"""Past any offset, size or time of a store: what callers may ask for has no bound, machine words
have one."""


class SegmentEngine(
    BatchEngine,
    ColumnEngine,
    TryWriteEngine,
    NativeAppendEngine,
    SharedSyncEngine,
    ReplicatedEngine,
    VerifiedEngine,
):
    """Implements `StorageEngine`. The store must take records of `RECORD_SIZE_MAX` and their
    overhead; closing the engine closes the store."""

    def __init__(self, store: SegmentStore) -> None:
        self.store: Final = store
        self.on_operation: Callable[[ShardId], None] = _ignore_operation
        store.replicas.on_command = self._announce
        self.limits = StableOffsets()
        """What transactions keep from readers; a node shares one with those."""
        self._configs: dict[ShardId, ShardConfig] = {}
        self._closed = False
        for shard in store.shards():
            self._apply(shard, _unpack(store.state(shard).config))

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durable=True, evicts=False, power_safe=True)

    # Shards

    def create_shard(self, shard: ShardId, config: ShardConfig) -> None:
        self._check_open()
        check_shard(shard)
        check_config(config)
        if shard in self._configs and self._configs[shard].kind is config.kind:
            return
        self.store.create_shard(shard, config.kind, config.flush, _pack(config))
        self._apply(shard, config)

    def alter_shard(self, shard: ShardId, config: ShardConfig) -> None:
        known = self._config(shard)
        check_config(config)
        if known.kind is not config.kind:
            raise BadRequestError(f"the queue kind of shard {shard.name!r} cannot be changed")
        self._apply(shard, config)

    def _apply(self, shard: ShardId, config: ShardConfig) -> None:
        self._configs[shard] = config
        self.store.set_flush(shard, config.flush)
        self.store.set_config(shard, _pack(config))
        self.store.retention.set_policy(shard, _policy(config))

    def _config(self, shard: ShardId) -> ShardConfig:
        config = self._configs.get(shard)
        if config is None:
            self._check_open()
            check_shard(shard)
            raise UnknownShardError(shard.name)
        return config

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the engine was closed")

    def delete_shard(self, shard: ShardId) -> None:
        self._check_open()
        check_shard(shard)
        if self._configs.pop(shard, None) is not None:
            self.store.retention.set_policy(shard, None)
            self.store.delete_shard(shard)

    def list_shard(self, topic: str | None = None) -> list[ShardId]:
        self._check_open()
        if topic is not None:
            check_text(topic, "topic")
        return [shard for shard in self.store.shards() if topic is None or shard.topic == topic]

    def seal_shard(self, shard: ShardId) -> None:
        self._config(shard)
        self.store.seal(shard)

    def shard_info(self, shard: ShardId) -> ShardInfo:
        self._config(shard)
        bounds = self.store.bounds(shard)
        return ShardInfo(
            shard=shard,
            earliest=bounds.earliest,
            commit=bounds.commit,
            latest=bounds.commit if self.store.state(shard).is_replicated else bounds.next,
            size=self.store.live_size(shard),
            sealed=self.store.state(shard).sealed,
        )

    def replica_logs(self, shard: ShardId) -> Sequence[ReplicaLog]:
        """See `ReplicatedEngine`: the log of the records, and that of the control commands."""
        self._config(shard)
        return self.store.replicas.logs(shard)

    def end_replication(self, shard: ShardId) -> None:
        """See `ReplicatedEngine`."""
        self._config(shard)
        if self.store.replicas.close_to_clients(shard):
            self.sync()  # commands that are not on the device yet would not be done
            self.store.replicas.end(shard)

    def _announce(self, shard: ShardId) -> None:
        self.on_operation(shard)

    # Writing

    def write(self, shard: ShardId, record: Record, *, producer: Producer | None = None) -> Written:
        if producer is not None:
            return self.batch_write(shard, [record], producer=producer)
        size_max = self._config(shard).record_size_max
        return Written(Offset(self.store.append(shard, record, size_max)), 1)

    def try_write(self, shard: ShardId, record: Record) -> Written | None:
        size_max = self._config(shard).record_size_max
        offset = self.store.try_append(shard, record, size_max)
        return None if offset is None else Written(offset, 1)

    def native_append(self, shard: ShardId) -> NativeAppend | None:
        """See `NativeAppendEngine`."""
        if not IS_NATIVE:
            return None
        return NativeAppend(self.store.append_path, shard, self._config(shard).record_size_max)

    def batch_write(
        self, shard: ShardId, records: Sequence[Record], *, producer: Producer | None = None
    ) -> Written:
        config = self._config(shard)
        if producer is not None:
            check_producer(producer)
        if producer is not None or type(records) is not list:
            self._check_size(shard, config, records)
        # The way in looks at each record anyway, and at its size with the rest.
        first, repeated = self.store.append_once(shard, records, producer, config.record_size_max)
        return Written(Offset(first), len(records), repeated)

    def batch_write_parts(self, parts: Sequence[ShardPart]) -> list[Written | StoreError]:
        """See `SharedSyncEngine`."""
        results: list[Written | StoreError] = []
        waiting: list[int] = []
        end = 0
        for number, (shard, records) in enumerate(parts):
            try:
                config = self._config(shard)
                if config.flush is Flush.ASYNC:
                    results.append(self.batch_write(shard, records))
                    continue
                self._check_size(shard, config, records)
                first, end = self.store.append_unsynced(shard, records)
                results.append(Written(Offset(first), len(records)))
                waiting.append(number)
            except StoreError as error:
                results.append(error)
        try:
            self.store.wait_durable(end)
        except StoreError as error:
            for number in waiting:
                results[number] = error
        return results

    def _check_size(self, shard: ShardId, config: ShardConfig, records: Sequence[Record]) -> None:
        """Check arguments: types by the byte loops that read them anyway, sizes here, exactly only
        where a record may be too large."""
        if core.all_fit(records, config.record_size_max):
            return
        try:
            largest = max([len(record.value or b"") for record in records], default=_LARGE)
        except (AttributeError, TypeError):
            largest = _LARGE
        if largest >= _LARGE or config.record_size_max < RECORD_SIZE_MAX:
            check_records(records, shard, config.record_size_max)

    def write_batch(
        self,
        shard: ShardId,
        body: bytes | memoryview,
        count: int,
        *,
        timestamp_ms: int,
        producer: Producer | None = None,
    ) -> Written:
        """See `BatchEngine`."""
        config = self._config(shard)
        if len(body) > config.record_size_max:
            raise RecordTooLargeError(
                f"a batch for {shard.name!r}", size=len(body), size_max=config.record_size_max
            )
        first, repeated = self.store.kafka.append(
            shard, body, count, timestamp_ms, producer, config.tag_header
        )
        return Written(Offset(first), count, repeated)

    # Reading

    def sync(self) -> None:
        self.store.flush()

    def read_batches(self, shard: ShardId, offset: int, until: int, max_size: int) -> BatchPage:
        return self.store.kafka.read(shard, offset, until, max_size)

    def bounds(self, shard: ShardId) -> tuple[int, int]:
        return self.store.kafka.bounds(shard)

    def epoch_end(self, shard: ShardId, epoch: int) -> tuple[int, int]:
        return self.store.kafka.epoch_end(shard, epoch)

    def is_hot(self, shard: ShardId, offset: int) -> bool:
        return self.store.kafka.is_hot(shard, offset)

    def verify_records(self, shard: ShardId, offset: int, max_size: int) -> tuple[int, int]:
        """See `VerifiedEngine`."""
        self._config(shard)
        data, after = self.store.read_raw_range(shard, offset, max_size=max_size)
        return after, len(data)

    def read_by_offset(
        self,
        shard: ShardId,
        offset: Offset,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
        isolation: Isolation = Isolation.COMMITTED,
    ) -> list[StoredRecord]:
        self._config(shard)
        _check_page(offset, max_records, max_size)
        if not isinstance(isolation, Isolation):
            raise BadRequestError(f"isolation must be an Isolation, not {isolation!r}")
        return self.store.read(
            shard,
            min(offset, _FAR),
            max_records=min(max_records, _FAR),
            max_size=min(max_size, _FAR),
        )

    def read_columns(self, shard: ShardId, query: ColumnQuery) -> list[pa.RecordBatch] | None:
        """Return records as Arrow columns; None where only rows can be had."""
        self._config(shard)
        batches: list[pa.RecordBatch] = []
        size = 0
        for batch in self.store.read_arrow(
            shard, query.offset, until=query.until, columns=query.columns, tag=query.tag
        ):
            batches.append(batch)
            size += batch.nbytes
            if size >= query.max_size:
                break
        return batches

    def read_by_tag(
        self,
        shard: ShardId,
        tag: str,
        *,
        start_offset: Offset = Offset(0),
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
    ) -> list[StoredRecord]:
        self._config(shard)
        check_text(tag, "tag")
        _check_page(start_offset, max_records, max_size)
        return self.store.read_page(
            shard,
            min(start_offset, _FAR),
            max_records=min(max_records, _FAR),
            max_size=min(max_size, _FAR),
            tag=tag,
        ).records

    def read_by_key(self, shard: ShardId, key: bytes) -> StoredRecord | None:
        self._config(shard)
        check_key(key)
        return self.store.newest_by_key(shard, key)

    def query_by_key(
        self,
        shard: ShardId,
        key: bytes,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        limit: int = 64,
    ) -> list[StoredRecord]:
        self._config(shard)
        check_key(key)
        check_time(begin_ms, "begin_ms")
        if end_ms is not None:
            check_time(end_ms, "end_ms")
        check_limit(limit, "limit")
        return self.store.query_by_key(shard, key, begin_ms=begin_ms, end_ms=end_ms, limit=limit)

    def get_offset_by_timestamp(
        self, shard: ShardId, timestamp_ms: int, strategy: AdapterOffsetStrategy
    ) -> Offset:
        self._config(shard)
        check_time(timestamp_ms, "timestamp_ms")
        if not isinstance(strategy, AdapterOffsetStrategy):
            raise BadRequestError(f"strategy must be an AdapterOffsetStrategy, not {strategy!r}")
        offset = self._offset_at(shard, timestamp_ms)
        if offset is not None:
            return Offset(offset)
        bounds = self.store.bounds(shard)
        earliest = strategy is AdapterOffsetStrategy.EARLIEST
        if earliest:
            return bounds.earliest
        return bounds.commit if self.store.state(shard).is_replicated else bounds.next

    def _offset_at(self, shard: ShardId, timestamp_ms: int) -> int | None:
        """Return the offset in the log of the first record that is not older, if there is one."""
        if timestamp_ms > INT64_MAX:
            return None  # no record can be so young
        return self.store.offset_by_timestamp(shard, max(INT64_MIN, timestamp_ms))

    # Deleting

    def delete_by_key(self, shard: ShardId, key: bytes) -> int:
        self._config(shard)
        check_key(key)
        offsets = [record.offset for record in self.store.by_key(shard, key)]
        return self.store.delete_offsets(shard, offsets) if offsets else 0

    def delete_by_offset(self, shard: ShardId, offset: Offset) -> bool:
        self._config(shard)
        check_offset(offset)
        records = self.store.read(shard, min(offset, _FAR), max_records=1)
        if not records or records[0].offset != offset:
            return False
        return self.store.delete_offsets(shard, [offset]) == 1

    def end_transaction(
        self, shard: ShardId, producer_id: int, start: Offset, *, is_commit: bool
    ) -> int:
        """See `TransactionalEngine`. Kafka batches are not for this: their transactions end with
        a marker among them."""
        self._config(shard)
        check_offset(producer_id, "producer_id")
        check_offset(start, "start")
        if is_commit:
            return 0
        offsets = find_transaction_records(self.store, shard, producer_id, start)
        deleted = self.store.delete_offsets(shard, offsets) if offsets else 0
        # Also when there was nothing left: it may be deleted, and not yet be on the device. And who
        # reads the files knows of the deletes before it learns that the transaction is over.
        self.store.flush(publish=True)
        return deleted

    def delete_records_before(self, shard: ShardId, offset: Offset) -> Offset:
        self._config(shard)
        check_offset(offset)
        return Offset(self.store.delete_before(shard, min(offset, _FAR)))

    def compact(self, shard: ShardId) -> Compacted:
        config = self._config(shard)
        if not config.cleanup.compacts or self.store.is_following(shard):
            return Compacted(0, 0)
        rules = CompactionRules.of(config, self.store.clock.expiry_ms())
        until, aborted = self._transactions_of(shard)
        # What a tombstone replaces may be in the tier alone, of which the log knows nothing.
        has_tier = config.tiering is not None and config.tiering.enabled
        is_whole = not has_tier or int(self.store.bounds(shard).earliest) == 0
        tombstones_until = None if is_whole else 0
        return self._compact_log(shard, rules, until, aborted, tombstones_until)

    def _compact_log(
        self,
        shard: ShardId,
        rules: CompactionRules,
        until: int,
        aborted: Ranges,
        tombstones_until: int | None = None,
    ) -> Compacted:
        removable = find_removable(
            self.store,
            shard,
            rules,
            until=until,
            aborted=aborted,
            tombstones_until=tombstones_until,
        )
        if removable.offsets:
            self.store.delete_offsets(shard, removable.offsets)
        return Compacted(len(removable.offsets), removable.size, removable.again_ms)

    def _transactions_of(self, shard: ShardId) -> tuple[int, Ranges]:
        """Return where a shard stops being stable, and the records that were aborted before."""
        # In this order: who wrote before the end in a transaction has held the shard up before,
        # and what is aborted meanwhile is left for the next time.
        end = int(self.store.bounds(shard).commit)
        if not self.limits.touches(shard.name):
            return end, ()
        stable = self.limits.stable_until(shard.name)
        end = end if stable is None else min(end, stable)
        return end, self.limits.hidden(shard, 0, end, self)

    def apply_retention(self, shard: ShardId) -> Offset:
        """The store does this for all its shards by itself, too."""
        self._config(shard)
        self.store.retention.apply(shard)
        self.store.replicas.wait_for_floor(shard)
        return self.store.bounds(shard).earliest

    def close(self) -> None:
        self._closed = True
        self._configs = {}
        self.store.close()


def _check_page(offset: object, max_records: object, max_size: object) -> None:
    check_offset(offset)
    check_limit(max_records, "max_records")
    check_limit(max_size, "max_size")


# Ten thousand shards with equal settings hold them once.


@lru_cache(_CONFIGS_REMEMBERED)
def _pack(config: ShardConfig) -> bytes:
    return msgspec.msgpack.encode(config)


@lru_cache(_CONFIGS_REMEMBERED)
def _policy(config: ShardConfig) -> RetentionPolicy:
    """Return how long the log keeps a shard. With a tier, that is another question than how long
    the shard is kept: the log is its hot window."""
    if config.tiering is not None and config.tiering.enabled:
        return RetentionPolicy(
            time_ms=config.tiering.local_retention_ms, size=config.tiering.local_retention_bytes
        )
    if not config.cleanup.deletes:
        # The newest record of each key stays, however old it is and however many there are.
        return RetentionPolicy(keep=True)
    return RetentionPolicy(
        time_ms=config.retention_ms,
        size=config.retention_bytes,
        records=config.retention_records,
        keep=config.retention_ms == FOREVER_MS,  # asked for: a full disk refuses writes instead
    )


# Made here, for msgspec must not look at a type for the first time in two threads together.
_configs: Final = msgspec.msgpack.Decoder(ShardConfig)


@lru_cache(_CONFIGS_REMEMBERED)
def _unpack(config: bytes) -> ShardConfig:
    """Return the configuration kept with a state; a shard of RocketMQ's has none."""
    return _configs.decode(config) if config else ShardConfig()


def _ignore_operation(_: ShardId) -> None:
    """Before a node sets `on_operation`: does nothing."""
