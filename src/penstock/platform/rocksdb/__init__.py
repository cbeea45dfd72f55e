"""RocksDB as this package uses it: all that knows its Python binding is here."""

from penstock.platform.rocksdb.changes import CHANGES_SIZE_MAX, Batch, Changes
from penstock.platform.rocksdb.database import ROOM_CHECKED_EVERY, Database
from penstock.platform.rocksdb.family import Family
from penstock.platform.rocksdb.settings import DatabaseSettings

__all__ = [
    "CHANGES_SIZE_MAX",
    "ROOM_CHECKED_EVERY",
    "Batch",
    "Changes",
    "Database",
    "DatabaseSettings",
    "Family",
]
