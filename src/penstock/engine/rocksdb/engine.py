"""The RocksDB engine: shards as ordered rows of one family of a shared RocksDB instance.

Acknowledged records survive the end of the process; those of shards with `Flush.SYNC`, and changes
to such shards, survive a power cut. See `keys` for the rows, `shard` for what is atomic, and
`database` for what happens when the disk is full or fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Self

from penstock.codec.validation import check_records
from penstock.engine.contract import (
    Capabilities,
    ShardConfig,
    ShardPart,
    SharedSyncEngine,
    VerifiedEngine,
    Written,
)
from penstock.engine.rocksdb.keys import (
    GENERATION_ROW,
    SHARDS,
    ShardKeys,
    pack_generation,
    shard_of_row,
    shard_row,
    unpack_generation,
)
from penstock.engine.rocksdb.replica_store import SyncMark
from penstock.engine.rocksdb.rows import (
    End,
    ShardRow,
    decode_end,
    decode_shard,
    encode_end,
    encode_shard,
)
from penstock.engine.rocksdb.shard import RocksDBShard
from penstock.engine.row_replica import RowEngine
from penstock.errors import StoreError
from penstock.platform.clock import Clock
from penstock.platform.rocksdb import Changes, Database, DatabaseSettings
from penstock.record import Flush, Offset, ShardId

if TYPE_CHECKING:
    from penstock.engine.replication.log import ReplicaLog

DB_COLUMN_FAMILY_BROKER: Final = "DB_COLUMN_FAMILY_BROKER"


class RocksDBStorageEngine(RowEngine[RocksDBShard], SharedSyncEngine, VerifiedEngine):
    def __init__(
        self, database: Database, clock: Clock | None = None, *, owns_database: bool = False
    ) -> None:
        """Use the broker's family of `database`, which others may share; `owns_database` closes it
        with the engine."""
        super().__init__(clock)
        self._database: Final = database
        self._owns_database: Final = owns_database
        self._family: Final = database.family(DB_COLUMN_FAMILY_BROKER)
        self._replicated: Final[dict[ShardId, RocksDBShard]] = {}
        row = self._family.get(GENERATION_ROW)
        self._next_generation = 0 if row is None else unpack_generation(row)
        for key, shard in self._family.scan(*SHARDS):
            self._load(shard_of_row(key), decode_shard(shard))

    @classmethod
    def open(
        cls,
        path: str,
        clock: Clock | None = None,
        *,
        settings: DatabaseSettings | None = None,
    ) -> Self:
        """Open a RocksDB instance that only this engine uses."""
        database = Database(path, (DB_COLUMN_FAMILY_BROKER,), settings=settings)
        try:
            return cls(database, clock, owns_database=True)
        except BaseException:
            database.close()
            raise

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durable=True, evicts=False, power_safe=True)

    @property
    def failure(self) -> StoreError | None:
        """Why nothing is written any more, for good; or None."""
        return self._database.failure

    def verify_records(self, shard: ShardId, offset: int, max_size: int) -> tuple[int, int]:
        """See `VerifiedEngine`."""
        return self._find(shard).verify(offset, max_size)

    def batch_write_parts(self, parts: Sequence[ShardPart]) -> list[Written | StoreError]:
        """See `SharedSyncEngine`."""
        results: list[Written | StoreError] = []
        waiting: list[tuple[int, RocksDBShard, Offset, SyncMark | None]] = []
        for number, (shard, records) in enumerate(parts):
            try:
                store = self._find(shard)
                checked = check_records(records, shard, store.config.record_size_max)
                written, waits = store.append_unsynced(records, checked, None)
            except StoreError as error:
                results.append(error)
                continue
            results.append(written)
            if waits:
                end = Offset(written.first + written.count)
                waiting.append((number, store, end, store.sync_mark()))
        try:
            if waiting:
                self._database.sync()
            for _, store, end, mark in waiting:
                store.show(end, mark)
        except StoreError as error:
            for number, *_ in waiting:
                results[number] = error
        return results

    def replica_logs(self, shard: ShardId) -> Sequence[ReplicaLog]:
        """See `ReplicatedEngine`."""
        logs = super().replica_logs(shard)
        with self._directory:
            self._replicated[shard] = self._find(shard)
        return logs

    def end_replication(self, shard: ShardId) -> None:
        super().end_replication(shard)
        with self._directory:
            self._replicated.pop(shard, None)

    def sync(self) -> None:
        """Put everything on the device; replicas of shards with `Flush.SYNC` count for it."""
        with self._directory:
            stores = list(self._replicated.values())
        marks = [(store, store.sync_mark()) for store in stores if store.waits_for_device]
        self._database.sync()
        for store, mark in marks:
            store.synced(mark)

    def _create(self, shard: ShardId, config: ShardConfig) -> RocksDBShard:
        row = ShardRow(self._next_generation, config)
        changes = Changes()
        changes.put(GENERATION_ROW, pack_generation(row.generation + 1))
        changes.put(shard_row(shard), encode_shard(row))
        changes.put(ShardKeys(row.generation).end, encode_end(End()))
        self._family.write(changes)
        self._next_generation += 1
        if config.flush is Flush.SYNC:
            self._database.sync()
        return self._build(shard, row, End())

    def _delete(self, store: RocksDBShard) -> None:
        store.delete()
        self._replicated.pop(store.shard, None)

    def _close(self) -> None:
        if self._owns_database:
            self._database.close()

    def _load(self, shard: ShardId, row: ShardRow) -> None:
        end = self._family.get(ShardKeys(row.generation).end)
        assert end is not None, f"shard {shard.name!r} has no end"
        store = self._shards[shard] = self._build(shard, row, decode_end(end))
        if row.replicated:
            store.load_replica()
            self._replicated[shard] = store

    def _build(self, shard: ShardId, row: ShardRow, end: End) -> RocksDBShard:
        return RocksDBShard(
            shard,
            row,
            end,
            database=self._database,
            family=self._family,
            clock=self._clock,
            announce=self._announce,
        )
