"""Shards in RocksDB: durable, indexed by key, tag and time."""

from penstock.engine.rocksdb.database import Database, DatabaseSettings
from penstock.engine.rocksdb.engine import DB_COLUMN_FAMILY_BROKER, RocksDBStorageEngine

__all__ = ["DB_COLUMN_FAMILY_BROKER", "Database", "DatabaseSettings", "RocksDBStorageEngine"]
