"""The SQLite file of the engine: its tables, changes that are atomic, and rows as records."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from penstock.errors import DiskFailedError, DiskFullError
from penstock.record import Offset, StoredRecord

FAR: Final = (1 << 63) - 1
"""The largest integer of SQLite. Callers may pass larger offsets, limits and times: a limit is cut
to this, the others are compared as numbers of floating point."""
SCHEMA: Final = """
PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;
CREATE TABLE IF NOT EXISTS shards(id INTEGER PRIMARY KEY AUTOINCREMENT, topic BLOB, partition INT,
    config BLOB, earliest INT, latest INT, sealed INT, stored_ms INT, producers BLOB);
CREATE TABLE IF NOT EXISTS records(shard INT, offset INT, value BLOB, key BLOB, labels BLOB,
    timestamp_ms INT, expires_at_ms INT, stored_ms INT, size INT, producer INT,
    PRIMARY KEY(shard, offset)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_key ON records(shard, key, offset) WHERE key IS NOT NULL;
CREATE INDEX IF NOT EXISTS by_producer ON records(shard, producer) WHERE producer IS NOT NULL;
CREATE TABLE IF NOT EXISTS tags(shard INT, tag BLOB, offset INT, PRIMARY KEY(shard, tag, offset))
    WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS untag AFTER DELETE ON records WHEN old.labels IS NOT NULL
    BEGIN DELETE FROM tags WHERE shard = old.shard AND offset = old.offset; END;
"""
COLUMNS: Final = "r.offset, value, key, labels, timestamp_ms, expires_at_ms, stored_ms, size"
LIVE: Final = "(expires_at_ms IS NULL OR expires_at_ms > :now)"
Row = tuple[int, bytes | None, bytes | None, bytes | None, int, int | None, int, int]
Labels = tuple[list[bytes], list[tuple[bytes, bytes | None]]]


class Database:
    """The SQLite file. One caller at a time; an error undoes the whole change."""

    def __init__(self, path: str) -> None:
        self._path: Final = path
        self.lock: Final = threading.RLock()
        self.connection: Final = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False
        )
        self.connection.executescript(SCHEMA)

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        with self.lock:
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException as error:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                if not isinstance(error, sqlite3.Error):
                    raise
                if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                    raise DiskFullError(f"{self._path}: {error}") from error
                raise DiskFailedError(self._path, str(error)) from error


def packed(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def unpacked(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def stored_record(row: Row) -> StoredRecord:
    offset, value, key, packed, timestamp_ms, expires_at_ms, stored_ms, _ = row
    tags: list[bytes] = []
    headers: list[tuple[bytes, bytes | None]] = []
    if packed is not None:
        tags, headers = msgspec.msgpack.decode(packed, type=Labels)
    return StoredRecord(
        Offset(offset), value, key, tuple(map(unpacked, tags)),
        tuple((unpacked(name), value) for name, value in headers),
        timestamp_ms, expires_at_ms, stored_ms, 0,
    )  # fmt: skip
