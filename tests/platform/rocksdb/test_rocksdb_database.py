"""The RocksDB instance below the engine: full and failing disks, stalls, damage, locks."""

from __future__ import annotations

import random
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from rocksdict import Rdict
from tests.engine.quick_directory import quick_directory

from penstock.engine.contract import ShardConfig
from penstock.engine.rocksdb import (
    DB_COLUMN_FAMILY_BROKER,
    Database,
    DatabaseSettings,
    RocksDBStorageEngine,
)
from penstock.errors import (
    BusyError,
    ClosedError,
    CorruptionError,
    DiskFailedError,
    DiskFullError,
    LockedError,
    NotAStoreError,
)
from penstock.platform.clock import SystemClock
from penstock.platform.disk import Usage
from penstock.platform.local_disk import LocalDisk
from penstock.platform.rocksdb.changes import Changes, Fill
from penstock.platform.rocksdb.family import Family
from penstock.record import Flush, Offset, Producer, Record, ShardId

SHARD = ShardId("orders", 0)
FAMILY = "rows"


def put(**rows: bytes) -> Changes:
    changes = Changes()
    for key, row in rows.items():
        changes.put(key.encode(), row)
    return changes


def rows_of(family: Family) -> list[tuple[bytes, bytes]]:
    return list(family.scan(b"", b"\xff"))


def held(engine: RocksDBStorageEngine) -> list[int]:
    found = engine.read_by_offset(SHARD, Offset(0), max_records=1 << 30, max_size=1 << 40)
    return [record.offset for record in found]


def engine_on(database: Database, flush: Flush = Flush.ASYNC) -> RocksDBStorageEngine:
    engine = RocksDBStorageEngine(database, owns_database=True)
    engine.create_shard(SHARD, ShardConfig(flush=flush))
    return engine


@pytest.fixture
def path() -> Iterator[str]:
    with quick_directory() as directory:
        yield f"{directory}/db"


class TestScanning:
    @pytest.fixture
    def family(self, path: str) -> Iterator[Family]:
        with closing(Database(path, [FAMILY])) as database:
            family = database.family(FAMILY)
            family.write(put(a=b"1", b=b"2", c=b"3", d=b"4"))
            yield family

    def test_a_range_includes_its_start_and_not_its_end(self, family: Family) -> None:
        assert [key for key, _ in family.scan(b"b", b"d")] == [b"b", b"c"]
        assert [key for key, _ in family.scan(b"bb", b"cc")] == [b"c"]
        assert list(family.scan(b"c", b"c")) == list(family.scan(b"d", b"a")) == []

    def test_a_range_is_the_same_backwards(self, family: Family) -> None:
        for start in (b"", b"a", b"b", b"bb", b"d", b"e"):
            for end in (b"", b"a", b"c", b"cc", b"d", b"e"):
                forwards = list(family.scan(start, end))
                assert list(family.scan_back(start, end)) == forwards[::-1]

    def test_scans_that_are_left_early_and_late_keep_their_bounds(self, family: Family) -> None:
        changes = Changes()
        for number in range(1_000):
            changes.put(b"n%03d" % number, b"")
        family.write(changes)
        scans = [family.scan(b"n%03d" % n, b"n%03d" % (n + 50)) for n in range(0, 900, 7)]
        # The bounds' memory would long be used for something else.
        rubbish = [b"x%03d" % n for n in range(5_000)]
        for number, scan in zip(range(0, 900, 7), scans, strict=True):
            assert [key for key, _ in scan] == [b"n%03d" % (number + n) for n in range(50)]
        assert len(rubbish) == 5_000

    def test_a_scan_shows_the_rows_of_its_beginning(self, family: Family) -> None:
        scan = family.scan(b"a", b"z")
        family.write(put(e=b"5", a=b"changed"))
        assert list(scan) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"d", b"4")]


