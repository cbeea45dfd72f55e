"""Log files are mapped when they are needed, within a bound, and let go when they are idle."""

from __future__ import annotations

from pathlib import Path

from penstock.disk_local import LocalDisk
from penstock.engine.segment.file_set import FileSet

SIZE = 4096


def file_set(tmp_path: Path, mapped_bytes_max: int) -> FileSet:
    files = FileSet(LocalDisk(), str(tmp_path), SIZE, mapped_bytes_max)
    for number in range(8):
        files.create(number * SIZE)
    return files


def test_no_more_than_the_bound_is_mapped(tmp_path: Path) -> None:
    files = file_set(tmp_path, 3 * SIZE)
    for base in files.bases:
        files.buffer(base)
        assert files.mapped_bytes <= 3 * SIZE
    files.close()


def test_idle_files_are_unmapped_and_used_ones_stay(tmp_path: Path) -> None:
    files = file_set(tmp_path, 8 * SIZE)
    for base in files.bases:
        files.buffer(base)
    files.unmap_idle()
    assert files.mapped_bytes == 8 * SIZE
    files.buffer(0)
    files.unmap_idle()
    assert files.mapped_bytes == SIZE
    files.unmap_idle()
    assert files.mapped_bytes == 0
    files.close()


def test_a_file_in_use_is_not_unmapped_under_its_reader(tmp_path: Path) -> None:
    files = file_set(tmp_path, 8 * SIZE)
    view = files.buffer(SIZE)
    for _ in range(3):
        files.unmap_idle()
    assert files.mapped_bytes == SIZE
    assert bytes(view[:4]) == bytes(4)
    del view
    files.unmap_idle()
    assert files.mapped_bytes == 0
    files.close()
