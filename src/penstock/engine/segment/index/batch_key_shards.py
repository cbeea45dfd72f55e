"""Opens the index of keys inside batches when a store first has a batch shard."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final

from penstock.engine.segment.index.batch_key_index import BatchKeys, Bounds
from penstock.engine.segment.log.disk_errors import disk_errors
from penstock.engine.segment.parts import StoreParts
from penstock.engine.segment.read.key_reader import Query, ShardReader
from penstock.record import QueueKind, ShardId


class BatchShards:
    """Stores without batch shards have no such index, and no thread for it."""

    def __init__(self, parts: StoreParts, reader: ShardReader, bounds: Bounds) -> None:
        self._parts: Final = parts
        self._reader: Final = reader
        self._bounds: Final = bounds
        self._lock: Final = threading.Lock()
        self._keys: BatchKeys | None = None
        if any(log.kind is QueueKind.BATCH and not log.state.dropped for log in parts.table):
            self.need()

    def need(self) -> None:
        """Index the keys inside batches from now on."""
        with self._lock:
            if self._keys is not None:
                return
            with disk_errors(self._parts.paths.batch_index):
                self._keys = self._reader.batch_keys = BatchKeys(
                    self._parts, self._read_keys, self._batch_bounds
                )

    def _batch_bounds(self) -> Iterator[tuple[ShardId, int, int]]:
        for bounds in self._bounds():
            log = self._parts.table.find(bounds[0])
            if log is not None and log.kind is QueueKind.BATCH:
                yield bounds

    def _read_keys(
        self, shard: ShardId, offset: int, max_records: int, max_size: int
    ) -> tuple[bytes | None, int]:
        log = self._parts.table.get(shard)
        return self._reader.read_keys(log, Query(offset, log.commit, max_records, max_size))

    def run_once(self) -> None:
        """Index what is committed now, and drop what speaks of log files that are gone."""
        if self._keys is not None:
            self._keys.run_once()
            self._keys.remove_before(self._parts.log.files.start)

    def cut(self, shard: ShardId, offset: int) -> None:
        """Index the keys from `offset` on anew: the shard was cut there."""
        if self._keys is not None:
            self._keys.cut(shard, offset)

    def close(self) -> None:
        if self._keys is not None:
            self._reader.batch_keys = None
            self._keys.close()
