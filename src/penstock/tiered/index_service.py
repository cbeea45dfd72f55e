"""`IndexService`: finds messages by key in the tier of a shard, after a search of the log.

The log holds the newer records. The tier is searched below the log's start as it is after the
search of the log: what retention has removed from it meanwhile is in the tier."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from penstock.engine.segment import SegmentStore
from penstock.record import ShardId, StoredRecord
from penstock.tiered.shard_tiers import ShardTiers


class IndexService:
    def __init__(self, store: SegmentStore, tiers: ShardTiers) -> None:
        self._store: Final = store
        self._tiers: Final = tiers

    def newest_in_tier(self, shard: ShardId, key: bytes) -> StoredRecord | None:
        """Return the newest live record of `key` that only the tier holds."""
        return next(self._in_tier(shard, key, self._start_of_log(shard)), None)

    def add_older(
        self,
        shard: ShardId,
        key: bytes,
        records: list[StoredRecord],
        *,
        times: tuple[int, int | None],
        limit: int,
    ) -> list[StoredRecord]:
        """Return records of `key` that the log returned and, up to `limit`, older ones of the tier
        with timestamps from the first to the second of `times`, newest first."""
        start = self._start_of_log(shard)
        hot = [record for record in records if record.offset >= start]
        return hot + list(islice(self._in_tier(shard, key, start, *times), limit - len(hot)))

    def _in_tier(
        self, shard: ShardId, key: bytes, until: int, begin_ms: int = 0, end_ms: int | None = None
    ) -> Iterator[StoredRecord]:
        flat = self._tiers.flat(shard) if until > 0 else None
        if flat is None:
            return
        for record in flat.reader.by_key(key, until, begin_ms, end_ms):
            ms = record.timestamp_ms
            if begin_ms <= ms and (end_ms is None or ms <= end_ms):
                yield record

    def _start_of_log(self, shard: ShardId) -> int:
        return int(self._store.bounds(shard).earliest)
