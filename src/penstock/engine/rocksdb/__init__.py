"""Shards in RocksDB: durable, indexed by key, tag and time."""

from penstock.engine.rocksdb.engine import DB_COLUMN_FAMILY_BROKER, RocksDBStorageEngine
from penstock.platform.rocksdb import Database, DatabaseSettings

__all__ = ["DB_COLUMN_FAMILY_BROKER", "Database", "DatabaseSettings", "RocksDBStorageEngine"]
