"""Reads of shards that hide what belongs to an open or aborted transaction, or an offline segment.

A read takes place first, and is checked afterwards against the transactions of the shard
(`StableOffsets`): a transaction holds a shard up before it writes to it. When one was aborted
meanwhile, the read is repeated.

Only the leader of a shard knows its transactions. What another node has read is checked there: what
this node knows is from the time when it led the shard, or started.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.engine.contract import (
    RECORDS_PER_READ,
    SIZE_PER_READ,
    AdapterOffsetStrategy,
    BatchEngine,
    ColumnQuery,
    ForwardingEngine,
    Isolation,
    ShardInfo,
    StorageEngine,
)
from penstock.engine.engine_set import EngineSet
from penstock.engine.routing.column_reading import read_columns
from penstock.engine.routing.damaged_reads import ResigningRead
from penstock.engine.routing.offline_segments import after_offline, check_complete, without_offline
from penstock.engine.routing.shard_routing import Forwarder, ShardRouting
from penstock.engine.routing.storage_cache import ShardEntry, StorageCacheManager
from penstock.engine.transactions.stable_offsets import Ranges, StableOffsets, is_within
from penstock.errors import BusyError
from penstock.record import Offset, StoredRecord

if TYPE_CHECKING:
    import pyarrow as pa

_TRIES: Final = (None,) * 100
"""How often a read is made that meets an aborted transaction each time. Once is nearly always
enough; a shard on which all of them do so is not to be read now."""


class StableReads(ShardRouting):
    """The base of `StorageEngineHandler`."""

    def __init__(
        self,
        cache: StorageCacheManager,
        engines: EngineSet,
        *,
        node_id: int,
        forwarder: Forwarder | None = None,
        limits: StableOffsets | None = None,
    ) -> None:
        super().__init__(cache, engines, node_id=node_id, forwarder=forwarder)
        self.limits: Final = limits if limits is not None else StableOffsets()
        """What transactions keep from readers of committed records."""

    @staticmethod
    def guard_read(entry: ShardEntry, offset: int) -> ResigningRead:
        """Return a context for reads that ask an engine itself, such as a `BatchEngine`."""
        return ResigningRead(entry, offset)

    def shard_info(self, shard_name: str) -> ShardInfo:
        entry = self.find(shard_name)
        info = self._reader(entry).shard_info(entry.id)
        replica = entry.replica
        if replica is None or not replica.is_leader:
            return info  # with replicas elsewhere, their leader has answered
        return replace(info, appended=Offset(replica.end), is_lagging=not replica.is_settled)

    def stable_info(self, shard_name: str) -> ShardInfo:
        """Return bounds whose commit offset is the one that readers of committed records have."""
        info = self.shard_info(shard_name)
        is_held = self._is_held(self.find(shard_name))
        stable = self.limits.stable_until(shard_name) if is_held else None
        if stable is None or stable >= info.commit:
            return info
        return replace(info, commit=Offset(max(stable, info.earliest)))

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
        if entry.replica is not None:
            entry.replica.check_lease()
        engine = entry.reader or self._find_reader(entry)
        if entry.offline and (moved := after_offline(entry, offset)) is not None:
            offset = moved
        for _ in _TRIES:
            aborts = entry.aborts
            with ResigningRead(entry, offset):
                records = engine.read_by_offset(
                    entry.id,
                    offset,
                    max_records=max_records,
                    max_size=max_size,
                    isolation=isolation,
                )
            if isolation is not Isolation.COMMITTED:
                return self._count_read(entry, records, offset)
            # After the read: a transaction holds the shard up before it writes.
            if self._is_held(entry, engine):
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
        with ResigningRead(entry, query.offset):
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
        engine = self._settled_reader(entry)
        if entry.offline and (moved := after_offline(entry, start_offset)) is not None:
            start_offset = moved

        def read(offset: Offset) -> list[StoredRecord]:
            return engine.read_by_tag(
                entry.id, tag, start_offset=offset, max_records=max_records, max_size=max_size
            )

        for _ in _TRIES:
            aborts = entry.aborts
            with ResigningRead(entry, start_offset):
                records = read(start_offset)
            if self._is_held(entry, engine):
                records = self._stable_page(entry, records, read)
            if entry.aborts == aborts:
                return self._count_read(entry, records, start_offset)
        raise _too_many_aborts(entry)

    def read_by_key(self, shard_name: str, key: bytes) -> StoredRecord | None:
        entry = self.find(shard_name)
        aborts = entry.aborts
        engine = self._settled_reader(entry)
        with ResigningRead(entry):
            newest = None if entry.offline else engine.read_by_key(entry.id, key)
        if entry.offline or self._is_held(entry, engine) or entry.aborts != aborts:
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
        engine = self._settled_reader(entry)
        check_complete(entry)
        page_limit = limit
        for _ in _TRIES:
            aborts = entry.aborts
            with ResigningRead(entry):
                records = engine.query_by_key(
                    entry.id, key, begin_ms=begin_ms, end_ms=end_ms, limit=page_limit
                )
            is_touched = self._is_held(entry, engine)
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
        engine = self._settled_reader(entry)
        with ResigningRead(entry):
            offset = engine.get_offset_by_timestamp(entry.id, timestamp_ms, strategy)
        if isolation is Isolation.UNCOMMITTED or not self._is_held(entry, engine):
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

    def _is_held(self, entry: ShardEntry, engine: StorageEngine | None = None) -> bool:
        """Say whether transactions may hide what `engine`, by default the shard's, has read."""
        if not self.limits.touches(entry.name):
            return False
        reader: object = engine if engine is not None else self._reader(entry)
        return not isinstance(reader, ForwardingEngine)

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
            following = Offset(page[-1].offset + 1)
            with ResigningRead(entry, following):
                page = read(following)
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

    def _count_read(
        self, entry: ShardEntry, records: list[StoredRecord], start: int = 0
    ) -> list[StoredRecord]:
        entry.reads += 1
        if entry.offline:
            records = without_offline(entry, records, start)
        entry.records_read += len(records)
        return records


def _too_many_aborts(entry: ShardEntry) -> BusyError:
    return BusyError(
        f"transactions on {entry.name!r} were aborted during each of {len(_TRIES)} reads in a row;"
        " read again later, or with isolation=Isolation.UNCOMMITTED"
    )
