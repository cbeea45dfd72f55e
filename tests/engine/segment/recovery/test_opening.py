"""Opening and closing a directory: whose it is, what is refused, what comes back."""

from __future__ import annotations

import errno
import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.engine.segment.rig import (
    EVENTS,
    ORDERS,
    QUIET,
    SIZES,
    Rig,
    create,
    fill,
    offsets,
    record,
)
from tests.engine.segment.shard_model import ShardModel, check_shard
from tests.ordinary_user import ordinary_user

from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.errors import (
    ClosedError,
    CorruptionError,
    DiskFailedError,
    LockedError,
    NotAStoreError,
    ReadOnlyError,
    RecordTooLargeError,
    SettingsError,
    StoreError,
)
from penstock.record import Flush, QueueKind, Record
from penstock.testing import FaultyDisk


def filled() -> tuple[Rig, ShardModel]:
    rig = Rig()
    create(rig.store)
    model = ShardModel()
    model.append(fill(rig.store, ORDERS, 25))
    return rig, model


# Closing


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "let go"])
def test_a_store_that_nobody_uses_does_not_stay_in_memory(tmp_path: Path, closed: bool) -> None:
    store = SegmentStore.open(str(tmp_path / "store"), QUIET)
    store.create_shard(ORDERS, flush=Flush.SYNC)
    store.append(ORDERS, record(1))
    log = weakref.ref(store._log)
    if closed:
        store.close()
    del store
    gc.collect()
    assert log() is None


def test_closing_twice_is_closing_once() -> None:
    rig, _ = filled()
    store = rig.store
    store.close()
    files = rig.disk.files()
    store.close()
    assert rig.disk.files() == files
    assert "store/abort" not in files


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.append(ORDERS, record(0)),
        lambda store: store.append_many(ORDERS, [record(0)]),
        lambda store: store.read(ORDERS, 0),
        lambda store: store.read_raw(ORDERS, 0),
        lambda store: list(store.read_arrow(ORDERS)),
        lambda store: store.newest_by_key(ORDERS, b"k"),
        lambda store: store.offset_by_timestamp(ORDERS, 0),
        lambda store: store.bounds(ORDERS),
        lambda store: store.create_shard(EVENTS),
        lambda store: store.delete_offsets(ORDERS, [0]),
        lambda store: store.delete_before(ORDERS, 1),
        lambda store: store.seal(ORDERS),
        lambda store: store.truncate(ORDERS, 0),
        lambda store: store.set_epoch(ORDERS, 1),
        lambda store: store.flush(),
        lambda store: store.checkpoint(),
        lambda store: store.run_upkeep(),
    ],
)
def test_nothing_can_be_done_with_a_closed_store(call: Callable[[SegmentStore], object]) -> None:
    rig, model = filled()
    store = rig.store
    rig.close()
    before = rig.disk.files()
    with pytest.raises(ClosedError, match="was closed"):
        call(store)
    assert rig.disk.files() == before
    check_shard(rig.store, ORDERS, model)


def test_leaving_a_with_block_closes() -> None:
    rig = Rig()
    with SegmentStore.open("other", QUIET, disk=rig.disk, clock=rig.clock) as store:
        create(store)
    with pytest.raises(ClosedError):
        store.read(ORDERS, 0)


def test_a_clean_start_scans_nothing_and_a_start_after_a_kill_only_the_rest() -> None:
    rig, _ = filled()
    report = rig.restart().report
    assert (report.clean_stop, report.records_scanned, report.bytes_scanned) == (True, 0, 0)
    rig.store.checkpoint()
    fill(rig.store, ORDERS, 3, first=25)
    report = rig.kill().report
    assert (report.clean_stop, report.records_scanned) == (False, 3)


# Who may open


def test_a_second_opener_is_refused_and_does_no_harm() -> None:
    rig, model = filled()
    files = rig.disk.files()
    with pytest.raises(LockedError):
        SegmentStore.open("store", QUIET, disk=rig.disk, clock=rig.clock)
    assert rig.disk.files() == files
    check_shard(rig.store, ORDERS, model)
    rig.close()
    SegmentStore.open("store", QUIET, disk=rig.disk, clock=rig.clock).close()


def test_a_start_that_failed_lets_go_of_the_directory() -> None:
    rig, model = filled()
    rig.close()
    rig.disk.fail("map", "*/commitlog/*")
    with pytest.raises(Exception, match="commitlog"):
        _ = rig.store
    rig.disk.heal()
    check_shard(rig.store, ORDERS, model)


