"""What only a real disk can show: other processes, allocated blocks, errors of the system."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.ordinary_user import ordinary_user

from penstock.errors import LockedError
from penstock.platform import file_system_sync, local_file
from penstock.platform.local_disk import LocalDisk

HOLD = """
import sys
from penstock.platform import file_system_sync
from penstock.platform.local_disk import LocalDisk
lock = LocalDisk().lock(sys.argv[1])
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_lock_of_another_process_is_refused_and_names_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(LockedError) as caught:
            LocalDisk().lock(path)
        assert path in str(caught.value)
        if sys.platform == "linux":
            assert f"process {holder.pid}" in str(caught.value)
        holder.kill()
    LocalDisk().lock(path).release()


def test_a_lock_held_here_keeps_another_process_out(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    lock = LocalDisk().lock(path)
    # Refused attempts in this process must not drop the lock, as closing a descriptor would.
    with pytest.raises(LockedError):
        LocalDisk().lock(path)
    other = subprocess.run(
        [sys.executable, "-c", HOLD, path],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert b"LockedError" in other.stderr
    lock.release()


def test_an_allocated_file_has_its_blocks(tmp_path: Path) -> None:
    file = LocalDisk().open(str(tmp_path / "file"), create=True)
    file.truncate(1 << 20)
    file.allocate(1 << 20)
    file.close()
    assert (tmp_path / "file").stat().st_blocks * 512 >= 1 << 20


def test_where_allocation_is_not_supported_zeros_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, position: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    file = LocalDisk().open(str(tmp_path / "file"), create=True)
    file.write_at(0, b"abc")
    file.allocate((3 << 20) + 1)
    assert file.size() == (3 << 20) + 1
    assert file.read_at(0, 4) == b"abc\0"
    file.close()
    assert (tmp_path / "file").stat().st_blocks * 512 >= 3 << 20


def test_a_failed_allocation_gives_back_what_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(descriptor: int, position: int, size: int) -> None:
        os.ftruncate(descriptor, size // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", fill)
    file = LocalDisk().open(str(tmp_path / "file"), create=True)
    file.write_at(0, b"abc")
    with pytest.raises(OSError) as caught:
        file.allocate(1 << 20)
    assert caught.value.errno == errno.ENOSPC
    assert file.size() == 3
    file.close()


def test_short_transfers_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread, pwrite = os.pread, os.pwrite

    def read_three(descriptor: int, size: int, position: int) -> bytes:
        return pread(descriptor, min(size, 3), position)

    def write_three(descriptor: int, data: bytes | memoryview, position: int) -> int:
        return pwrite(descriptor, data[:3], position)

    monkeypatch.setattr(os, "pread", read_three)
    monkeypatch.setattr(os, "pwrite", write_three)
    file = LocalDisk().open(str(tmp_path / "file"), create=True)
    file.write_at(1, b"0123456789")
    file.write_at(4, memoryview(b"abcde"))
    assert file.read_at(0, 50) == b"\x00012abcde89"
    assert file.read_at(1, 10) == b"012abcde89"
    file.close()


def test_a_failed_replace_keeps_the_old_bytes_and_no_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LocalDisk()
    disk.replace(str(tmp_path / "file"), b"old")

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(local_file, "sync_descriptor", fail)
    with pytest.raises(OSError):
        disk.replace(str(tmp_path / "file"), b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert disk.list(str(tmp_path)) == ["file"]


def test_what_an_earlier_crash_left_aside_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "file.0.tmp").write_bytes(b"much longer remains of a replacement")
    LocalDisk().replace(str(tmp_path / "file"), b"new")
    assert LocalDisk().list(str(tmp_path)) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"new"


def test_relative_paths_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    disk = LocalDisk()
    disk.make_directory("store/queue")
    disk.replace("file", b"abc")
    disk.lock("lock").release()
    assert disk.list(".") == ["file", "lock", "store"]


def test_missing_permission_is_an_error_of_the_system(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    with ordinary_user(own):
        LocalDisk().open(str(own / "file"), create=True).close()
        own.chmod(0o500)
        with pytest.raises(PermissionError):
            LocalDisk().open(str(own / "other"), create=True)
        own.chmod(0o700)


def mapped_kib(path: str) -> int:
    """How much of a file this process has in its page tables."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.endswith(path))
    resident = next(line for line in lines[start:] if line.startswith("Rss:"))
    return int(resident.split()[1])


@pytest.mark.skipif(sys.platform != "linux", reason="pages are let go on Linux only")
def test_pages_that_are_let_go_keep_what_was_stored(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    file = LocalDisk().open(path, create=True)
    size = 9 << 20
    file.allocate(size)
    mapping = file.map(writable=True)
    data = bytes(range(251)) * (size // 251)
    with mapping.buffer as buffer:
        buffer[: len(data)] = data
        assert mapped_kib(path) >= 9000
        mapping.drop_pages(5000, size - 5000)
        # What is left are the page before the first whole one, and those behind the last.
        assert mapped_kib(path) <= 32
        assert buffer[: len(data)] == data
        mapping.drop_pages(0, size)
    assert file.read_at(0, len(data)) == data
    assert mapping.release()
    mapping.drop_pages(0, size)  # nothing is there any more
    file.close()


def test_files_are_replaced_together_while_the_interpreter_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    LocalDisk().replace_together([(f"{tmp_path}/{number}", b"new") for number in range(20)])
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {b"new"}
    assert len(list(tmp_path.iterdir())) == 20


def test_when_one_of_many_files_cannot_be_synced_none_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0").write_bytes(b"old")
    written = LocalDisk._write_new

    def fail(self: LocalDisk, path: str, data: bytes, *, durable: bool) -> None:
        if "/7." in path:
            raise OSError(errno.EIO, "no luck", path)
        written(self, path, data, durable=durable)

    monkeypatch.setattr(LocalDisk, "_write_new", fail)
    with pytest.raises(OSError, match="no luck"):
        LocalDisk().replace_together([(f"{tmp_path}/{number}", b"new") for number in range(20)])
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    assert (tmp_path / "0").read_bytes() == b"old"


def test_a_directory_is_made_although_another_thread_removes_the_empty_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, removals = os.mkdir, 2

    def rival(path: str, mode: int) -> None:
        nonlocal removals
        if path.endswith("/queue") and removals:
            removals -= 1
            os.rmdir(tmp_path / "topic")
        make(path, mode)

    monkeypatch.setattr(os, "mkdir", rival)
    LocalDisk().make_directory(f"{tmp_path}/topic/queue")
    assert (tmp_path / "topic/queue").is_dir()
    assert removals == 0


def test_a_disk_is_as_full_as_df_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that nobody but root may use are not there for a store, and are not used either."""
    status = SimpleNamespace(f_blocks=1000, f_bfree=600, f_bavail=100, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: status)
    usage = LocalDisk().usage(str(tmp_path))
    assert usage == (500 * 4096, 400 * 4096)
    assert usage.ratio == pytest.approx(0.8)


def test_many_files_are_synced_by_one_call_and_its_failure_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not file_system_sync.supported:
        pytest.skip("this system has no syncfs that reports errors")
    disk, calls = LocalDisk(), list[int]()
    files = [f"{tmp_path}/{number % 7}/{number}" for number in range(200)]
    for path in files:
        disk.open(path, create=True).close()
    answers = iter([0, -1])

    def counted(descriptor: int) -> int:
        calls.append(descriptor)
        return next(answers)

    monkeypatch.setattr(file_system_sync, "_syncfs", counted)
    disk.sync_together(files, [str(tmp_path)])
    assert len(calls) == 1
    with pytest.raises(OSError):
        disk.sync_together(files, [])
