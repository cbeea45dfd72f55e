"""A disk without a free byte: the store gives up its reserve, and can remove what is old."""

from __future__ import annotations

import errno

import pytest
from tests.engine.segment.rig import ORDERS, ROOT, Rig, create, fill, values

from penstock.engine.segment.inspect import verify
from penstock.engine.segment.retention import RetentionPolicy
from penstock.errors import DiskFailedError, DiskFullError
from penstock.testing import FOREVER, FaultyDisk, ManualClock

RESERVE = f"{ROOT}/penstock/reserve"


class SmallDisk(FaultyDisk):
    """Has no room from `fill_up` on, until the reserve is given up."""

    def fill_up(self) -> None:
        for operation in ("write", "allocate", "replace"):
            self.fail(operation, "*", errno.ENOSPC, times=FOREVER)

    def remove(self, path: str) -> None:
        super().remove(path)
        if path == RESERVE:
            self.heal()


@pytest.fixture
def disk() -> SmallDisk:
    return SmallDisk(clock=ManualClock())


@pytest.fixture
def rig(disk: SmallDisk) -> Rig:
    rig = Rig(disk=disk)
    create(rig.store)
    fill(rig.store, ORDERS, 200)
    assert len(log_files(rig)) > 3
    return rig


def log_files(rig: Rig) -> list[str]:
    return [path for path in rig.disk.files() if "/commitlog/" in path]


def test_retention_frees_a_full_disk(rig: Rig, disk: SmallDisk) -> None:
    rig.store.retention.set_policy(ORDERS, RetentionPolicy(records=10))
    disk.fill_up()
    report = rig.store.retention.run()
    assert report.records == 190
    assert len(log_files(rig)) <= 2
    assert rig.store.bounds(ORDERS).earliest == 190
    fill(rig.store, ORDERS, 20, first=200)
    for store in rig.lives():
        assert len(values(store, ORDERS)) == 30
    rig.close()
    assert verify(ROOT, disk=disk).findings == []


def test_the_oldest_file_is_removed_by_hand_on_a_full_disk(rig: Rig, disk: SmallDisk) -> None:
    before = log_files(rig)
    disk.fill_up()
    assert rig.store.retention.remove_oldest_file()
    assert log_files(rig) == before[1:]


def test_records_that_are_deleted_on_a_full_disk_stay_deleted(rig: Rig, disk: SmallDisk) -> None:
    disk.fill_up()
    rig.store._log.refuse(DiskFullError("no room for another file"))
    assert rig.store.delete_before(ORDERS, 150) == 150
    assert len(values(rig.store, ORDERS)) == 50
    assert len(values(rig.crash(5), ORDERS)) == 50
    assert len(values(rig.restart(), ORDERS)) == 50
    assert rig.store.bounds(ORDERS).earliest == 150


def test_a_store_opens_on_a_full_disk(rig: Rig, disk: SmallDisk) -> None:
    rig.close()
    disk.fill_up()
    assert len(values(rig.store, ORDERS)) == 200
    assert RESERVE not in disk.files()
    rig.store.retention.run()
    assert RESERVE in disk.files(), "there is room again"


def test_what_frees_nothing_leaves_the_reserve_alone(rig: Rig, disk: SmallDisk) -> None:
    disk.fill_up()
    with pytest.raises(DiskFullError):
        rig.store.checkpoint()
    assert RESERVE in disk.files()


def test_a_failing_disk_is_no_full_one(rig: Rig, disk: SmallDisk) -> None:
    disk.fail("replace", "*", errno.EIO, times=FOREVER)
    rig.store.retention.set_policy(ORDERS, RetentionPolicy(records=10))
    with pytest.raises(DiskFailedError):
        rig.store.retention.run()
    assert RESERVE in disk.files()
    assert len(log_files(rig)) > 3