class TestOpening:
    def test_families_that_others_made_stay_untouched(self, path: str) -> None:
        with closing(Database(path, [FAMILY, "other"])) as database:
            database.family("other").write(put(a=b"1"))
        with closing(Database(path, [FAMILY])) as database:
            database.family(FAMILY).write(put(a=b"2"))
        with closing(Database(path, ["other"])) as database:
            assert database.family("other").get(b"a") == b"1"

    def test_an_instance_in_use_is_refused(self, path: str) -> None:
        with closing(Database(path, [FAMILY])), pytest.raises(LockedError):
            Database(path, [FAMILY])

    def test_a_path_that_cannot_be_a_store_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "db").mkdir()
        (tmp_path / "db" / "CURRENT").write_text("nonsense")
        with pytest.raises((NotAStoreError, CorruptionError)):
            Database(str(tmp_path / "db"), [FAMILY])

    def test_a_closed_instance_refuses_reads_and_writes(self, path: str) -> None:
        database = Database(path, [FAMILY])
        family = database.family(FAMILY)
        database.close()
        database.close()
        with pytest.raises(ClosedError):
            family.write(put(a=b"1"))
        with pytest.raises(ClosedError):
            family.get(b"a")

    def test_a_reader_under_way_finishes_after_the_close(self, path: str) -> None:
        database = Database(path, [FAMILY])
        family = database.family(FAMILY)
        family.write(put(a=b"1", b=b"2"))
        scan = family.scan(b"a", b"z")
        next(scan)
        database.close()
        assert next(scan) == (b"b", b"2")


class FailingDatabase(Database):
    """An instance whose device fails when told to."""

    failing = False

    def _flush_log(self, database: Rdict) -> None:
        if self.failing:
            raise OSError("IO error: While fdatasync: 000004.log: Input/output error")
        super()._flush_log(database)


