"""`StorageEngineHandler`: every request for a shard comes through here.

It goes to the engine that serves the shard (`shard_routing`); readers do not see what belongs to an
open or aborted transaction, or to an offline segment; and the shard's entry counts it. Methods
may be called from any thread; they promise what `StorageEngine` promises, and raise besides:

  * `UnknownShardError` for a shard that the metadata does not have (any more)
  * `NotLeaderError` when another node leads the shard and there is no way to it
  * `ShardSealedError`, `BusyError` as the state of the segment says (`segment_status`)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.engine.contract import (
    RECORDS_PER_READ,
    SIZE_PER_READ,
    Acks,
    AdapterOffsetStrategy,
    BatchEngine,
    ColumnQuery,
    Compacted,
    ForwardingEngine,
    Isolation,
    OnCommitted,
    ReplicatedEngine,
    ShardInfo,
    ShardPart,
    SharedSyncEngine,
    TransactionalEngine,
    TryWriteEngine,
    Written,
)
from penstock.engine.engine_set import EngineSet
from penstock.engine.routing.append_notifications import AppendSubscription, wait_for_append
from penstock.engine.routing.column_reading import read_columns
from penstock.engine.routing.offline_segments import after_offline, check_complete, without_offline
from penstock.engine.routing.shard_routing import Forwarder, ShardRouting
from penstock.engine.routing.storage_cache import ShardEntry, StorageCacheManager
from penstock.engine.transactions.stable_offsets import Ranges, StableOffsets, is_within
from penstock.errors import BusyError, NotLeaderError, NotSupportedError, StoreError
from penstock.platform.clock import Clock, SystemClock
from penstock.record import Offset, Producer, QueueKind, Record, StoredRecord

if TYPE_CHECKING:
    import pyarrow as pa

_TRIES: Final = (None,) * 100
"""How often a read is made that meets an aborted transaction each time. Once is nearly always
enough; a shard on which all of them do so is not to be read now."""
NOT_REPLICATED: Final = -1
REPLICAS_WAIT_S: Final = 30.0
"""How long a writer waits for replicas; it may ask for less."""
_ELSEWHERE_PAUSE_S: Final = 0.1
"""How often a node looks for records of a shard that another one leads, while a caller waits."""


class StorageEngineHandler(ShardRouting):
    def __init__(
        self,
        cache: StorageCacheManager,
        engines: EngineSet,
        *,
        node_id: int,
        forwarder: Forwarder | None = None,
        clock: Clock | None = None,
        limits: StableOffsets | None = None,
    ) -> None:
        super().__init__(cache, engines, node_id=node_id, forwarder=forwarder)
        self.clock: Final = clock if clock is not None else SystemClock()
        self.on_quota_used: Callable[[ShardEntry], None] = _ignore
        """Called when the size of a segment is to be checked; see `ShardUpkeep`."""
        self.limits: Final = limits if limits is not None else StableOffsets()
        """What transactions keep from readers of committed records."""
        self.waits_ended = False
        """Whether waits for records are answered immediately; see `end_waits`."""

    # Shards

    def seal_shard(self, shard_name: str) -> None:
        entry = self.find(shard_name)
        self._reader(entry).seal_shard(entry.id)

    def shard_info(self, shard_name: str) -> ShardInfo:
        entry = self.find(shard_name)
        return self._reader(entry).shard_info(entry.id)

    # Writing

    def write(
        self,
        shard_name: str,
        record: Record,
        *,
        producer: Producer | None = None,
        acks: Acks = Acks.ALL,
    ) -> Written:
        entry = self.find(shard_name)
        engine = entry.writer or self._find_writer(entry)
        epoch = NOT_REPLICATED if entry.replica is None else _begin_write(entry, engine, acks)
        try:
            if acks is not Acks.ALL and isinstance(engine, ForwardingEngine):
                written = engine.forward_write(entry.id, [record], producer=producer, acks=acks)
            else:
                written = engine.write(entry.id, record, producer=producer)
        except StoreError:
            entry.errors += 1
            raise
        self._count_written(entry, written)
        if epoch != NOT_REPLICATED:
            _wait_for_replicas(entry, written, epoch, acks)
        return written

    def try_write(self, shard_name: str, record: Record) -> Written | None:
        """See `TryWriteEngine`."""
        entry = self.find(shard_name)
        engine: object = entry.writer  # only if known: to find the writer may take a while
        if not isinstance(engine, TryWriteEngine) or entry.replica is not None:
            return None
        written = engine.try_write(entry.id, record)
        if written is not None:
            self._count_written(entry, written)
        return written

    def batch_write(
        self,
        shard_name: str,
        records: Sequence[Record],
        *,
        producer: Producer | None = None,
        acks: Acks = Acks.ALL,
        on_committed: OnCommitted | None = None,
    ) -> Written:
        """Append records, all or none. This waits for the replicas as `acks` says, or calls
        `on_committed` when they have the records."""
        entry = self.find(shard_name)
        engine = entry.writer or self._find_writer(entry)
        epoch = NOT_REPLICATED if entry.replica is None else _begin_write(entry, engine, acks)
        try:
            if acks is not Acks.ALL and isinstance(engine, ForwardingEngine):
                written = engine.forward_write(entry.id, records, producer=producer, acks=acks)
            else:
                written = engine.batch_write(entry.id, records, producer=producer)
        except StoreError:
            entry.errors += 1
            raise
        self._count_written(entry, written)
        if epoch != NOT_REPLICATED:
            _wait_for_replicas(entry, written, epoch, acks, on_committed)
        elif on_committed is not None:
            on_committed(None)
        return written

    def batch_write_parts(
        self, parts: Sequence[tuple[str, Sequence[Record]]]
    ) -> list[Written | StoreError]:
        """Append to several shards, to each all or none; what one engine keeps waits for the
        device once. Returns, in their order, what each got, or why it was not written."""
        results: list[Written | StoreError | None] = [None] * len(parts)
        together: dict[SharedSyncEngine, list[tuple[int, ShardEntry]]] = {}
        for number, (name, records) in enumerate(parts):
            try:
                entry = self.find(name)
                engine = entry.writer or self._find_writer(entry)
                if isinstance(engine, SharedSyncEngine) and entry.replica is None:
                    together.setdefault(engine, []).append((number, entry))
                else:
                    results[number] = self.batch_write(name, records)
            except StoreError as error:
                results[number] = error
        for shared, members in together.items():
            batch = [ShardPart(entry.id, parts[number][1]) for number, entry in members]
            outcomes = shared.batch_write_parts(batch)
            for (number, entry), result in zip(members, outcomes, strict=True):
                results[number] = result
                if isinstance(result, Written):
                    self._count_written(entry, result)
                else:
                    entry.errors += 1
        return [result for result in results if result is not None]

    def write_batch(
        self,
        entry: ShardEntry,
        body: bytes | memoryview,
        count: int,
        *,
        timestamp_ms: int,
        producer: Producer | None = None,
        acks: Acks = Acks.ALL,
        on_committed: OnCommitted | None = None,
    ) -> Written:
        """Append a checked Kafka batch to a shard whose engine keeps such; see `BatchEngine`, and
        `batch_write` for `acks` and `on_committed`."""
        engine = entry.writer or self._find_own_writer(entry)
        if not isinstance(engine, BatchEngine):
            raise NotSupportedError(f"the engine of {entry.name!r} keeps no batches")
        epoch = NOT_REPLICATED if entry.replica is None else _begin_write(entry, engine, acks)
        try:
            written = engine.write_batch(
                entry.id, body, count, timestamp_ms=timestamp_ms, producer=producer
            )
        except StoreError:
            entry.errors += 1
            raise
        self._count_written(entry, written)
        if epoch != NOT_REPLICATED:
            _wait_for_replicas(entry, written, epoch, acks, on_committed)
        elif on_committed is not None:
            on_committed(None)
        return written

    def bounds(self, entry: ShardEntry) -> tuple[int, int]:
        """Return the earliest and the commit offset of a shard that this node leads, and nothing
        that takes longer."""
        self.check_led(entry)
        engine = self._reader(entry)
        if isinstance(engine, BatchEngine):
            return engine.bounds(entry.id)
        info = engine.shard_info(entry.id)
        return info.earliest, info.commit

    def epoch_end(self, entry: ShardEntry, epoch: int) -> tuple[int, int]:
        """Return the greatest leader epoch that is not above `epoch`, and where it ends."""
        self.check_led(entry)
        engine = self._reader(entry)
        if isinstance(engine, BatchEngine):
            return engine.epoch_end(entry.id, epoch)
        return epoch, engine.shard_info(entry.id).commit

    def batch_reader(self, entry: ShardEntry) -> BatchEngine | None:
        """Return the engine that has a shard's Kafka batches as they came, if one has."""
        engine = self._reader(entry)
        is_batch = entry.topic.config.kind is QueueKind.BATCH and not entry.offline
        return engine if is_batch and isinstance(engine, BatchEngine) else None

    def _count_written(self, entry: ShardEntry, written: Written) -> None:
        count = written.count
        entry.writes += 1
        entry.records_written += count
        entry.end_offset = max(entry.end_offset, written.first + count)
        entry.quota_left -= count
        if entry.quota_left < 0 and not entry.check_requested:
            entry.check_requested = True
            self.on_quota_used(entry)
        if entry.replica is None:
            for notify in entry.appended:
                notify()  # else when the records are committed

    # Reading

    def read_by_offset(
        self,
        shard_name: str,
        offset: Offset,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
        isolation: Isolation = Isolation.COMMITTED,
    ) -> list[StoredRecord]:
        entry = self.find(shard_name)
        engine = entry.reader or self._find_reader(entry)
        if entry.offline and (moved := after_offline(entry, offset)) is not None:
            offset = moved
        for _ in _TRIES:
            aborts = entry.aborts
            records = engine.read_by_offset(
                entry.id, offset, max_records=max_records, max_size=max_size, isolation=isolation
            )
            if isolation is not Isolation.COMMITTED:
                return self._count_read(entry, records, offset)
            # After the read: a transaction holds the shard up before it writes.
            if self.limits.touches(shard_name):
                read = partial(
                    engine.read_by_offset, entry.id, max_records=max_records, max_size=max_size
                )
                records = self._stable_page(entry, records, read)
            # Else read before they were deleted, and checked when the transaction had ended.
            if entry.aborts == aborts:
                return self._count_read(entry, records, offset)
        raise _too_many_aborts(entry)

    def read_columns(self, shard_name: str, query: ColumnQuery) -> list[pa.RecordBatch] | None:
        """Return committed records as Arrow columns; None where only rows can be had."""
        entry = self.find(shard_name)
        return read_columns(entry, self._reader(entry), self.limits, query)

    def read_by_tag(
        self,
        shard_name: str,
        tag: str,
        *,
        start_offset: Offset = Offset(0),
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
    ) -> list[StoredRecord]:
        entry = self.find(shard_name)
        engine = self._reader(entry)
        if entry.offline and (moved := after_offline(entry, start_offset)) is not None:
            start_offset = moved

        def read(offset: Offset) -> list[StoredRecord]:
            return engine.read_by_tag(
                entry.id, tag, start_offset=offset, max_records=max_records, max_size=max_size
            )

        for _ in _TRIES:
            aborts = entry.aborts
            records = read(start_offset)
            if self.limits.touches(shard_name):
                records = self._stable_page(entry, records, read)
            if entry.aborts == aborts:
                return self._count_read(entry, records, start_offset)
        raise _too_many_aborts(entry)

    def read_by_key(self, shard_name: str, key: bytes) -> StoredRecord | None:
        entry = self.find(shard_name)
        aborts = entry.aborts
        engine = self._reader(entry)
        newest = None if entry.offline else engine.read_by_key(entry.id, key)
        if entry.offline or self.limits.touches(shard_name) or entry.aborts != aborts:
            records = self.query_by_key(shard_name, key, limit=1)
            return records[0] if records else None
        entry.reads += 1
        entry.records_read += newest is not None
        return newest

    def query_by_key(
        self,
        shard_name: str,
        key: bytes,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        limit: int = 64,
    ) -> list[StoredRecord]:
        entry = self.find(shard_name)
        engine = self._reader(entry)
        check_complete(entry)
        page_limit = limit
        for _ in _TRIES:
            aborts = entry.aborts
            records = engine.query_by_key(
                entry.id, key, begin_ms=begin_ms, end_ms=end_ms, limit=page_limit
            )
            is_touched = self.limits.touches(shard_name)
            shown = self._without_aborted(entry, records) if is_touched else records
            if entry.aborts != aborts:
                continue
            if not is_touched or len(shown) >= limit or len(records) < page_limit:
                return self._count_read(entry, shown[:limit])
            page_limit *= 4  # some of the newest are not to be seen
        raise _too_many_aborts(entry)

    def get_offset_by_timestamp(
        self,
        shard_name: str,
        timestamp_ms: int,
        strategy: AdapterOffsetStrategy,
        *,
        isolation: Isolation = Isolation.COMMITTED,
    ) -> Offset:
        entry = self.find(shard_name)
        offset = self._reader(entry).get_offset_by_timestamp(entry.id, timestamp_ms, strategy)
        if isolation is Isolation.UNCOMMITTED or not self.limits.touches(shard_name):
            return offset
        return self._first_stable(entry, timestamp_ms, strategy, offset)

    def _first_stable(
        self, entry: ShardEntry, timestamp_ms: int, strategy: AdapterOffsetStrategy, start: Offset
    ) -> Offset:
        """Return the first record from `start` on that is young enough and can be seen."""
        offset = start
        while page := self.read_by_offset(entry.name, offset):
            for record in page:
                if record.timestamp_ms >= timestamp_ms:
                    return record.offset
            offset = Offset(page[-1].offset + 1)
        info = self.stable_info(entry.name)
        if strategy is AdapterOffsetStrategy.EARLIEST:
            return info.earliest
        # What an open transaction holds up is yet to come for this reader.
        return info.commit if self.limits.stable_until(entry.name) is not None else info.latest

    def watch_appends(
        self, shards: Sequence[str], notify: Callable[[], None]
    ) -> AppendSubscription:
        """Call `notify` after every write to `shards`; see `append_notifications`."""
        return AppendSubscription(self.cache, shards, notify)

    def wait_for_append(
        self, shards: Sequence[str], has_records: Callable[[], bool], seconds: float
    ) -> bool:
        pause = seconds
        for name in shards:
            entry = self._shards.get(name)
            if entry is not None and entry.meta is not None and entry.meta.leader != self.node_id:
                pause = _ELSEWHERE_PAUSE_S

        def is_over() -> bool:
            return self.waits_ended or has_records()

        woken = wait_for_append(self.cache, self.clock, shards, is_over, seconds, pause)
        return woken and (not self.waits_ended or has_records())

    def end_waits(self) -> None:
        """End all waits for records, for a node that is about to stop. Present and later callers
        learn immediately whether there are records."""
        self.waits_ended = True  # first: a wait that begins after the wake-up reads it
        for entry in self.cache.entries():
            for notify in entry.appended:
                notify()

    def _stable_page(
        self,
        entry: ShardEntry,
        page: list[StoredRecord],
        read: Callable[[Offset], list[StoredRecord]],
    ) -> list[StoredRecord]:
        """Return what of a page belongs to no open and no aborted transaction, or the next page
        that has such records."""
        while page:
            shown = self._without_aborted(entry, page)
            stable = self.limits.stable_until(entry.name)
            if shown or (stable is not None and page[-1].offset >= stable):
                return shown
            page = read(Offset(page[-1].offset + 1))
        return []

    def _without_aborted(
        self, entry: ShardEntry, records: list[StoredRecord]
    ) -> list[StoredRecord]:
        if not records:
            return records
        # The bound first: a transaction that ends meanwhile is then missing, or shown rightly.
        stable = self.limits.stable_until(entry.name)
        engine = self._reader(entry)
        hidden: Ranges = ()
        if isinstance(engine, BatchEngine):
            offsets = [record.offset for record in records]
            hidden = self.limits.hidden(entry.id, min(offsets), max(offsets) + 1, engine)
        return [
            record
            for record in records
            if (stable is None or record.offset < stable) and not is_within(hidden, record.offset)
        ]

    def stable_info(self, shard_name: str) -> ShardInfo:
        """Return bounds whose commit offset is the one that readers of committed records have."""
        info = self.shard_info(shard_name)
        stable = self.limits.stable_until(shard_name)
        if stable is None or stable >= info.commit:
            return info
        return replace(info, commit=Offset(max(stable, info.earliest)))

    def release_readers(self, shard_name: str) -> None:
        """A transaction that held a shard up is over: tell those who wait for its records to look
        again. There may be more to compact, too."""
        entry = self._shards.get(shard_name)
        if entry is None:
            return
        entry.released += 1
        for notify in entry.appended:
            notify()

    def _count_read(
        self, entry: ShardEntry, records: list[StoredRecord], start: int = 0
    ) -> list[StoredRecord]:
        entry.reads += 1
        if entry.offline:
            records = without_offline(entry, records, start)
        entry.records_read += len(records)
        return records

    # Deleting

    def delete_by_key(self, shard_name: str, key: bytes) -> int:
        entry = self.find(shard_name)
        engine = self._reader(entry)
        check_complete(entry)
        try:
            return engine.delete_by_key(entry.id, key)
        finally:
            entry.removals += 1

    def delete_by_offset(self, shard_name: str, offset: Offset) -> bool:
        entry = self.find(shard_name)
        engine = self._reader(entry)
        if entry.offline and after_offline(entry, offset) is not None:
            return False
        try:
            return engine.delete_by_offset(entry.id, offset)
        finally:
            entry.removals += 1

    def delete_records_before(self, shard_name: str, offset: Offset) -> Offset:
        entry = self.find(shard_name)
        return self._reader(entry).delete_records_before(entry.id, offset)

    def end_transaction(
        self, entry: ShardEntry, producer_id: int, start: Offset, *, is_commit: bool
    ) -> int:
        """End what a producer wrote in a transaction to a shard that this node leads; see
        `TransactionalEngine`."""
        self.check_led(entry)
        engine = self._reader(entry)
        if not isinstance(engine, TransactionalEngine):
            raise NotSupportedError(f"the engine of {entry.name!r} has no transactions")
        check_complete(entry)
        try:
            return engine.end_transaction(entry.id, producer_id, start, is_commit=is_commit)
        finally:
            entry.removals += not is_commit
            entry.aborts += not is_commit

    def compact(self, shard_name: str) -> Compacted:
        entry = self.find(shard_name)
        try:
            return self._reader(entry).compact(entry.id)
        finally:
            entry.removals += 1


