"""Shards in RocksDB: durable, indexed by key, tag and time."""

from penstock.engine.rocksdb.engine import DB_COLUMN_FAMILY_BROKER, RocksDBStorageEngine
from penstock.platform.rocksdb.database import Database
from penstock.platform.rocksdb.settings import DatabaseSettings

__all__ = ["DB_COLUMN_FAMILY_BROKER", "Database", "DatabaseSettings", "RocksDBStorageEngine"]