class TestFailedSync:
    def test_it_stops_writes_for_good_and_reads_go_on(self, path: str) -> None:
        database = FailingDatabase(path, [DB_COLUMN_FAMILY_BROKER])
        engine = engine_on(database, Flush.SYNC)
        engine.write(SHARD, Record(value=b"safe"))
        database.failing = True
        with pytest.raises(DiskFailedError):
            engine.write(SHARD, Record(value=b"not acknowledged"))
        # The next sync would succeed: the kernel has dropped the pages and thinks no more of it.
        database.failing = False
        for _ in range(2):
            with pytest.raises(DiskFailedError):
                engine.write(SHARD, Record(value=b"never"))
            with pytest.raises(DiskFailedError):
                engine.delete_by_offset(SHARD, Offset(0))
            with pytest.raises(DiskFailedError):
                engine.create_shard(ShardId("new", 0), ShardConfig())
        assert held(engine) == [0]
        assert engine.shard_info(SHARD).commit == 1
        engine.close()

    def test_it_reaches_every_writer_that_waited(self, path: str) -> None:
        database = FailingDatabase(path, [DB_COLUMN_FAMILY_BROKER])
        engine = engine_on(database, Flush.SYNC)
        database.failing = True
        failed: list[int] = []

        def write(number: int) -> None:
            with pytest.raises(DiskFailedError):
                engine.write(SHARD, Record(value=b"v"))
            failed.append(number)

        threads = [threading.Thread(target=write, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(failed) == list(range(16))
        assert held(engine) == []
        engine.close()

    def test_in_the_background_it_stops_the_next_write(self, path: str) -> None:
        settings = DatabaseSettings(flush_interval_ms=5)
        database = FailingDatabase(path, [DB_COLUMN_FAMILY_BROKER], settings=settings)
        engine = engine_on(database)
        database.failing = True

        def write_on() -> None:
            while True:
                engine.write(SHARD, Record(value=b"v"))

        with pytest.raises(DiskFailedError):
            write_on()
        engine.close()


class TestBackgroundFlush:
    def test_what_nobody_waits_for_is_synced_soon(self, path: str) -> None:
        synced = threading.Event()

        class Watched(Database):
            def _flush_log(self, database: Rdict) -> None:
                super()._flush_log(database)
                synced.set()

        database = Watched(path, [FAMILY], settings=DatabaseSettings(flush_interval_ms=5))
        with closing(database):
            database.family(FAMILY).write(put(a=b"1"))
            assert synced.wait(60)


class SteppingClock(SystemClock):
    """A clock on which waiting takes no time, and passes it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if threading.current_thread() is not threading.main_thread():
            return event.wait(seconds)
        self.now += seconds
        self.waits.append(seconds)
        return event.is_set()


class HastyClock(SystemClock):
    """A clock on which seconds pass whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 10.0
        return self.now


class StalledDatabase(Database):
    """An instance that is stalled for so many attempts."""

    stalls = 0

    def _try_write(self, fill: Fill) -> bool:
        if self.stalls:
            self.stalls -= 1
            return False
        return super()._try_write(fill)


class TestStalls:
    def test_a_write_waits_until_rocksdb_takes_it(self, path: str) -> None:
        clock = SteppingClock()
        with closing(StalledDatabase(path, [FAMILY], clock=clock)) as database:
            database.stalls = 12
            database.family(FAMILY).write(put(a=b"1"))
            assert clock.waits[:3] == [0.001, 0.002, 0.004]
            assert max(clock.waits) == 0.1
            assert rows_of(database.family(FAMILY)) == [(b"a", b"1")]

    def test_a_write_gives_up_after_the_longest_wait(self, path: str) -> None:
        clock = SteppingClock()
        settings = DatabaseSettings(stall_seconds_max=1.0)
        with closing(StalledDatabase(path, [FAMILY], settings=settings, clock=clock)) as database:
            database.stalls = 1_000
            with pytest.raises(BusyError):
                database.family(FAMILY).write(put(a=b"1"))
            assert 1.0 <= clock.now < 1.2
            database.stalls = 0
            assert rows_of(database.family(FAMILY)) == []

    def test_a_write_that_completes_another_does_not_give_up(self, path: str) -> None:
        settings = DatabaseSettings(stall_seconds_max=1.0)
        clock = SteppingClock()
        with closing(StalledDatabase(path, [FAMILY], settings=settings, clock=clock)) as database:
            database.stalls = 1_000
            database.family(FAMILY).write(put(a=b"1"), patient=True)
            assert rows_of(database.family(FAMILY)) == [(b"a", b"1")]

    def test_real_stalls_lose_nothing(self, path: str) -> None:
        settings = DatabaseSettings(write_buffer_size=64 << 10, write_buffers_max=2)
        engine = RocksDBStorageEngine.open(path, settings=settings)
        engine.create_shard(SHARD, ShardConfig())
        for _ in range(100):
            engine.batch_write(SHARD, [Record(value=bytes(5_000), key=b"k")] * 20)
        assert held(engine) == list(range(2_000))
        engine.close()


class ShrinkingDisk(LocalDisk):
    """A disk with as much room as a test says."""

    free = 1 << 40

    def usage(self, path: str) -> Usage:
        del path
        return Usage(total=1 << 41, used=(1 << 41) - self.free)


class TestFullDisk:
    def test_writes_are_refused_in_time_and_reads_and_deletes_go_on(self, path: str) -> None:
        disk = ShrinkingDisk()
        engine = engine_on(Database(path, [DB_COLUMN_FAMILY_BROKER], disk=disk))
        engine.batch_write(SHARD, [Record(value=bytes(1_000), key=b"k")] * 1_000)
        disk.free = 1 << 20
        with pytest.raises(DiskFullError):
            engine.batch_write(SHARD, [Record(value=bytes(1_000))] * 1_000)
        for _ in range(3):
            with pytest.raises(DiskFullError):
                engine.write(SHARD, Record(value=b"v"))
        assert engine.delete_by_offset(SHARD, Offset(3))
        assert engine.delete_records_before(SHARD, Offset(990)) == 990
        assert held(engine) == list(range(990, 1_000))
        disk.free = 1 << 40
        assert engine.write(SHARD, Record(value=b"v")).first == 1_000
        engine.close()

    def test_a_refused_write_that_is_there_after_all_keeps_its_offsets(self, path: str) -> None:
        class Deceived(Database):
            """An instance that hears of a full disk after RocksDB has taken the write."""

            deceived = False

            def _try_write(self, fill: Fill) -> bool:
                done = super()._try_write(fill)
                if self.deceived:
                    raise self._explain_write("IO error: No space left on device")
                return done

        clock = SteppingClock()
        database = Deceived(path, [DB_COLUMN_FAMILY_BROKER], clock=clock)
        engine = engine_on(database)
        engine.write(SHARD, Record(value=b"0", key=b"k"))
        database.deceived = True
        ghost = Record(value=b"1", key=b"ghost", tags=("ghost",))
        with pytest.raises(DiskFullError):
            engine.batch_write(SHARD, [ghost, ghost], producer=Producer(1, 0, 0))
        assert held(engine) == [0]
        database.deceived = False
        assert engine.batch_write(SHARD, [ghost] * 2, producer=Producer(1, 0, 0)).repeated
        assert engine.write(SHARD, Record(value=b"3", key=b"k")).first == 3
        assert held(engine) == [0, 1, 2, 3]
        assert [r.offset for r in engine.read_by_tag(SHARD, "ghost")] == [1, 2]
        assert [r.offset for r in engine.query_by_key(SHARD, b"k")] == [3, 0]
        engine.close()

    def test_rocksdb_is_opened_again_after_it_met_the_end_of_the_disk(self, tmp_path: Path) -> None:
        mounted = tmp_path / "small"
        mounted.mkdir()
        options = ["-t", "tmpfs", "-o", "size=8m", "none", str(mounted)]
        if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
            pytest.skip("needs the right to mount a small file system")
        try:
            self._fill_and_recover(mounted)
        finally:
            subprocess.run(["umount", "-l", str(mounted)], check=True)

    def _fill_and_recover(self, mounted: Path) -> None:
        settings = DatabaseSettings(free_size_min=0, write_buffer_size=1 << 20)
        clock = SteppingClock()
        database = Database(
            f"{mounted}/db", [DB_COLUMN_FAMILY_BROKER], settings=settings, clock=clock
        )
        engine = engine_on(database)
        written = refused = 0
        while refused < 5:
            batch = [incompressible(3 * written + n, key=b"%d" % written) for n in range(3)]
            try:
                first = engine.batch_write(SHARD, batch).first
            except DiskFullError:
                refused += 1
                clock.now += 5
                assert len(held(engine)) in (3 * written, 3 * written + 3)
            else:
                # One that was refused may be there after all, whole.
                assert first % 3 == 0
                written = first // 3 + 1
        subprocess.run(["mount", "-o", "remount,size=96m", str(mounted)], check=True)
        clock.now += 5
        last = Record(value=b"v", key=b"last")
        try:
            first = engine.write(SHARD, last).first
        except DiskFullError:  # RocksDB may tell only now of something that it did before
            clock.now += 5
            first = engine.write(SHARD, last).first
        assert first in (3 * written, 3 * written + 3)
        assert held(engine) == list(range(first + 1))
        assert engine.read_by_key(SHARD, b"last") is not None
        for number in range(written):
            assert len(engine.query_by_key(SHARD, b"%d" % number)) == 3
        engine.close()


def incompressible(seed: int, key: bytes) -> Record:
    return Record(value=random.Random(seed).randbytes(6_000), key=key)


class TestDamage:
    def fill(self, path: str) -> list[Record]:
        records = [Record(value=b"%05d" % n * 20, key=b"%d" % n, tags=("t",)) for n in range(3_000)]
        database = Database(path, [DB_COLUMN_FAMILY_BROKER])
        engine = engine_on(database)
        engine.batch_write(SHARD, records)
        database.opened().families[DB_COLUMN_FAMILY_BROKER].flush()
        engine.close()
        return records

    def test_a_damaged_block_is_reported_and_never_taken_for_the_end(self, path: str) -> None:
        records = self.fill(path)
        (table,) = Path(path).glob("*.sst")
        whole = table.read_bytes()
        reported = 0
        for position in range(0, len(whole), len(whole) // 16):
            damaged = bytearray(whole)
            damaged[position] ^= 0x10
            table.write_bytes(damaged)
            try:
                with closing(RocksDBStorageEngine.open(path)) as engine:
                    found = engine.read_by_offset(SHARD, Offset(0), max_records=10_000)
                    assert [record.value for record in found] == [r.value for r in records]
                    tagged = engine.read_by_tag(SHARD, "t", max_records=10_000)
                    assert [record.value for record in tagged] == [r.value for r in records]
            except (CorruptionError, NotAStoreError):
                reported += 1
        assert reported > 8

    def test_damage_in_the_log_before_the_durable_point_is_reported(
        self, path: str, tmp_path: Path
    ) -> None:
        database = Database(path, [DB_COLUMN_FAMILY_BROKER], clock=HastyClock())
        engine = engine_on(database, Flush.SYNC)
        for number in range(100):
            engine.write(SHARD, Record(value=b"%d" % number))
        (log,) = Path(path).glob("*.log")
        whole = log.read_bytes()
        for position in range(10, len(whole), len(whole) // 10):
            damaged = bytearray(whole)
            damaged[position] ^= 0x01
            copy = tmp_path / f"damaged{position}"
            shutil.copytree(path, copy)
            (copy / log.name).write_bytes(damaged)
            with pytest.raises(CorruptionError):
                RocksDBStorageEngine.open(str(copy))
        engine.close()

    def test_a_torn_tail_behind_the_durable_point_is_cut(self, path: str, tmp_path: Path) -> None:
        settings = DatabaseSettings(flush_interval_ms=3_600_000)
        engine = RocksDBStorageEngine.open(path, settings=settings)
        engine.create_shard(SHARD, ShardConfig())
        for number in range(20):
            engine.batch_write(SHARD, [Record(value=b"%d" % number, key=b"k", tags=("t",))] * 3)
        (log,) = Path(path).glob("*.log")
        size = log.stat().st_size
        kept = set()
        for cut in range(size - 2_500, size, 97):
            copy = tmp_path / f"cut{cut}"
            shutil.copytree(path, copy)
            with (copy / log.name).open("r+b") as file:
                file.truncate(cut)
            with closing(RocksDBStorageEngine.open(str(copy))) as torn:
                whole = held(torn)
                assert whole == list(range(torn.shard_info(SHARD).latest))
                assert len(whole) % 3 == 0
                assert len(torn.read_by_tag(SHARD, "t")) == len(whole)
                assert len(torn.query_by_key(SHARD, b"k")) == len(whole)
                assert torn.write(SHARD, Record(value=b"next")).first == len(whole)
                kept.add(len(whole))
        assert len(kept) > 2
        engine.close()

    def test_what_was_acknowledged_after_a_sync_survives_the_loss_of_all_else(
        self, path: str, tmp_path: Path
    ) -> None:
        """A power cut in its worst form: the log ends where the last sync found its end."""
        durable_size = 0

        class Measured(Database):
            def _flush_log(self, database: Rdict) -> None:
                nonlocal durable_size
                (log,) = Path(path).glob("*.log")
                size = log.stat().st_size
                super()._flush_log(database)
                durable_size = size

        engine = engine_on(Measured(path, [DB_COLUMN_FAMILY_BROKER]), Flush.SYNC)
        (log,) = Path(path).glob("*.log")
        images: list[tuple[int, list[int]]] = []
        for number in range(12):
            engine.batch_write(SHARD, [Record(value=b"%d" % number, key=b"%d" % number)] * 2)
            if number % 4 == 3:
                engine.delete_by_key(SHARD, b"%d" % (number - 1))
            if number % 5 == 4:
                engine.delete_records_before(SHARD, Offset(number))
            images.append((durable_size, held(engine)))
        for number, (size, acknowledged) in enumerate(images):
            copy = tmp_path / f"image{number}"
            shutil.copytree(path, copy)
            (copy / "DURABLE").unlink(missing_ok=True)  # of a later moment than this image
            with (copy / log.name).open("r+b") as file:
                file.truncate(size)
            with closing(RocksDBStorageEngine.open(str(copy))) as survivor:
                assert held(survivor) == acknowledged
        engine.close()