def test_a_directory_with_something_else_is_no_store() -> None:
    disk = FaultyDisk()
    disk.replace("home/letters.txt", b"dear reader")
    with pytest.raises(NotAStoreError, match=r"letters\.txt"):
        SegmentStore.open("home", QUIET, disk=disk)
    assert list(disk.files()) == ["home/letters.txt"]


def test_a_file_instead_of_a_directory_is_no_store() -> None:
    disk = FaultyDisk()
    disk.replace("letters.txt", b"dear reader")
    with pytest.raises(NotAStoreError, match=r"letters\.txt"):
        SegmentStore.open("letters.txt", QUIET, disk=disk)


def test_other_sizes_than_the_stores_own_are_refused_by_name() -> None:
    rig, model = filled()
    rig.close()
    for field in SIZES.__struct_fields__:
        other = msgspec.structs.replace(SIZES, **{field: getattr(SIZES, field) * 2})
        with pytest.raises(SettingsError, match=field):
            SegmentStore.open(
                "store", SegmentSettings(sizes=other, background=False), disk=rig.disk
            )
    mine = SegmentSettings(background=False)
    store = SegmentStore.open("store", mine, disk=rig.disk, clock=rig.clock)
    check_shard(store, ORDERS, model)


def test_impossible_sizes_are_refused_and_nothing_is_created() -> None:
    for sizes in (
        FileSizes(commit_log_file_size=100),
        FileSizes(commit_log_file_size=1 << 31),
        FileSizes(consume_queue_file_size=5),
        FileSizes(index_slots=0),
        FileSizes(index_entries_max=1),
    ):
        disk = FaultyDisk()
        with pytest.raises(SettingsError):
            SegmentStore.open("store", SegmentSettings(sizes=sizes), disk=disk)
        assert disk.files() == {}


@pytest.mark.parametrize(
    "sizes",
    [
        {"index_slots": 1 << 29},
        {"index_entries_max": 107_374_183},
        {"consume_queue_file_size": 1 << 31},
        {"consume_queue_file_size": (1 << 31) - 1},
        {"batch_queue_file_size": 1 << 63},
    ],
)
def test_files_of_2_gib_are_refused_and_nothing_is_created(sizes: dict[str, int]) -> None:
    disk = FaultyDisk()
    settings = SegmentSettings(sizes=msgspec.structs.replace(SIZES, **sizes))
    with pytest.raises(SettingsError, match=f"{next(iter(sizes))}.* below 2 GiB"):
        SegmentStore.open("store", settings, disk=disk)
    assert disk.files() == {}
    assert not disk.exists("store")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("record_size_max", 0),
        ("record_size_max", 1 << 31),
        ("flush_interval_ms", -1),
        ("open_files_max", 0),
        ("mapped_bytes_max", -1),
        ("file_reserved_time_h", -1),
        ("file_reserved_time_h", float("nan")),
        ("delete_when", "x"),
        ("delete_when", "24"),
        ("store_host", b"xx"),
        ("disk_max_used_space_ratio", -1),
    ],
)
def test_impossible_settings_are_refused_by_name_and_nothing_is_created(
    name: str, wrong: object
) -> None:
    disk = FaultyDisk()
    settings = msgspec.structs.replace(QUIET, **{name: wrong})
    with pytest.raises(SettingsError, match=name):
        SegmentStore.open("store", settings, disk=disk)
    assert disk.files() == {}
    assert not disk.exists("store")


def test_control_records_may_be_larger_than_what_users_append() -> None:
    rig = Rig(msgspec.structs.replace(QUIET, record_size_max=130))
    create(rig.store)
    rig.store.append(ORDERS, Record(b"x", timestamp_ms=1))
    for _ in range(20):
        rig.store.append(ORDERS, Record(b"y", timestamp_ms=1))
    rig.store.delete_offsets(ORDERS, range(0, 20, 2))
    with pytest.raises(RecordTooLargeError, match="the limit is 130"):
        rig.store.append(ORDERS, Record(b"z" * 100, timestamp_ms=1))
    for store in rig.lives():
        assert offsets(store, ORDERS) == [*range(1, 20, 2), 20]


