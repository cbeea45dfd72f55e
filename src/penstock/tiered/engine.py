"""The segment engine with a tier: log and tier read as one shard.

    offsets    tier start … tier end
                       local earliest … commit       the log is the hot window; where both hold an
                                                      offset, the log answers

A shard begins where its tier does. Reads that begin before the log's first offset are answered by
the tier and go on in the log; keys and times are looked for in both. Deletes reach the tier's
manifest before the log removes the records concerned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.codec.validation import check_key, check_limit, check_offset, check_text, check_time
from penstock.engine.compaction import CompactionRules
from penstock.engine.contract import (
    RECORDS_PER_READ,
    SIZE_PER_READ,
    AdapterOffsetStrategy,
    BatchPage,
    ColumnQuery,
    Compacted,
    Isolation,
    ShardConfig,
    ShardInfo,
)
from penstock.engine.segment import (
    SegmentEngine,
    SegmentStore,
)
from penstock.errors import BadRequestError, CorruptionError, SetupError
from penstock.platform.log import get_logger
from penstock.record import Offset, ShardId, StoredRecord
from penstock.tiered.chunk.shard_manifest import LeaseLostError
from penstock.tiered.index_service import IndexService
from penstock.tiered.maintenance.cold_deletes import (
    delete_key,
    delete_offset,
    delete_transaction,
)
from penstock.tiered.maintenance.compaction import TierProgress, delete_superseded
from penstock.tiered.maintenance.upkeep import TierLimits, TierReport, TierUpkeep, kept_in_tier_ms
from penstock.tiered.metrics import TierMetrics
from penstock.tiered.read.tier_query import TierQuery
from penstock.tiered.read.two_tier_reader import READ_FAILURES, TwoTierReader
from penstock.tiered.shard_tiers import ShardTiers
from penstock.tiered.tiering_rules import TieringRules, hot_window
from penstock.tiered.upload.committed_log import LsoBoundedLog
from penstock.tiered.upload.dispatcher import TieredDispatcher

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.tiered.composite_flat_file import CompositeFlatFile

_FAR: Final = 1 << 60
_log: Final = get_logger(__name__)


class TieredSegmentEngine(SegmentEngine):
    def __init__(
        self,
        store: SegmentStore,
        tiers: ShardTiers,
        dispatcher: TieredDispatcher,
        upkeep: TierUpkeep,
        *,
        metrics: TierMetrics | None = None,
        background: bool = True,
        limits: TierLimits | None = None,
    ) -> None:
        self._on_begin: Callable[[], None] = lambda: None
        self.tiers: Final = tiers
        self.dispatcher: Final = dispatcher
        self.tier_upkeep: Final = upkeep
        self._background: Final = background
        self._rules: Final = TieringRules(limits or TierLimits())
        self._begun = False
        self._metrics: Final = metrics or TierMetrics()
        self._compacted: dict[ShardId, TierProgress] = {}
        self.index_service: Final = IndexService(store, tiers)
        self._pages: Final = TwoTierReader(store, tiers, self._metrics)
        super().__init__(store)
        dispatcher.log = LsoBoundedLog(store, lambda: self.limits, self)
        store.retention.keep_from = dispatcher.keep_from

    # Shards

    def _apply(self, shard: ShardId, config: ShardConfig) -> None:
        config = self._rules.resolve(config, has_tier=self.tiers.config_of(shard) is not None)
        super()._apply(shard, config)
        self.tiers.watch(shard, config)
        if config.tiering is not None and config.tiering.enabled:
            retention = self.store.retention
            retention.set_policy(shard, hot_window(config, retention.reserved_ms))
            self._begin()
            self.dispatcher.schedule_all()

    def _begin(self) -> None:
        """Start what tiers need, with the first shard that has one."""
        if not self._begun:
            self._begun = True
            self._on_begin()
            self.store.dispatch.register(self.dispatcher)
            if self._background:
                self.dispatcher.start()

    def when_tiered(self, callback: Callable[[], None]) -> None:
        """Call back when the first shard has a tier; now if one has."""
        self._on_begin = callback
        if self._begun:
            callback()

    def upload_now(self) -> TierReport:
        """Upload everything that is committed, and maintain all tiers; return what failed, which
        does not affect other shards."""
        not_uploaded = self.dispatcher.upload_all()
        report = self.tier_upkeep.run_once()
        report.failed.update(not_uploaded)
        return report

    def delete_shard(self, shard: ShardId) -> None:
        self.dispatcher.remove(shard)
        super().delete_shard(shard)
        self._compacted.pop(shard, None)
        try:
            flat = self.tiers.remove(shard)
            if flat is not None:
                flat.destroy()
        except (SetupError, LeaseLostError) as error:
            # Its address is invalid, it rejects the request, or it belongs to another cluster by
            # now: no later attempt would succeed.
            _log.warning("tier_not_emptied", shard=shard.name, reason=str(error))

    def shard_info(self, shard: ShardId) -> ShardInfo:
        info = super().shard_info(shard)
        start, end = self.tiers.bounds(shard)
        if not start < info.earliest <= end:
            return info
        size = max(info.size, self.tiers.data_size(shard))
        return replace(info, earliest=Offset(start), size=size, log_start=info.earliest)

    def _start_of_log(self, shard: ShardId) -> int:
        return int(self.store.bounds(shard).earliest)

    def _cold(self, shard: ShardId) -> CompositeFlatFile | None:
        """Return the flat file when the log does not hold all of the shard."""
        return self.tiers.flat(shard) if self._start_of_log(shard) > 0 else None

    # Reading

    def read_by_offset(
        self,
        shard: ShardId,
        offset: Offset,
        *,
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
        isolation: Isolation = Isolation.COMMITTED,
    ) -> list[StoredRecord]:
        if self.tiers.config_of(shard) is None:
            return super().read_by_offset(
                shard, offset, max_records=max_records, max_size=max_size, isolation=isolation
            )
        query = TierQuery(offset, _FAR, max_records, max_size)
        if self._is_before_log(shard, offset):
            self._check_cold(shard, query)
            if not isinstance(isolation, Isolation):
                raise BadRequestError(f"isolation must be an Isolation, not {isolation!r}")
            return self._pages.read(shard, query)
        try:
            records = super().read_by_offset(
                shard, offset, max_records=max_records, max_size=max_size, isolation=isolation
            )
        except READ_FAILURES:
            # Retention moved the log's start past `offset`, and its new first record is damaged.
            if not self._is_before_log(shard, offset):
                raise
            return self._pages.read(shard, query)
        if (records and records[0].offset == offset) or not self._is_before_log(shard, offset):
            return records
        return self._pages.read(shard, query)  # retention moved the log's start meanwhile

    def read_columns(self, shard: ShardId, query: ColumnQuery) -> list[pa.RecordBatch] | None:
        if not self._only_log_answers(shard, query.offset):
            return None
        try:
            batches = super().read_columns(shard, query)
        except READ_FAILURES:
            if self._only_log_answers(shard, query.offset):
                raise
            return None
        # Checked again after the read: retention may have moved the log's start meanwhile.
        return batches if self._only_log_answers(shard, query.offset) else None

    def _only_log_answers(self, shard: ShardId, offset: int) -> bool:
        """Say whether the tier has nothing to add from this offset on."""
        return not self._is_before_log(shard, offset) or self.tiers.flat(shard) is None

    def read_by_tag(
        self,
        shard: ShardId,
        tag: str,
        *,
        start_offset: Offset = Offset(0),
        max_records: int = RECORDS_PER_READ,
        max_size: int = SIZE_PER_READ,
    ) -> list[StoredRecord]:
        query = TierQuery(start_offset, _FAR, max_records, max_size, tag)
        is_tiered = self.tiers.config_of(shard) is not None
        if is_tiered and self._is_before_log(shard, start_offset):
            self._check_cold(shard, query)
            check_text(tag, "tag")
            return self._pages.read(shard, query)
        records = super().read_by_tag(
            shard, tag, start_offset=start_offset, max_records=max_records, max_size=max_size
        )
        if is_tiered and self._is_before_log(shard, start_offset):
            return self._pages.read(shard, query)  # retention moved the log's start meanwhile
        return records

    def _is_before_log(self, shard: ShardId, offset: object) -> bool:
        """Say whether only the tier can hold this offset; no for one that is not a number, which
        the log's reader rejects."""
        return isinstance(offset, int) and offset < self._start_of_log(shard)

    def _check_cold(self, shard: ShardId, query: TierQuery) -> None:
        self._config(shard)
        check_offset(query.offset)
        check_limit(query.max_records, "max_records")
        check_limit(query.max_size, "max_size")

    def bounds(self, shard: ShardId) -> tuple[int, int]:
        if self._cold(shard) is None:
            return super().bounds(shard)  # without the sizes, which take longer
        info = self.shard_info(shard)
        return int(info.earliest), int(info.commit)

    def read_batches(self, shard: ShardId, offset: int, until: int, max_size: int) -> BatchPage:
        """Batches come as they came, from log or tier; a page never mixes the two."""
        page = self._pages.read_batches(shard, offset, until, max_size)
        if page is not None:
            return page
        offset = max(offset, self._start_of_log(shard))
        return super().read_batches(shard, offset, until, max_size)

    def is_hot(self, shard: ShardId, offset: int) -> bool:
        return offset >= self._start_of_log(shard) and super().is_hot(shard, offset)

    def read_raw(
        self, shard: ShardId, offset: int, *, max_records: int, max_size: int
    ) -> list[bytes]:
        """Return whole records (batches) as log and tier hold them, for protocols that send them
        on as they are; a page never mixes the two."""
        query = TierQuery(offset, _FAR, max_records, max_size)
        records = self._pages.read_raw(shard, query)
        if records:
            return records
        return self.store.read_raw(shard, offset, max_records=max_records, max_size=max_size)

    def read_by_key(self, shard: ShardId, key: bytes) -> StoredRecord | None:
        record = super().read_by_key(shard, key)
        return self.index_service.newest_in_tier(shard, key) if record is None else record

    def query_by_key(
        self,
        shard: ShardId,
        key: bytes,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        limit: int = 64,
    ) -> list[StoredRecord]:
        records = super().query_by_key(shard, key, begin_ms=begin_ms, end_ms=end_ms, limit=limit)
        if len(records) >= limit or self._cold(shard) is None:
            return records
        return self.index_service.add_older(
            shard, key, records, times=(begin_ms, end_ms), limit=min(limit, _FAR)
        )

    def get_offset_by_timestamp(
        self, shard: ShardId, timestamp_ms: int, strategy: AdapterOffsetStrategy
    ) -> Offset:
        self._config(shard)
        flat = self._cold(shard)
        if flat is None:
            return super().get_offset_by_timestamp(shard, timestamp_ms, strategy)
        check_time(timestamp_ms, "timestamp_ms")
        if not isinstance(strategy, AdapterOffsetStrategy):
            raise BadRequestError(f"strategy must be an AdapterOffsetStrategy, not {strategy!r}")
        offset = self._pages.offset_by_time(shard, flat, timestamp_ms)
        if offset is not None:
            return Offset(offset)
        if strategy is AdapterOffsetStrategy.EARLIEST:
            return self.shard_info(shard).earliest
        return self.store.bounds(shard).next

    # Deleting

    def delete_by_key(self, shard: ShardId, key: bytes) -> int:
        self._config(shard)
        flat = self._cold(shard)
        deleted = 0
        if flat is not None:
            check_key(key)
            deleted = delete_key(flat, key, self._start_of_log(shard))
        return deleted + super().delete_by_key(shard, key)

    def delete_by_offset(self, shard: ShardId, offset: Offset) -> bool:
        self._config(shard)
        check_offset(offset)
        flat = self._cold(shard)
        if flat is not None and offset < self._start_of_log(shard):
            return delete_offset(flat, offset)
        return super().delete_by_offset(shard, offset)

    def end_transaction(
        self, shard: ShardId, producer_id: int, start: Offset, *, is_commit: bool
    ) -> int:
        """Uploads end before the oldest open transaction (`LsoBoundedLog`); records of it that an
        earlier version uploaded are deleted in the tier, too."""
        deleted = super().end_transaction(shard, producer_id, start, is_commit=is_commit)
        flat = self._cold(shard)
        if is_commit or flat is None or start >= self._start_of_log(shard):
            return deleted
        first, until = max(start, self.tiers.bounds(shard)[0]), self._start_of_log(shard)
        return deleted + delete_transaction(flat, producer_id, first, until)

    def delete_records_before(self, shard: ShardId, offset: Offset) -> Offset:
        flat = self.tiers.flat(shard)
        if flat is None:
            return super().delete_records_before(shard, offset)
        check_offset(offset)
        target = min(offset, int(self.store.bounds(shard).commit))
        if flat.current() is not None:
            flat.upkeep.truncate_before(target)
        super().delete_records_before(shard, Offset(target))
        return self.shard_info(shard).earliest

    def compact(self, shard: ShardId) -> Compacted:
        config, flat = self._config(shard), self._cold(shard)
        is_hot = flat is None or flat.current() is None
        if flat is None or is_hot or not config.cleanup.compacts or self.store.is_following(shard):
            return super().compact(shard)
        rules = CompactionRules.of(config, self.store.clock.expiry_ms())
        until, aborted = self._transactions_of(shard)
        progress = self._compacted.setdefault(shard, TierProgress())
        seen_before = progress.since
        cold = delete_superseded(
            self.store,
            flat,
            rules,
            progress,
            until=until,
            aborted=aborted,
        )
        # A tombstone leaves the log when an earlier pass has removed what it replaces in the tier.
        hot = self._compact_log(shard, rules, until, aborted, tombstones_until=seen_before)
        waits = rules.again(progress.drop_removed_by_log(rules, self._start_of_log(shard)), None)
        moments = [moment for moment in (cold.again_ms, hot.again_ms, waits) if moment is not None]
        return Compacted(
            cold.records + hot.records, cold.size + hot.size, min(moments, default=None)
        )

    def apply_retention(self, shard: ShardId) -> Offset:
        """The log's own limits first; then those of the whole shard, the size by whole chunks."""
        earliest = super().apply_retention(shard)
        config, flat = self._config(shard), self.tiers.flat(shard)
        if flat is None or self.store.is_following(shard):
            return earliest
        info = self.shard_info(shard)
        if not config.cleanup.deletes:
            return info.earliest
        floor = int(info.earliest)
        if config.retention_records is not None:
            last = self.store.retention.first_of_last(shard, config.retention_records)
            floor = max(floor, last)
        if config.retention_bytes is not None and flat.current() is not None:
            floor = max(floor, flat.upkeep.expire_size(config.retention_bytes))
        earliest = self.delete_records_before(shard, Offset(floor))
        kept_ms = kept_in_tier_ms(config, flat)
        if kept_ms is None:
            return earliest
        # After the other limits: a young record that they removed does not count.
        oldest = max(0, flat.clock.expiry_ms() - kept_ms)
        try:
            young = self.get_offset_by_timestamp(shard, oldest, AdapterOffsetStrategy.LATEST)
        except CorruptionError:
            # Whole chunks that are old go by their entries, the damaged one among them.
            return earliest
        return self.delete_records_before(shard, max(earliest, young))

    def close(self) -> None:
        self.dispatcher.stop()
        super().close()
        self.tiers.close()
