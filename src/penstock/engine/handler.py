"""`StorageEngineHandler`: every request for a shard comes through here.

It goes to the engine that serves the shard (`shard_routing`), and the shard's entry counts it. The
reads are in `stable_reads`: they hide what belongs to an open or aborted transaction. Methods are
thread-safe; they promise what `StorageEngine` promises, and raise besides:

  * `UnknownShardError` for a shard that the metadata does not have (any more)
  * `NotLeaderError` when another node leads the shard and there is no way to it
  * `ShardSealedError`, `BusyError` as the state of the segment says (`segment_status`)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.engine.contract import (
    Acks,
    BatchEngine,
    Compacted,
    ForwardingEngine,
    NativeAppend,
    NativeAppendEngine,
    OnCommitted,
    ReplicatedEngine,
    ShardPart,
    SharedSyncEngine,
    TransactionalEngine,
    TryWriteEngine,
    Written,
)
from penstock.engine.engine_set import EngineSet
from penstock.engine.routing.append_notifications import wait_for_append
from penstock.engine.routing.offline_segments import after_offline, check_complete
from penstock.engine.routing.shard_routing import Forwarder
from penstock.engine.routing.stable_reads import StableReads
from penstock.engine.routing.storage_cache import ShardEntry, StorageCacheManager
from penstock.engine.transactions.stable_offsets import StableOffsets
from penstock.errors import DeadlineError, NotSupportedError, StoreError
from penstock.platform.clock import Clock, SystemClock
from penstock.record import Offset, Producer, QueueKind, Record

NOT_REPLICATED: Final = -1
REPLICAS_WAIT_S: Final = 30.0
"""How long a writer waits for replicas; it may ask for less."""
_ELSEWHERE_PAUSE_S: Final = 0.1
"""How often a node looks for records of a shard that another one leads, while a caller waits."""


class StorageEngineHandler(StableReads):
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
        super().__init__(cache, engines, node_id=node_id, forwarder=forwarder, limits=limits)
        self.clock: Final = clock if clock is not None else SystemClock()
        self.on_quota_used: Callable[[ShardEntry], None] = _ignore
        """Called when the size of a segment is to be checked; see `ShardUpkeep`."""
        self.waits_ended = False
        """Whether waits for records are answered immediately; see `end_waits`."""

    # Shards

    def seal_shard(self, shard_name: str) -> None:
        entry = self.find(shard_name)
        self._reader(entry).seal_shard(entry.id)

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
        elif entry.is_replicated:
            self._wait_if_begun(entry, engine, written, acks)
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
            if entry.is_replicated:
                self._wait_if_begun(entry, engine, written, Acks.ALL)
        return written

    def native_append(
        self, shard_name: str
    ) -> tuple[NativeAppend, Callable[[int, int], None]] | None:
        """Return with what native code appends to a shard until the metadata changes, and what to
        call with the first offset and the count of records that it has appended. None: records
        must be written by the methods of this class."""
        entry = self.find(shard_name)
        engine: object = entry.writer or self._find_writer(entry)
        if not isinstance(engine, NativeAppendEngine) or entry.is_replicated:
            return None
        native = engine.native_append(entry.id)
        if native is None or entry.replica is not None:
            return None

        def count_appended(first: int, count: int) -> None:
            self._count_written(entry, Written(Offset(first), count))

        return native, count_appended

    def batch_write(
        self,
        shard_name: str,
        records: Sequence[Record],
        *,
        producer: Producer | None = None,
        acks: Acks = Acks.ALL,
        on_committed: OnCommitted | None = None,
        is_local: bool = False,
    ) -> Written:
        """Append records, all or none. This waits for the replicas as `acks` says, or calls
        `on_committed` when they have the records. `is_local`: another node is not asked; this
        raises `NotLeaderError` when one leads."""
        entry = self.find(shard_name)
        engine = entry.writer or self._find_writer(entry, is_local=is_local)
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
        elif entry.is_replicated:
            self._wait_if_begun(entry, engine, written, acks, on_committed)
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
                results[number] = self._count_part(entry, shared, result)
        return [result for result in results if result is not None]

    def _count_part(
        self, entry: ShardEntry, engine: object, result: Written | StoreError
    ) -> Written | StoreError:
        if isinstance(result, StoreError):
            entry.errors += 1
            return result
        self._count_written(entry, result)
        if entry.is_replicated:
            try:
                self._wait_if_begun(entry, engine, result, Acks.ALL)
            except StoreError as error:
                return error
        return result

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
        engine = entry.writer or self._find_writer(entry, is_local=True)
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
        elif entry.is_replicated:
            self._wait_if_begun(entry, engine, written, acks, on_committed)
        elif on_committed is not None:
            on_committed(None)
        return written

    def _wait_if_begun(
        self,
        entry: ShardEntry,
        engine: object,
        written: Written,
        acks: Acks,
        on_committed: OnCommitted | None = None,
    ) -> None:
        """Wait for the replicas of a shard that had none when the write began: it may have been
        made under the first epoch of its replication, and need not be committed yet."""
        if not isinstance(engine, ReplicatedEngine):  # that of another node has waited
            if on_committed is not None:
                on_committed(None)
            return
        self.cache.wait_until_led([entry.name], self.node_id, REPLICAS_WAIT_S)
        replica, meta = entry.replica, entry.meta
        if replica is not None:
            epoch = replica.assignment.leader_epoch
        else:
            epoch = NOT_REPLICATED if meta is None or entry.is_replicated else meta.leader_epoch
        _wait_for_replicas(entry, written, epoch, acks, on_committed)

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
        """Return the greatest leader epoch that is not above `epoch`, and where it ends. The last
        one ends with the log: a new leader may not know yet that all of it is committed."""
        self.check_led(entry)
        replica = entry.replica
        if replica is not None:
            known, end = replica.logs[0].epoch_end(epoch)
            return max(known, 0) if known >= 0 else epoch, end
        engine = self._reader(entry)
        if isinstance(engine, BatchEngine):
            return engine.epoch_end(entry.id, epoch)
        commit = engine.shard_info(entry.id).commit
        if entry.replica is None:
            return epoch, commit  # it was never led by another node
        last_epoch, end = entry.replica.logs[0].epoch_end(epoch)
        return last_epoch, min(end, commit)

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

    # Waiting

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

    def release_readers(self, shard_name: str) -> None:
        """A transaction that held a shard up is over: tell those who wait for its records to look
        again. There may be more to compact, too."""
        entry = self._shards.get(shard_name)
        if entry is None:
            return
        entry.released += 1
        for notify in entry.appended:
            notify()

    # Deleting

    def delete_by_key(self, shard_name: str, key: bytes) -> int:
        entry = self.find(shard_name)
        engine = self._settled_reader(entry)
        check_complete(entry)
        try:
            return engine.delete_by_key(entry.id, key)
        finally:
            entry.removals += 1

    def delete_by_offset(self, shard_name: str, offset: Offset) -> bool:
        entry = self.find(shard_name)
        engine = self._settled_reader(entry)
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
        epoch, replica = _begin_write(entry, engine, Acks.ALL), entry.replica
        if epoch != NOT_REPLICATED and replica is not None:
            # The engine finds committed records only: those of the transaction must all be.
            replica.wait(replica.end, epoch, Acks.ALL, REPLICAS_WAIT_S)
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
    replica, meta = entry.replica, entry.meta
    if replica is None and meta is not None and meta.leader_epoch == epoch:
        if on_committed is not None:
            on_committed(None)
        return  # it has become the only copy
    if replica is None:
        raise DeadlineError(
            f"{entry.name!r} has no replica here any more; the outcome is unknown, try again"
        )
    end = written.first + written.count
    if on_committed is None or acks is not Acks.ALL:
        replica.wait(end, epoch, acks, REPLICAS_WAIT_S)
        if on_committed is not None:
            on_committed(None)
        return
    replica.appended()
    replica.call_when_committed(end, epoch, on_committed)