def _too_many_aborts(entry: ShardEntry) -> BusyError:
    return BusyError(
        f"transactions on {entry.name!r} were aborted during each of {len(_TRIES)} reads in a row;"
        " read again later, or with isolation=Isolation.UNCOMMITTED"
    )


def _ignore(_: ShardEntry) -> None:
    """Without maintenance of the segments: does nothing."""


def _begin_write(entry: ShardEntry, engine: object, acks: Acks) -> int:
    """Return the leader epoch under which this node may write to a replicated shard."""
    replica = entry.replica
    if replica is None or not isinstance(engine, ReplicatedEngine):
        return NOT_REPLICATED  # the leader, another node, waits for the replicas
    return replica.check(acks)


def _wait_for_replicas(
    entry: ShardEntry,
    written: Written,
    epoch: int,
    acks: Acks,
    on_committed: OnCommitted | None = None,
) -> None:
    replica = entry.replica
    if replica is None:
        raise NotLeaderError(entry.name, leader=None)
    end = written.first + written.count
    if on_committed is None or acks is not Acks.ALL:
        replica.wait(end, epoch, acks, REPLICAS_WAIT_S)
        if on_committed is not None:
            on_committed(None)
        return
    replica.appended()
    replica.call_when_committed(end, epoch, on_committed)
