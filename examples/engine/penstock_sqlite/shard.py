"""One shard of the engine: rows of three tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import msgspec

from penstock.codec.validation import Checked
from penstock.engine.compaction import CompactionPass, CompactionRules
from penstock.engine.contract import Compacted, ShardConfig, ShardInfo, Written
from penstock.engine.producer_table import ProducerTable, Write
from penstock.errors import ShardSealedError, UnknownShardError
from penstock.platform.clock import Clock
from penstock.record import Offset, Producer, Record, ShardId, StoredRecord
from penstock_sqlite.database import COLUMNS, FAR, LIVE, Database, Row, packed, stored_record


class State(NamedTuple):
    """The columns of a shard that a write changes, as they are stored."""

    earliest: int
    latest: int
    sealed: int
    stored_ms: int
    producers: bytes


class SqliteShard:
    def __init__(
        self, shard: ShardId, number: int, config: ShardConfig, database: Database, clock: Clock
    ) -> None:
        self.config = config
        self.deleted = False
        self.number: Final = number
        self._shard: Final = shard
        self._database: Final = database
        self._clock: Final = clock

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        with self._database.change() as connection:
            if self.deleted:
                raise UnknownShardError(self._shard.name)
            yield connection

    def _select(self, query: str, **values: object) -> list[Row]:
        with self._database.lock:
            return self._database.connection.execute(query, self._bound(values)).fetchall()

    def _bound(self, values: dict[str, object]) -> dict[str, object]:
        bound = {
            name: float(value) if isinstance(value, int) and abs(value) > FAR else value
            for name, value in values.items()
        }
        return {"shard": self.number, "now": self._clock.expiry_ms(), **bound}

    def _state(self) -> State:
        query = "SELECT earliest, latest, sealed, stored_ms, producers FROM shards WHERE id = ?"
        with self._database.lock:
            row = self._database.connection.execute(query, (self.number,)).fetchone()
        if row is None:
            raise UnknownShardError(self._shard.name)
        return State(*row)

    def alter(self, config: ShardConfig) -> None:
        with self._changing() as connection:
            row = msgspec.json.encode(config), self.number
            connection.execute("UPDATE shards SET config = ? WHERE id = ?", row)
            self.config = config

    def seal(self) -> None:
        with self._changing() as connection:
            connection.execute("UPDATE shards SET sealed = 1 WHERE id = ?", (self.number,))

    def info(self) -> ShardInfo:
        with self._database.lock:
            state, total = self._state(), "SELECT total(size) FROM records WHERE shard = :shard"
            size = int(self._select(total)[0][0])
        latest = Offset(state.latest)
        return ShardInfo(
            self._shard, Offset(state.earliest), latest, latest, size, bool(state.sealed)
        )

    def append(
        self, records: Sequence[Record], checked: Checked, producer: Producer | None, /
    ) -> Written:
        del checked  # sizes of the records, already compared with the shard's limit
        count, now_ms = len(records), self._clock.now_ms()
        with self._changing() as connection:
            state = self._state()
            first, stored_ms, writers = state.latest, max(now_ms, state.stored_ms), state.producers
            if producer is not None:
                table = ProducerTable.from_list(
                    msgspec.json.decode(writers, type=list[tuple[int, list[Write]]])
                )
                known = table.check(producer, count, self._shard.name)
                if known is not None:
                    return Written(Offset(known), count, repeated=True)
                table.remember(producer, count, first, now_ms)
                writers = msgspec.json.encode(table.to_list())
            if state.sealed:
                raise ShardSealedError(self._shard.name)
            open_in = producer.id if producer is not None and producer.is_transactional else None
            for offset, record in enumerate(records, first):
                self._insert(connection, offset, record, now_ms, stored_ms, open_in)
            row = first + count, stored_ms, writers, self.number
            update = "UPDATE shards SET latest = ?, stored_ms = ?, producers = ? WHERE id = ?"
            connection.execute(update, row)
        return Written(Offset(first), count)

    def _insert(
        self,
        connection: sqlite3.Connection,
        offset: int,
        record: Record,
        now_ms: int,
        stored_ms: int,
        open_in: int | None,
    ) -> None:
        tags, labels = [packed(tag) for tag in record.tags], None
        if record.tags or record.headers:
            headers = [(packed(name), value) for name, value in record.headers]
            labels = msgspec.msgpack.encode((tags, headers))
        size = len(record.value or b"") + len(record.key or b"") + len(labels or b"")
        times = now_ms if record.timestamp_ms is None else record.timestamp_ms, record.expires_at_ms
        row = (self.number, offset, record.value, record.key, labels, *times, stored_ms, size)
        connection.execute("INSERT INTO records VALUES(?,?,?,?,?,?,?,?,?,?)", (*row, open_in))
        for tag in tags:
            row_of_tag = self.number, tag, offset
            connection.execute("INSERT OR IGNORE INTO tags VALUES(?,?,?)", row_of_tag)

    def page(self, start: int, max_records: int, max_size: int) -> list[StoredRecord]:
        return self._page("records r", "r.offset >= :start", start, max_records, max_size)

    def page_of_tag(
        self, tag: str, start: int, max_records: int, max_size: int
    ) -> list[StoredRecord]:
        tables = "tags t JOIN records r ON r.shard = t.shard AND r.offset = t.offset"
        rule = "t.tag = :tag AND t.shard = :shard AND t.offset >= :start"
        return self._page(tables, rule, start, max_records, max_size, packed(tag))

    def _page(
        self, tables: str, rule: str, start: int, count: int, max_size: int, tag: bytes = b""
    ) -> list[StoredRecord]:
        rows = self._select(
            f"SELECT {COLUMNS} FROM {tables} WHERE r.shard = :shard AND {rule} AND {LIVE} "
            "ORDER BY r.offset LIMIT :count",
            start=start, count=min(count, FAR), tag=tag,
        )  # fmt: skip
        records: list[StoredRecord] = []
        size = 0
        for row in rows:
            size += row[-1]
            if records and size > max_size:
                break
            records.append(stored_record(row))
        return records

    def history(
        self, key: bytes, begin_ms: int | None, end_ms: int | None, limit: int
    ) -> list[StoredRecord]:
        rows = self._select(
            f"SELECT {COLUMNS} FROM records r WHERE shard = :shard AND key = :key AND {LIVE} "
            "AND timestamp_ms BETWEEN :begin AND :end ORDER BY offset DESC LIMIT :limit",
            key=key, begin=-FAR if begin_ms is None else begin_ms,
            end=FAR if end_ms is None else end_ms, limit=min(limit, FAR),
        )  # fmt: skip
        return [stored_record(row) for row in rows]

    def first_since(self, timestamp_ms: int, start: int = 0) -> Offset | None:
        rows = self._select(
            "SELECT offset FROM records WHERE shard = :shard AND offset >= :start "
            f"AND timestamp_ms >= :since AND {LIVE} ORDER BY offset LIMIT 1",
            start=start, since=timestamp_ms,
        )  # fmt: skip
        return Offset(rows[0][0]) if rows else None

    def first_within(self, size: int) -> int:
        """Sizes are added from the newest record on; the shard begins where they exceed `size`."""
        query = f"SELECT {COLUMNS} FROM records r WHERE shard = :shard ORDER BY offset DESC"
        with self._database.lock:
            first, left = self._state().latest, size
            for row in self._database.connection.execute(query, {"shard": self.number}):
                left -= row[-1]
                if left < 0:
                    break
                first = row[0]
        return first

    def _delete(self, rule: str, **values: object) -> tuple[int, int]:
        """Delete records; return how many there were, and how many of them had not expired."""
        where = f"FROM records WHERE shard = :shard AND {rule}"
        values = self._bound(values)
        with self._changing() as connection:
            live = connection.execute(f"SELECT total({LIVE}) {where}", values).fetchone()[0]
            return connection.execute(f"DELETE {where}", values).rowcount, int(live)

    def delete_key(self, key: bytes) -> int:
        return self._delete("key = :key", key=key)[1]

    def delete_offset(self, offset: int) -> bool:
        return self._delete("offset = :offset", offset=offset)[1] > 0

    def delete_before(self, offset: int) -> Offset:
        with self._database.lock:
            state = self._state()
            earliest = max(state.earliest, min(offset, state.latest))
            with self._changing() as connection:
                row = earliest, self.number
                connection.execute("UPDATE shards SET earliest = ? WHERE id = ?", row)
                connection.execute("DELETE FROM records WHERE offset < ? AND shard = ?", row)
        return Offset(earliest)

    def compact(self, stable_until: Callable[[], int | None], /) -> Compacted:
        with self._changing() as connection:
            if not self.config.cleanup.compacts:
                return Compacted(0, 0)
            stable, latest = stable_until(), self._state().latest
            rules = CompactionRules.of(self.config, self._clock.expiry_ms())
            compaction = CompactionPass(rules, latest if stable is None else stable)
            query = "SELECT offset, key, length(value), stored_ms FROM records r "
            row = {"shard": self.number, "now": self._clock.expiry_ms()}
            for columns in connection.execute(f"{query} WHERE shard = :shard AND {LIVE}", row):
                if not compaction.add_row(*columns):
                    break
            removal = compaction.finish()
            rows = [(self.number, offset) for offset in removal.offsets]
            connection.executemany("DELETE FROM records WHERE shard = ? AND offset = ?", rows)
        return Compacted(len(rows), removal.size, removal.again_ms)

    def end_transaction(self, producer_id: int, start: int, /, *, is_commit: bool) -> int:
        row = self.number, producer_id
        ours = "shard = ? AND producer = ?"
        with self._changing() as connection:
            deleted = 0
            if not is_commit:
                query = f"DELETE FROM records WHERE {ours} AND offset >= ?"
                deleted = connection.execute(query, (*row, min(start, FAR))).rowcount
            connection.execute(f"UPDATE records SET producer = NULL WHERE {ours}", row)
        return deleted

    def remove_expired(self) -> Compacted:
        before = self.info()
        count, _ = self._delete(f"NOT {LIVE}")
        return Compacted(count, before.size - self.info().size)