def test_a_foreign_file_among_the_logs_is_refused() -> None:
    for name, size in (("00000000000000000100", 8192), ("00000000000000008192", 9000)):
        rig, _ = filled()
        rig.close()
        rig.disk.replace(f"store/commitlog/{name}", bytes(size))
        before = rig.disk.files()
        with pytest.raises((NotAStoreError, CorruptionError), match=name):
            _ = rig.store
        assert rig.disk.files() == before


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("size", [0, 100, 200])
def test_a_file_of_the_log_that_was_cut_is_refused_by_name(number: int, size: int) -> None:
    rig, model = filled()
    model.append(fill(rig.store, ORDERS, 300, first=1000))
    rig.close()
    name = [name for name in rig.disk.list("store/commitlog") if int(name) <= 6 * 8192][number]
    path = f"store/commitlog/{name}"
    whole = rig.disk.files()[path]
    rig.disk.replace(path, whole[:size])
    before = rig.disk.files()
    for _ in range(2):
        with pytest.raises((NotAStoreError, CorruptionError), match=name):
            _ = rig.store
    assert rig.disk.files() == before, "nothing is created or repaired"
    rig.disk.replace(path, whole)
    check_shard(rig.store, ORDERS, model)


def test_files_of_other_names_are_left_alone() -> None:
    rig, model = filled()
    rig.close()
    others = ["store/commitlog/notes", "store/consumequeue/orders/0/x.tmp", "store/index/readme"]
    for path in others:
        rig.disk.replace(path, b"mine")
    check_shard(rig.store, ORDERS, model)
    rig.restart()
    assert all(rig.disk.files()[path] == b"mine" for path in others)


def test_a_directory_without_permission_is_named(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    with ordinary_user(own):
        SegmentStore.open(str(own / "store"), QUIET).close()
        own.chmod(0o500)
        with pytest.raises(ReadOnlyError, match="other"):
            SegmentStore.open(str(own / "other"), QUIET)
        own.chmod(0o700)


@pytest.mark.parametrize(
    ("number", "error", "sentence"),
    [
        (errno.ENOENT, NotAStoreError, "cannot be made there; choose another directory"),
        (errno.ENOTDIR, NotAStoreError, "a part of this path is a file"),
        (errno.EACCES, ReadOnlyError, "must be allowed to read and to write"),
        (errno.EROFS, ReadOnlyError, "Read-only file system"),
        (errno.EIO, DiskFailedError, "Input/output error; nothing was opened"),
    ],
)
def test_a_directory_that_cannot_be_made_is_named_with_what_to_do(
    number: int, error: type[StoreError], sentence: str
) -> None:
    disk = FaultyDisk()
    disk.fail("make_directory", "store", number)
    with pytest.raises(error, match=f"^store: .*{sentence}") as raised:
        SegmentStore.open("store", QUIET, disk=disk)
    assert "the log takes no more writes" not in str(raised.value)


def test_a_disk_without_permission_is_named() -> None:
    rig, model = filled()
    rig.close()
    rig.disk.fail("open", "*/commitlog/*", 13)
    with pytest.raises(ReadOnlyError, match="commitlog"):
        _ = rig.store
    rig.disk.heal()
    check_shard(rig.store, ORDERS, model)


# Where things lie


def test_the_parts_of_a_store_may_lie_on_different_disks() -> None:
    settings = msgspec.structs.replace(
        QUIET,
        commit_log_path="disk1/log",
        consume_queue_path="disk2/queues",
        index_path="disk3/index",
    )
    rig = Rig(settings)
    create(rig.store)
    create(rig.store, EVENTS, kind=QueueKind.BATCH)
    orders, events = ShardModel(), ShardModel()
    orders.append(fill(rig.store, ORDERS, 50))
    events.append(fill(rig.store, EVENTS, 50))
    for store in rig.lives():
        check_shard(store, ORDERS, orders)
        check_shard(store, EVENTS, events)
    tops = {path.split("/")[0] for path in rig.disk.files()}
    assert tops == {"store", "disk1", "disk2", "disk3"}
    assert not any(
        name in rig.disk.list("store") for name in ("commitlog", "consumequeue", "index")
    )
    for seed in range(3):
        copy = rig.copy()
        check_shard(copy.crash(seed), ORDERS, orders)


def test_a_real_directory_behaves_alike(tmp_path: Path) -> None:
    model = ShardModel()
    path = str(tmp_path / "deep" / "store")
    with SegmentStore.open(path, QUIET) as store:
        create(store)
        model.append(fill(store, ORDERS, 100))
        store.run_upkeep()
        check_shard(store, ORDERS, model)
        with pytest.raises(LockedError):
            SegmentStore.open(path, QUIET)
    with SegmentStore.open(path, QUIET) as store:
        check_shard(store, ORDERS, model)


def test_an_empty_store_opens_and_closes() -> None:
    rig = Rig()
    for store in rig.lives():
        assert store.shards() == []
    rig.close()
    assert rig.crash(1).shards() == []
