"""The contract of `Disk`, checked against every implementation.

A sentence of `penstock/platform/disk.py` without a test here is one that callers may not rely on.
What only one of the disks can show (other processes, power cuts) is tested in files of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import LockedError
from penstock.platform.disk import Disk
from penstock.platform.local_disk import LocalDisk
from penstock.testing import FaultyDisk

DISKS: dict[str, Callable[[], Disk]] = {"local": LocalDisk, "faulty": FaultyDisk}


@pytest.fixture(params=DISKS)
def disk(request: pytest.FixtureRequest) -> Disk:
    return DISKS[str(request.param)]()


@pytest.fixture
def root(disk: Disk, tmp_path: Path) -> str:
    """An empty directory."""
    disk.make_directory(str(tmp_path))
    return str(tmp_path)


def test_opening_a_missing_file_raises(disk: Disk, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/missing")
    assert disk.list(root) == []


def test_creating_makes_the_directories_too(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a/b/file", create=True)
    assert file.path == f"{root}/a/b/file"
    assert file.size() == 0
    file.close()
    assert disk.list(f"{root}/a") == ["b"]
    assert disk.is_directory(f"{root}/a/b")
    assert not disk.is_directory(f"{root}/a/b/file")


def test_creating_an_existing_file_keeps_its_bytes(disk: Disk, root: str) -> None:
    disk.replace(f"{root}/file", b"old")
    file = disk.open(f"{root}/file", create=True)
    assert file.read_at(0, 10) == b"old"
    file.close()


def test_reads_are_short_only_at_the_end(disk: Disk, root: str) -> None:
    disk.replace(f"{root}/file", b"0123456789")
    file = disk.open(f"{root}/file", writable=False)
    assert file.read_at(2, 3) == b"234"
    assert file.read_at(8, 5) == b"89"
    assert file.read_at(10, 5) == b""
    assert file.read_at(100, 5) == b""
    file.close()


def test_a_write_behind_the_end_leaves_zeros_between(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/file", create=True)
    file.write_at(3, memoryview(b"abc"))
    file.write_at(1, b"x")
    file.write_at(6, b"")
    assert file.read_at(0, 100) == b"\0x\0abc"
    assert file.size() == 6
    file.close()


def test_truncate_cuts_and_grows_with_zeros(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/file", create=True)
    file.write_at(0, b"x" * 10)
    file.truncate(4)
    file.truncate(8)
    assert file.read_at(0, 100) == b"xxxx\0\0\0\0"
    file.close()


def test_allocate_grows_with_zeros_and_never_cuts(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/file", create=True)
    file.write_at(0, b"abc")
    file.allocate(10_000)
    assert file.size() == 10_000
    assert file.read_at(0, 10_000) == b"abc".ljust(10_000, b"\0")
    file.allocate(0)
    file.allocate(5)
    assert file.size() == 10_000
    file.close()


def test_written_ranges_hold_every_byte_that_is_not_zero(disk: Disk, root: str) -> None:
    size = 1 << 20
    file = disk.open(f"{root}/file", create=True)
    file.allocate(size)
    # Some file systems cannot tell what was never written.
    assert file.written_ranges(0) in ([], [(0, size)])
    mapping = file.map(writable=True)
    view = mapping.buffer
    view[70_000] = 1
    view[900_000:900_010] = b"0123456789"
    file.write_at(300_000, b"x")
    for start in (0, 70_000, 70_001, 300_000, 900_005, size - 1, size):
        ranges = file.written_ranges(start)
        assert ranges == sorted(ranges)
        assert all(start <= begin < end <= size for begin, end in ranges)
        rest = bytearray(view)
        for begin, end in ranges:
            rest[begin:end] = bytes(end - begin)
        assert not any(rest[start:])
    view.release()
    assert mapping.release()
    file.close()


def test_a_handle_opened_for_reading_refuses_changes(disk: Disk, root: str) -> None:
    disk.replace(f"{root}/file", b"abc")
    file = disk.open(f"{root}/file", writable=False)
    with pytest.raises(PermissionError):
        file.map(writable=True)
    with pytest.raises(OSError):
        file.write_at(0, b"x")
    with pytest.raises(OSError):
        file.truncate(0)
    file.sync()
    assert file.read_at(0, 3) == b"abc"
    file.close()


def test_a_closed_file_refuses_everything_and_may_be_closed_again(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/file", create=True)
    file.close()
    file.close()
    for call in (lambda: file.read_at(0, 1), file.sync, file.size):
        with pytest.raises(OSError):
            call()


def test_stores_into_a_mapping_are_stores_into_the_file(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/file", create=True)
    file.allocate(8192)
    mapping = file.map(writable=True)
    mapping.buffer[4096:4099] = b"abc"
    file.write_at(0, b"head")
    assert bytes(mapping.buffer[:4]) == b"head"
    file.sync()
    assert file.read_at(4096, 3) == b"abc"
    assert mapping.release()
    file.close()


def test_a_mapping_outlives_its_file_handle(disk: Disk, root: str) -> None:
    disk.replace(f"{root}/file", b"abc")
    file = disk.open(f"{root}/file")
    mapping = file.map(writable=True)
    file.close()
    mapping.buffer[0] = ord("x")
    assert mapping.release()
    again = disk.open(f"{root}/file")
    assert again.read_at(0, 3) == b"xbc"
    again.close()


def test_a_mapping_for_reading_cannot_be_written(disk: Disk, root: str) -> None:
    disk.replace(f"{root}/file", b"abc")
    file = disk.open(f"{root}/file", writable=False)
    mapping = file.map(writable=False)
    with pytest.raises(TypeError):
        mapping.buffer[0] = 1
    assert bytes(mapping.buffer) == b"abc"
    assert mapping.release()
    file.close()


def test_a_mapping_stays_while_somebody_holds_a_view(disk: Disk, root: str) -> None:
    disk.replace(f"{root}/file", b"abc")
    file = disk.open(f"{root}/file")
    mapping = file.map(writable=True)
    other = file.map(writable=False)
    whole = mapping.buffer
    part = whole[1:]
    assert not mapping.release()
    whole.release()
    assert not mapping.release()
    assert bytes(part) == b"bc"
    assert bytes(mapping.buffer) == b"abc"
    part.release()
    assert mapping.release()
    assert mapping.release()
    with pytest.raises(ValueError, match=r"closed|released"):
        _ = mapping.buffer
    assert other.release()
    file.close()


def test_an_empty_file_maps_to_no_bytes(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/file", create=True)
    mapping = file.map(writable=True)
    assert len(mapping.buffer) == 0
    assert mapping.release()
    file.close()


@pytest.mark.parametrize("durable", [True, False])
def test_replace_puts_exactly_the_new_bytes(disk: Disk, root: str, durable: bool) -> None:
    disk.replace(f"{root}/deep/file", b"long old bytes", durable=durable)
    disk.replace(f"{root}/deep/file", b"new", durable=durable)
    file = disk.open(f"{root}/deep/file")
    assert file.read_at(0, 100) == b"new"
    file.close()
    assert disk.list(f"{root}/deep") == ["file"]


def test_who_has_the_old_file_open_keeps_reading_it(disk: Disk, root: str) -> None:
    disk.replace(f"{root}/file", b"old")
    file = disk.open(f"{root}/file")
    disk.replace(f"{root}/file", b"new")
    assert file.read_at(0, 3) == b"old"
    file.close()


def test_replacing_from_many_threads_never_mixes_two_contents(disk: Disk, root: str) -> None:
    contents = [bytes([number]) * (1000 + number) for number in range(8)]

    def replace(content: bytes) -> None:
        for _ in range(10):
            disk.replace(f"{root}/file", content, durable=False)

    threads = [threading.Thread(target=replace, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file = disk.open(f"{root}/file")
    assert file.read_at(0, 5000) in contents
    file.close()
    assert disk.list(root) == ["file"]


def test_replacing_a_directory_raises_and_leaves_nothing(disk: Disk, root: str) -> None:
    disk.make_directory(f"{root}/directory")
    with pytest.raises(IsADirectoryError):
        disk.replace(f"{root}/directory", b"bytes")
    assert disk.list(root) == ["directory"]


def test_many_files_are_replaced_together(disk: Disk, root: str) -> None:
    disk.replace(f"{root}/a/0", b"long old bytes")
    files = [(f"{root}/{part}/{n}", b"%d" % n) for part in ("a", "b") for n in range(20)]
    disk.replace_together(files)
    for path, data in files:
        file = disk.open(path)
        assert file.read_at(0, 100) == data
        file.close()
    assert len(disk.list(f"{root}/a")) == len(disk.list(f"{root}/b")) == 20


def test_files_replaced_together_are_not_replaced_when_one_cannot_be(disk: Disk, root: str) -> None:
    disk.replace(f"{root}/a", b"old")
    disk.make_directory(f"{root}/b")
    with pytest.raises(IsADirectoryError):
        disk.replace_together([(f"{root}/b", b"new"), (f"{root}/a", b"new")])
    file = disk.open(f"{root}/a")
    assert file.read_at(0, 100) == b"old"
    file.close()
    assert disk.list(root) == ["a", "b"]


def test_names_are_listed_in_order(disk: Disk, root: str) -> None:
    for name in ("b", "a", "c/d"):
        disk.replace(f"{root}/{name}", b"")
    assert disk.list(root) == ["a", "b", "c"]
    assert disk.list(f"{root}/missing") == []
    with pytest.raises(NotADirectoryError):
        disk.list(f"{root}/a")


def test_making_a_directory_twice_is_nothing(disk: Disk, root: str) -> None:
    disk.make_directory(f"{root}/a/b")
    disk.make_directory(f"{root}/a/b/")
    assert disk.list(f"{root}/a") == ["b"]
    assert disk.exists(f"{root}/a/b")


def test_a_directory_cannot_take_the_place_of_a_file(disk: Disk, root: str) -> None:
    disk.replace(f"{root}/file", b"abc")
    for path in (f"{root}/file", f"{root}/file/below"):
        with pytest.raises(NotADirectoryError):
            disk.make_directory(path)


def test_a_directory_is_no_file(disk: Disk, root: str) -> None:
    disk.make_directory(f"{root}/directory")
    with pytest.raises(IsADirectoryError):
        disk.open(f"{root}/directory")
    with pytest.raises(OSError):
        disk.remove(f"{root}/directory")
    assert disk.is_directory(f"{root}/directory")


def test_removing_is_idempotent(disk: Disk, root: str) -> None:
    disk.replace(f"{root}/a/file", b"abc")
    disk.remove(f"{root}/a/file")
    disk.remove(f"{root}/a/file")
    assert not disk.exists(f"{root}/a/file")
    disk.replace(f"{root}/a/b/file", b"abc")
    disk.remove_tree(f"{root}/a")
    disk.remove_tree(f"{root}/a")
    assert disk.list(root) == []


def test_remove_tree_removes_a_single_file_too(disk: Disk, root: str) -> None:
    disk.replace(f"{root}/file", b"abc")
    disk.remove_tree(f"{root}/file")
    assert disk.list(root) == []


def test_a_directory_can_be_synced(disk: Disk, root: str) -> None:
    disk.sync_directory(root)
    with pytest.raises(FileNotFoundError):
        disk.sync_directory(f"{root}/missing")


def test_a_file_knows_when_it_was_modified(disk: Disk, root: str) -> None:
    disk.replace(f"{root}/file", b"abc")
    assert disk.modified_ms(f"{root}/file") > 1_600_000_000_000
    with pytest.raises(FileNotFoundError):
        disk.modified_ms(f"{root}/missing")


def test_usage_lies_between_empty_and_full(disk: Disk, root: str) -> None:
    usage = disk.usage(root)
    assert 0 <= usage.used <= usage.total
    assert 0.0 <= usage.ratio <= 1.0


def test_a_lock_has_one_holder_at_a_time(disk: Disk, root: str) -> None:
    first = disk.lock(f"{root}/store/lock")
    with pytest.raises(LockedError, match="lock"):
        disk.lock(f"{root}/store/lock")
    other = disk.lock(f"{root}/store/other")
    first.release()
    first.release()
    second = disk.lock(f"{root}/store/lock")
    first.release()
    with pytest.raises(LockedError):
        disk.lock(f"{root}/store/lock")
    second.release()
    other.release()


@pytest.mark.parametrize("count", [1, 200])
def test_files_and_directories_are_synced_together_but_not_what_was_removed(
    disk: Disk, root: str, count: int
) -> None:
    disk.make_directory(f"{root}/many", durable=False)
    files = [f"{root}/many/{number}" for number in range(count)]
    for path in files:
        file = disk.open(path, create=True)
        file.write_at(0, b"bytes")
        file.close()
    disk.sync_together([*files, f"{root}/gone/file"], [f"{root}/many", root, f"{root}/gone"])
    disk.sync_together([], [])
    assert len(disk.list(f"{root}/many")) == count


def test_a_link_is_a_second_name_that_no_other_file_has(disk: Disk, root: str) -> None:
    disk.replace(f"{root}/a", b"first")
    disk.replace(f"{root}/taken", b"other")
    disk.link(f"{root}/a", f"{root}/b")
    disk.remove(f"{root}/a")
    assert disk.status(f"{root}/a") is None
    status = disk.status(f"{root}/b")
    assert status is not None
    assert status.size == 5
    with pytest.raises(FileExistsError):
        disk.link(f"{root}/b", f"{root}/taken")
    with pytest.raises(FileNotFoundError):
        disk.link(f"{root}/missing", f"{root}/c")
    disk.rename(f"{root}/b", f"{root}/taken")
    assert disk.list(root) == ["taken"]
    file = disk.open(f"{root}/taken", writable=False)
    buffer = bytearray(9)
    assert file.read_into(1, memoryview(buffer)) == 4
    assert bytes(buffer) == b"irst\0\0\0\0\0"
    file.close()


def test_a_walk_yields_every_file_below_a_directory(disk: Disk, root: str) -> None:
    for name in ("a/b/one", "a/two", "three"):
        disk.open(f"{root}/{name}", create=True).close()
    disk.make_directory(f"{root}/empty")
    assert sorted(disk.walk(root)) == [f"{root}/a/b/one", f"{root}/a/two", f"{root}/three"]
    assert list(disk.walk(f"{root}/missing")) == []
    assert disk.status(f"{root}/empty") is not None


def test_a_lock_that_is_waited_for_is_had_by_one_at_a_time(disk: Disk, root: str) -> None:
    held = disk.wait_for_lock(f"{root}/turn")
    got: list[str] = []

    def wait() -> None:
        lock = disk.wait_for_lock(f"{root}/turn")
        got.append("second")
        lock.release()

    thread = threading.Thread(target=wait)
    thread.start()
    got.append("first")
    held.release()
    thread.join(60)
    assert got == ["first", "second"]
