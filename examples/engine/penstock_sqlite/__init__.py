"""A storage engine for Penstock in one SQLite file: `penstock.open(…).create_topic("orders",
storage="plugin:sqlite")`.

`ShardedEngine` checks arguments and keeps the set of shards; a `SqliteShard` holds one shard. Every
change is one SQLite transaction, synced before it returns (`synchronous=FULL`), whatever the flush
mode: the engine is durable and safe against power cuts, and slow.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.engine.contract import Capabilities, ShardConfig
from penstock.engine.per_shard_engine import ShardedEngine
from penstock.engine.plugins import EngineContext
from penstock.platform.clock import Clock
from penstock.record import ShardId
from penstock_sqlite.database import Database, packed, unpacked
from penstock_sqlite.shard import SqliteShard


class SqliteEngine(ShardedEngine[SqliteShard]):
    def __init__(self, path: str, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._database: Final = Database(path)
        query = "SELECT id, topic, partition, config FROM shards"
        for number, topic, partition, row in self._database.connection.execute(query):
            shard = ShardId(unpacked(topic), partition)
            config = msgspec.json.decode(row, type=ShardConfig)
            self._shards[shard] = SqliteShard(shard, number, config, self._database, self._clock)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durable=True, evicts=False, power_safe=True)

    def _create(self, shard: ShardId, config: ShardConfig) -> SqliteShard:
        row = packed(shard.topic), shard.partition, msgspec.json.encode(config), b"[]"
        with self._database.change() as connection:
            query = "INSERT INTO shards VALUES(NULL, ?, ?, ?, 0, 0, 0, 0, ?)"
            number = connection.execute(query, row).lastrowid
        assert number is not None
        return SqliteShard(shard, number, config, self._database, self._clock)

    def _delete(self, store: SqliteShard) -> None:
        with self._database.change() as connection:
            for table, column in (("records", "shard"), ("shards", "id")):
                connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (store.number,))
            store.deleted = True

    def _close(self) -> None:
        with self._database.lock:
            self._database.connection.close()


def open_engine(context: EngineContext) -> SqliteEngine:
    """The entry point: called by a node when a topic first needs the engine."""
    engine = SqliteEngine(f"{context.path}/records.sqlite", context.clock)
    engine.limits = context.limits
    return engine
