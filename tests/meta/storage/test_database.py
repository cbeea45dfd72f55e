"""RocksDB behind its seam: batches, syncs, scans, and errors that say what to do."""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Event
from typing import cast

import pytest
from rocksdict import Rdict

from penstock.errors import (
    BusyError,
    ClosedError,
    CorruptionError,
    DiskFailedError,
    DiskFullError,
    LockedError,
    NotAStoreError,
)
from penstock.meta.storage.database import Batch, RocksDatabase
from penstock.platform.clock import SystemClock
from penstock.platform.disk import Usage
from penstock.platform.local_disk import LocalDisk


def open_database(path: Path) -> RocksDatabase:
    return RocksDatabase.open(str(path / "db"), ["a", "b"])


def test_a_batch_is_written_whole_over_several_families(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    batch = Batch()
    batch.put("a", b"1", b"one")
    batch.put("b", b"1", b"uno")
    batch.put("a", b"2", b"two")
    batch.delete("a", b"2")
    database.write(batch)
    database.put("a", b"", b"the empty key")
    database.sync()
    assert database.get("a", b"1") == b"one"
    assert database.get("b", b"1") == b"uno"
    assert database.get("a", b"2") is None
    assert database.get("a", b"") == b"the empty key"
    database.close()
    again = open_database(tmp_path)
    assert again.get("a", b"1") == b"one"
    again.close()


def test_a_scan_is_bounded_ordered_and_sees_one_moment(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    for key in (b"c", b"a", b"b", b"d"):
        database.put("a", key, key * 2)
    database.put("b", b"b", b"elsewhere")
    scan = database.scan("a", b"a", b"d")
    assert next(scan) == (b"a", b"aa")
    database.put("a", b"bb", b"later")
    assert list(scan) == [(b"b", b"bb"), (b"c", b"cc")]
    batch = Batch()
    batch.delete_range("a", b"b", b"d")
    database.write(batch)
    assert [key for key, _ in database.scan("a", b"", b"z")] == [b"a", b"d"]
    database.close()


def test_what_was_written_survives_a_kill_without_a_sync(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    database.put("a", b"k", b"v")
    shutil.copytree(tmp_path / "db", tmp_path / "image" / "db")
    database.close()
    image = open_database(tmp_path / "image")
    assert image.get("a", b"k") == b"v"
    image.close()


def test_a_directory_that_is_open_is_locked_until_it_is_closed(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    with pytest.raises(LockedError, match="open already"):
        open_database(tmp_path)
    database.close()
    database.close()
    open_database(tmp_path).close()


def test_a_closed_database_says_so(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    database.close()
    batch = Batch()
    batch.put("a", b"k", b"v")
    with pytest.raises(ClosedError):
        database.get("a", b"k")
    with pytest.raises(ClosedError):
        database.put("a", b"k", b"v")
    with pytest.raises(ClosedError):
        database.write(batch)
    with pytest.raises(ClosedError):
        database.sync()
    with pytest.raises(ClosedError):
        list(database.scan("a", b"", b"z"))


class ShrinkingDisk(LocalDisk):
    """A disk with as much room as a test says."""

    free = 1 << 40

    def usage(self, path: str) -> Usage:
        del path
        return Usage(total=1 << 41, used=(1 << 41) - self.free)


def test_while_little_room_is_left_writers_are_refused_before_they_begin(tmp_path: Path) -> None:
    disk = ShrinkingDisk()
    database = RocksDatabase.open(str(tmp_path / "db"), ["a"], disk=disk)
    put = database.putter("a")
    put(b"k", b"v")
    disk.free = 1 << 20
    with pytest.raises(DiskFullError, match="bytes are free"):
        database.check_room(1 << 20)
    for _ in range(3):
        with pytest.raises(DiskFullError):
            database.check_room(1)
    batch = Batch()
    batch.put("a", b"l", b"what completes something is written")
    database.write(batch)
    assert database.get("a", b"k") == b"v"
    disk.free = 1 << 40
    database.check_room(1)
    database.close()


def test_a_database_that_lost_synced_changes_does_not_open(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    for number in range(200):
        database.put("a", b"%d" % number, bytes(50))
    database.sync()
    database._database._point.write()
    database.put("a", b"unsynced", b"")
    reported = 0
    (log,) = (tmp_path / "db").glob("*.log")
    size = log.stat().st_size
    for position in range(0, size, size // 15):
        image = tmp_path / f"image{position}"
        shutil.copytree(tmp_path / "db", image / "db", ignore=shutil.ignore_patterns("LOCK"))
        data = bytearray(log.read_bytes())
        data[position] ^= 0x10
        (image / "db" / log.name).write_bytes(data)
        try:
            damaged = open_database(image)
        except CorruptionError:
            reported += 1
            with pytest.raises(CorruptionError, match="on the device are gone"):
                open_database(image)
        else:
            assert sum(1 for _ in damaged.scan("a", b"", b"z")) >= 200, position
            damaged.close()
    assert reported >= 10
    database.close()


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "db").write_text("a file, not a directory")
    with pytest.raises(NotAStoreError, match="cannot be opened"):
        open_database(tmp_path)


def test_a_damaged_table_ends_a_scan_with_an_error_and_not_early(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    for number in range(2_000):
        database.put("a", number.to_bytes(4, "big"), number.to_bytes(4, "big") * 50)
    database.close()
    open_database(tmp_path).close()  # moves the rows from the log into a table
    table = max((tmp_path / "db").glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    for position in range(20_000, 20_200):
        data[position] ^= 0xFF
    table.write_bytes(data)
    damaged = open_database(tmp_path)
    with pytest.raises(CorruptionError):
        list(damaged.scan("a", b"", b"\xff" * 8))
    damaged.close()


def test_a_row_put_alone_waits_for_room_and_gives_up_after_a_while(tmp_path: Path) -> None:
    class Impatient(SystemClock):
        def __init__(self) -> None:
            self.seconds = 0.0
            self.waits = 0

        def monotonic(self) -> float:
            return self.seconds

        def wait(self, event: Event, seconds: float) -> bool:
            del event
            self.seconds += seconds
            self.waits += 1
            return False

    class Stalled:
        def put(self, *_: object) -> None:
            raise Exception("Result incomplete: Write stall")  # noqa: TRY002 - as rocksdict does

        write = put

    clock = Impatient()
    database = RocksDatabase.open(str(tmp_path / "db"), ["a"], clock=clock)
    shared = database._database
    real = shared._opened
    assert real is not None
    stalled = cast("Rdict", Stalled())
    shared._opened = real._replace(database=stalled, families={"a": stalled})
    with pytest.raises(BusyError, match="try again later"):
        database.put("a", b"k", b"v")
    assert clock.waits > 100
    shared._opened = real
    assert database.get("a", b"k") is None
    database.put("a", b"k", b"v")
    assert database.get("a", b"k") == b"v"
    del real
    database.close()


def test_after_a_failed_sync_nothing_is_taken_any_more(tmp_path: Path) -> None:
    class Broken:
        def latest_sequence_number(self) -> int:
            return 1

        def flush_wal(self, _sync: bool) -> None:
            raise Exception("IO error: While fdatasync")  # noqa: TRY002 - as rocksdict does

    database = open_database(tmp_path)
    put = database.putter("a")
    put(b"k", b"v")
    shared = database._database
    real = shared._opened
    assert real is not None
    shared._opened = real._replace(database=cast("Rdict", Broken()))
    with pytest.raises(DiskFailedError):
        database.sync()
    shared._opened = real
    del real
    with pytest.raises(DiskFailedError):
        put(b"k", b"w")
    with pytest.raises(DiskFailedError):
        database.sync()
    assert database.get("a", b"k") == b"v"
    database.close()
