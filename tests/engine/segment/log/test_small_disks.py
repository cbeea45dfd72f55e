"""Stores on disks that are smaller than a file of the default size, and on disks that are full."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engine.segment.rig import ORDERS, ROOT, SIZES, Rig, create

import penstock
from penstock.engine.segment.settings import MIB, FileSizes, SegmentSettings
from penstock.errors import DiskFullError
from penstock.record import Record
from penstock.settings import EMBEDDED, SERVE, keeps_default_sizes, merge_settings
from penstock.testing import FaultyDisk

LARGE = FileSizes(
    commit_log_file_size=1024 * MIB, index_slots=5_000_000, index_entries_max=20_000_000
)


MEDIUM = FileSizes(commit_log_file_size=16 * MIB, index_slots=1_000, index_entries_max=1_000)


def rig_on(capacity: int, sizes: FileSizes = LARGE, *, fit_sizes: bool = False) -> Rig:
    wanted = SegmentSettings(sizes=sizes, background=False, fit_sizes=fit_sizes)
    return Rig(wanted, disk=FaultyDisk(capacity=capacity))


def test_a_new_store_on_a_small_disk_has_files_that_fit() -> None:
    rig = rig_on(200 * MIB, fit_sizes=True)
    create(rig.store)
    rig.store.append(ORDERS, Record(b"v", b"k"))
    sizes = rig.store._parts.sizes
    assert sizes.commit_log_file_size == 16 * MIB
    assert sizes.index_file_size <= 16 * MIB
    rig.restart()
    assert rig.store._parts.sizes == sizes
    assert [record.value for record in rig.store.by_key(ORDERS, b"k")] == [b"v"]


def test_sizes_that_were_asked_for_are_not_changed_by_a_small_disk() -> None:
    with pytest.raises(DiskFullError):
        _ = rig_on(200 * MIB).store


def test_a_store_that_could_not_be_created_is_created_once_the_disk_has_room() -> None:
    rig = rig_on(8 * MIB, MEDIUM)
    with pytest.raises(DiskFullError):
        _ = rig.store
    assert not [path for path in rig.disk.files() if path.endswith("store.properties")]
    rig.disk.capacity = 200 * MIB
    create(rig.store)
    rig.store.append(ORDERS, Record(b"v", b"k"))
    assert rig.store._parts.sizes.commit_log_file_size == 16 * MIB


def test_an_index_file_takes_no_more_room_than_a_file_of_the_log() -> None:
    for log_size in (4096, MIB, 64 * MIB, 1024 * MIB):
        sizes = FileSizes(log_size, 20_000, 46_000, 5_000_000, 20_000_000).with_small_index()
        assert sizes.index_file_size <= max(log_size, 25_000)
    assert LARGE.with_small_index() == LARGE


def test_only_default_sizes_are_fitted_to_the_disk() -> None:
    assert keeps_default_sizes(SERVE) == keeps_default_sizes(EMBEDDED) == (True, True)
    small = merge_settings(SERVE, {"broker": {"commit_log_file_size": 8 * MIB}})
    assert keeps_default_sizes(small) == (False, True)
    slots = merge_settings(SERVE, {"engine": {"index_slots": 77}})
    assert keeps_default_sizes(slots) == (True, False)


def test_a_small_log_has_small_index_files_unless_they_were_asked_for(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "a", broker={"commit_log_file_size": 2 * MIB}) as store:
        store.create_topic("t").write(b"v", key=b"k")
    found = list((tmp_path / "a" / "segment" / "index").iterdir())
    assert found
    assert all(path.stat().st_size <= 2 * MIB for path in found)


def test_a_disk_above_the_warning_level_refuses_writes_from_the_start() -> None:
    settings = SegmentSettings(sizes=SIZES, background=False)
    rig = Rig(settings, disk=FaultyDisk(capacity=MIB))
    create(rig.store)
    rig.store.append(ORDERS, Record(b"v"))
    rig.close()
    used = rig.disk.usage(ROOT).used
    rig.disk.replace("filler", bytes(round(0.94 * MIB) - used))
    with pytest.raises(DiskFullError, match="disk_space_warning_level_ratio"):
        rig.store.append(ORDERS, Record(b"v"))
    assert [record.value for record in rig.store.read(ORDERS, 0)] == [b"v"]
    rig.disk.remove("filler")
    rig.store.run_upkeep()
    assert rig.store.append(ORDERS, Record(b"v")) == 1
