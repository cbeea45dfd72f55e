"""What only the RocksDB engine promises: its rows, and that none is left behind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing

import pytest
from rocksdict import WriteBatch
from tests.engine.quick_directory import quick_directory

from penstock.engine.contract import AdapterOffsetStrategy, Cleanup, ShardConfig
from penstock.engine.record_rows import RECORD_HEAD, decode_record, encode_record, payload_size
from penstock.engine.rocksdb import DB_COLUMN_FAMILY_BROKER, Database, RocksDBStorageEngine, reads
from penstock.engine.rocksdb.keys import ShardKeys, offset_of, shard_of_row, shard_row
from penstock.engine.rocksdb.producers import StoredProducers
from penstock.engine.rocksdb.rows import SHARD_END
from penstock.engine.rocksdb.shard_rows import ShardRows
from penstock.errors import BusyError
from penstock.platform.rocksdb.changes import CHANGES_SIZE_MAX, Changes, Fill
from penstock.record import Flush, Offset, Producer, Record, ShardId
from penstock.testing.manual_clock import ManualClock

SHARD = ShardId("orders", 0)


@pytest.fixture
def path() -> Iterator[str]:
    with quick_directory() as directory:
        yield f"{directory}/db"


def kinds(engine: RocksDBStorageEngine) -> dict[str, int]:
    """Count the rows of all generations by their kind."""
    counts: dict[str, int] = {}
    for key, _ in engine._family.scan(b"D", b"E"):
        kind = chr(key[9])
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def rich(number: int) -> Record:
    return Record(
        value=b"v",
        key=b"%d" % (number % 10),
        tags=("t", "u"),
        timestamp_ms=number,
        expires_at_ms=1 << 50,
    )


def test_a_record_has_one_row_for_each_index_and_the_shard_one_end(path: str) -> None:
    with closing(RocksDBStorageEngine.open(path)) as engine:
        engine.create_shard(SHARD, ShardConfig())
        assert kinds(engine) == {"E": 1}
        engine.write(SHARD, rich(0), producer=Producer(1, 0, 0))
        assert kinds(engine) == {"E": 1, "R": 1, "K": 1, "T": 2, "X": 1, "P": 1}


def test_nothing_is_left_of_deleted_records(path: str) -> None:
    with closing(RocksDBStorageEngine.open(path)) as engine:
        engine.create_shard(SHARD, ShardConfig())
        engine.batch_write(SHARD, [rich(n) for n in range(3_000)])
        assert kinds(engine) == {"E": 1, "R": 3_000, "K": 3_000, "T": 6_000, "X": 3_000, "B": 2}
        for number in range(5):
            engine.delete_by_key(SHARD, b"%d" % number)
        assert engine.delete_by_offset(SHARD, Offset(7))
        assert kinds(engine) == {"E": 1, "R": 1_499, "K": 1_499, "T": 2_998, "X": 1_499, "B": 2}
        engine.delete_records_before(SHARD, Offset(3_000))
        assert kinds(engine) == {"E": 1}
        assert engine.shard_info(SHARD).size == 0


def test_nothing_is_left_of_a_deleted_shard(path: str) -> None:
    other = ShardId("orders", 1)
    with closing(RocksDBStorageEngine.open(path)) as engine:
        for shard in (SHARD, other):
            engine.create_shard(shard, ShardConfig())
            engine.batch_write(shard, [rich(n) for n in range(10)], producer=Producer(1, 0, 0))
        engine.delete_shard(SHARD)
        assert kinds(engine) == {"E": 1, "R": 10, "K": 10, "T": 20, "X": 10, "P": 1}
        engine.delete_shard(other)
        assert kinds(engine) == {}


def test_nothing_is_left_of_expired_and_superseded_records(path: str) -> None:
    clock = ManualClock(0)
    with closing(RocksDBStorageEngine.open(path, clock)) as engine:
        engine.create_shard(SHARD, ShardConfig(cleanup=Cleanup.COMPACT))
        engine.batch_write(SHARD, [rich(n) for n in range(1_000)])
        assert engine.compact(SHARD).records == 990
        assert kinds(engine) == {"E": 1, "R": 10, "K": 10, "T": 20, "X": 10}
        clock.set_now_ms(1 << 50)
        assert engine.remove_expired(SHARD).records == 10
        assert kinds(engine) == {"E": 1}


def test_compaction_spares_a_record_whose_successor_is_deleted_meanwhile(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(RocksDBStorageEngine.open(path)) as engine:
        engine.create_shard(SHARD, ShardConfig(cleanup=Cleanup.COMPACT))
        engine.batch_write(SHARD, [Record(value=b"v", key=b"k")] * 2)
        engine.batch_write(SHARD, [Record(value=b"v", key=b"l")] * 2)
        find = reads.superseded

        def find_and_delete(
            rows: ShardRows, bounds: reads.Bounds
        ) -> Iterator[tuple[bytes, int, int]]:
            found = list(find(rows, bounds))
            engine.delete_by_offset(SHARD, Offset(1))
            yield from found

        monkeypatch.setattr(reads, "superseded", find_and_delete)
        assert engine.compact(SHARD).records == 1
        left = engine.read_by_offset(SHARD, Offset(0))
        assert [record.offset for record in left] == [0, 3]


class BrokenDatabase(Database):
    """An instance that refuses every write after so many."""

    writes_left = 1 << 30

    def _try_write(self, fill: Fill) -> bool:
        if self.writes_left == 0:
            raise BusyError("no more")
        self.writes_left -= 1
        return super()._try_write(fill)


class CountingDatabase(Database):
    """An instance that notes how many rows each write has."""

    def __init__(self, path: str) -> None:
        self.rows: list[int] = []
        super().__init__(path, [DB_COLUMN_FAMILY_BROKER])

    def _try_write(self, fill: Fill) -> bool:
        batch = WriteBatch(raw_mode=True)
        fill(batch, self.opened().handles)
        self.rows.append(len(batch))
        return super()._try_write(fill)


def test_no_write_holds_up_other_threads_with_thousands_of_small_rows(path: str) -> None:
    database = CountingDatabase(path)
    with closing(RocksDBStorageEngine(database, owns_database=True)) as engine:
        engine.create_shard(SHARD, ShardConfig())
        small = [Record(value=b"v", key=b"%d" % number, tags=("t",)) for number in range(5_000)]
        assert engine.batch_write(SHARD, small).count == 5_000
        assert sum(database.rows) > 15_000
        assert max(database.rows) <= 2_100
        found = engine.read_by_tag(SHARD, "t", max_records=5_000)
        assert [record.offset for record in found] == list(range(5_000))


def large_batch() -> list[Record]:
    """Several megabytes: more than one piece."""
    return [
        Record(value=bytes(40_000), key=b"large", tags=("t",), timestamp_ms=1) for _ in range(100)
    ]


@pytest.mark.parametrize("written", [0, 1, 2, 3])
@pytest.mark.parametrize("how", ["go on", "restart"])
def test_a_large_batch_that_does_not_end_leaves_nothing(path: str, written: int, how: str) -> None:
    assert sum(len(record.value or b"") for record in large_batch()) > 3 * CHANGES_SIZE_MAX
    database = BrokenDatabase(path, [DB_COLUMN_FAMILY_BROKER])
    engine = RocksDBStorageEngine(database, owns_database=True)
    engine.create_shard(SHARD, ShardConfig())
    engine.write(SHARD, Record(value=b"before"))
    database.writes_left = written
    with pytest.raises(BusyError):
        engine.batch_write(SHARD, large_batch(), producer=Producer(1, 0, 0))
    database.writes_left = 1 << 30
    if how == "restart":
        engine.close()
        engine = RocksDBStorageEngine.open(path)
    assert [record.value for record in engine.read_by_offset(SHARD, Offset(0))] == [b"before"]
    assert engine.read_by_tag(SHARD, "t") == []
    assert engine.read_by_key(SHARD, b"large") is None
    assert engine.shard_info(SHARD).latest == 1
    # The offsets go to others now, which must not be found by the indexes of the lost batch.
    others = [Record(value=b"after", timestamp_ms=5) for _ in range(200)]
    assert not engine.batch_write(SHARD, others, producer=Producer(1, 0, 0)).repeated
    assert engine.read_by_tag(SHARD, "t") == []
    assert engine.query_by_key(SHARD, b"large") == []
    assert kinds(engine) == {"E": 1, "R": 201, "P": 1}
    engine.close()


def test_a_large_batch_is_one_write_for_readers_and_restarts(path: str) -> None:
    engine = RocksDBStorageEngine.open(path)
    engine.create_shard(SHARD, ShardConfig())
    assert engine.batch_write(SHARD, large_batch()).count == 100
    engine.close()
    with closing(RocksDBStorageEngine.open(path)) as engine:
        assert len(engine.read_by_tag(SHARD, "t", max_size=1 << 30)) == 100


def test_a_sweep_that_did_not_end_goes_on_with_the_next(path: str) -> None:
    database = BrokenDatabase(path, [DB_COLUMN_FAMILY_BROKER])
    engine = RocksDBStorageEngine(database, owns_database=True)
    engine.create_shard(SHARD, ShardConfig())
    engine.batch_write(SHARD, [rich(n) for n in range(2_000)])
    database.writes_left = 3
    assert engine.delete_records_before(SHARD, Offset(1_500)) == 1_500
    assert engine.read_by_offset(SHARD, Offset(0))[0].offset == 1_500
    assert len(engine.read_by_tag(SHARD, "t")) == 500
    assert 500 < kinds(engine)["R"] < 2_000
    database.writes_left = 1 << 30
    engine.close()
    with closing(RocksDBStorageEngine.open(path)) as engine:
        assert engine.delete_records_before(SHARD, Offset(0)) == 1_500
        assert kinds(engine)["R"] == 500


@pytest.mark.parametrize("seed", range(8))
def test_times_are_found_through_blocks_and_groups(
    path: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engine.rocksdb.shard_rows.BLOCK_BITS", 2)
    monkeypatch.setattr("penstock.engine.rocksdb.shard_rows.GROUP_BITS", 4)
    choose = random.Random(seed)
    times: dict[int, int] = {}
    latest = AdapterOffsetStrategy.LATEST
    engine = RocksDBStorageEngine.open(path)
    engine.create_shard(SHARD, ShardConfig())
    for turn in range(30):
        batch = [
            choose.randint(0, 40) + choose.choice([0, turn]) for _ in range(choose.randint(1, 9))
        ]
        first = engine.batch_write(
            SHARD, [Record(value=b"v", timestamp_ms=time) for time in batch]
        ).first
        times.update(enumerate(batch, first))
        for offset in choose.sample(sorted(times), k=min(len(times), 2)):
            if engine.delete_by_offset(SHARD, Offset(offset)):
                del times[offset]
        if turn % 7 == 6:
            earliest = engine.delete_records_before(SHARD, Offset(choose.randint(0, first)))
            times = {offset: time for offset, time in times.items() if offset >= earliest}
        if turn % 10 == 9:
            engine.close()
            engine = RocksDBStorageEngine.open(path)
        end = engine.shard_info(SHARD).latest
        for wanted in range(0, 75, 4):
            expected = min((o for o, time in times.items() if time >= wanted), default=end)
            assert engine.get_offset_by_timestamp(SHARD, wanted, latest) == expected
    engine.close()


def test_readers_see_synchronous_records_only_after_the_sync(path: str) -> None:
    database = Database(path, [DB_COLUMN_FAMILY_BROKER])
    engine = RocksDBStorageEngine(database, owns_database=True)
    engine.create_shard(SHARD, ShardConfig(flush=Flush.SYNC))
    seen: list[int] = []
    flush = database._flush_log

    def watch(rocksdb: object) -> None:
        del rocksdb
        seen.append(len(engine.read_by_offset(SHARD, Offset(0))))
        seen.append(len(engine.query_by_key(SHARD, b"0")))
        seen.append(engine.shard_info(SHARD).latest)
        flush(database.opened().database)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_flush_log", watch)
        engine.write(SHARD, rich(0))
    assert seen == [0, 0, 1]
    assert len(engine.read_by_offset(SHARD, Offset(0))) == 1
    engine.close()


def test_producers_beyond_the_bound_leave_no_rows(path: str) -> None:
    with closing(Database(path, ["rows"])) as database:
        family, keys = database.family("rows"), ShardKeys(0)
        producers = StoredProducers(family, keys, producers_max=3)
        for number in range(10):
            changes = Changes()
            producers.put(changes, Producer(number, 0, 0), 1, number, 0)
            family.write(changes)
            producers.remember(Producer(number, 0, 0), 1, number, 0)
        assert len(list(family.scan(*keys.every_producer))) <= 4
        again = StoredProducers(family, keys, producers_max=3)
        assert [again.check(Producer(n, 0, 0), 1, "s") for n in (7, 8, 9)] == [7, 8, 9]
        assert again.check(Producer(6, 0, 0), 1, "s") is None
        # More rows than a table may hold now, as after a lowered bound.
        fewer = StoredProducers(family, keys, producers_max=1)
        changes = Changes()
        fewer.put(changes, Producer(9, 0, 1), 1, 10, 0)
        family.write(changes)
        assert [offset_of(key) for key, _ in family.scan(*keys.every_producer)] == [9]


def test_a_shared_instance_outlives_the_engine_and_keeps_its_other_families(path: str) -> None:
    with closing(Database(path, [DB_COLUMN_FAMILY_BROKER, "offsets"])) as database:
        engine = RocksDBStorageEngine(database)
        engine.create_shard(SHARD, ShardConfig())
        changes = Changes()
        changes.put(b"D", b"another family")
        database.family("offsets").write(changes)
        engine.close()
        assert database.family("offsets").get(b"D") == b"another family"


class TestFormat:
    """Bytes that a released version wrote must stay readable: these are never changed."""

    def test_a_record_row_is_read_and_written_byte_for_byte(self) -> None:
        record = Record(
            value=b"value",
            key=b"key",
            tags=("t", "\udcff"),
            headers=(("h", b"1"), ("n", None)),
            timestamp_ms=2,
            expires_at_ms=3,
        )
        golden = bytes.fromhex(
            "0105000000000000000300000000000000020000000000000004000000000000000300000002"
            "000000026b6579000000017400000001ff0000000168000000013100000001"
            "6effffffff76616c7565"
        )
        assert encode_record(record, 2, 4) == golden
        decoded = decode_record(7, golden)
        assert decoded.as_record() == record
        assert (decoded.offset, decoded.store_timestamp_ms) == (7, 4)
        assert payload_size(golden) == 5 + 3 + 2 + 3

    def test_keys_are_as_they_were(self) -> None:
        keys = ShardKeys(258)
        prefix = "44" + "0000000000000102"
        assert keys.record(1).hex() == prefix + "52" + "0000000000000001"
        assert keys.named(keys.of_key(b"ab"), 1).hex() == (
            prefix + "4b" + "00000002" + "6162" + "0000000000000001"
        )
        assert keys.named(keys.of_tag("é"), 1).hex() == (
            prefix + "54" + "00000002" + "c3a9" + "0000000000000001"
        )
        assert keys.expiry(-1, 2).hex() == prefix + "58" + "7fffffffffffffff" + "0000000000000002"
        assert keys.block(1, 3).hex() == prefix + "42" + "01" + "0000000000000003"
        assert shard_row(ShardId("a_b", 3)).hex() == "53" + "00000003" + "615f62" + "00000003"
        assert shard_of_row(shard_row(ShardId("\udcff_名", 3))) == ShardId("\udcff_名", 3)
        assert (RECORD_HEAD.size, SHARD_END.size) == (42, 56)

    def test_no_name_can_look_like_another(self) -> None:
        keys = ShardKeys(0)
        names = [b"", b"\x00", b"a", b"a\x00", b"\xff" * 4, b"x" * 128, b"x" * 129, b"x" * 130]
        rows = {keys.of_key(name) for name in names}
        assert len(rows) == len(names)
        for row in rows:
            assert not any(other != row and other.startswith(row) for other in rows)
        hashed = keys.of_key(b"x" * 129)
        assert len(hashed) < 60
        assert keys.of_key(hashed[10:]) != hashed
