"""Files are mapped when they are needed, within a bound, and let go when idle; warmed unseen."""

from __future__ import annotations

from pathlib import Path

from penstock.disk_local import LocalDisk
from penstock.engine.segment.file_set import FileSet
from penstock.engine.segment.inspect import verify
from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.record import Record, ShardId

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


def test_warming_ahead_changes_nothing_that_is_read(tmp_path: Path) -> None:
    orders = ShardId("orders", 0)
    sizes = FileSizes(commit_log_file_size=1 << 16, index_slots=500, index_entries_max=1_000)
    settings = SegmentSettings(sizes=sizes, background=False)
    for _ in range(2):
        with SegmentStore.open(str(tmp_path / "data"), settings) as store:
            store.create_shard(orders)
            for number in range(1_200):
                store.append(orders, Record(b"%d" % number, b"k%d" % number))
                if number % 100 == 0:
                    store._upkeep._warm()
            store.run_upkeep()
            store._upkeep._warm()
            for number in range(0, 1_200, 7):
                found = store.newest_by_key(orders, b"k%d" % number)
                assert found is not None
                assert found.value == b"%d" % number
    assert verify(str(tmp_path / "data")).findings == []
