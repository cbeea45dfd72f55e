"""`IndexService`: finds messages by key across tiers: the local store first, then flat files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from penstock.record import ShardId, StoredRecord
from penstock.tiered.composite_flat_file import CompositeFlatFile

LocalLookup = Callable[[ShardId, bytes], Iterator[StoredRecord]]
"""The live records of a key in the local store, newest first."""
LocalStart = Callable[[ShardId], int]
"""The first offset that the local store holds."""
_NO_OFFSET: Final = 1 << 62
"""Above every offset."""


class IndexService:
    def __init__(
        self,
        flat_of: Callable[[ShardId], CompositeFlatFile | None],
        local: LocalLookup | None = None,
        local_start: LocalStart | None = None,
    ) -> None:
        """Without a local store, only flat files are searched."""
        self._flat_of: Final = flat_of
        self._local: Final = local
        self._local_start: Final = local_start

    def by_key(self, shard: ShardId, key: bytes) -> Iterator[StoredRecord]:
        """Yield the live records of `key`, newest first, each once: what both tiers hold comes
        from the local one."""
        until = _NO_OFFSET
        if self._local is not None and self._local_start is not None:
            until = self._local_start(shard)
            yield from (record for record in self._local(shard, key) if record.offset >= until)
        yield from self.by_key_before(shard, key, until)

    def by_key_before(self, shard: ShardId, key: bytes, until: int) -> Iterator[StoredRecord]:
        """Yield the live records of `key` below `until` that flat files hold, newest first."""
        flat = self._flat_of(shard)
        if flat is not None and until > 0:
            yield from flat.reader.by_key(key, until)

    def query(
        self, shard: ShardId, key: bytes, *, begin_ms: int = 0, end_ms: int | None = None,
        limit: int = 64,
    ) -> list[StoredRecord]:  # fmt: skip
        """Return records of `key` of a span of time, newest first."""
        records = (
            record
            for record in self.by_key(shard, key)
            if begin_ms <= record.timestamp_ms and (end_ms is None or record.timestamp_ms <= end_ms)
        )
        return list(islice(records, limit))
