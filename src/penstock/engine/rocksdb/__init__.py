"""Shards in RocksDB: durable, indexed by key, tag and time."""

from penstock.engine.rocksdb.engine import DB_COLUMN_FAMILY_BROKER, RocksDBStorageEngine
from penstock.rocks.database import Database
from penstock.rocks.settings import DatabaseSettings

__all__ = ["DB_COLUMN_FAMILY_BROKER", "Database", "DatabaseSettings", "RocksDBStorageEngine"]
