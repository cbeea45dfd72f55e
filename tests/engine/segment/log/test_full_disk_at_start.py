"""A start on a disk without a free byte: refused, nothing lost, readable meanwhile."""

from __future__ import annotations

import errno

import pytest
from tests.engine.segment.rig import ORDERS, ROOT, Rig, create, fill, record, values

from penstock.engine.segment.inspect import verify
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.errors import DiskFullError
from penstock.testing import FOREVER


def stopped(*, clean: bool) -> Rig:
    rig = Rig()
    create(rig.store)
    fill(rig.store, ORDERS, 80)
    rig.store.run_upkeep()
    if clean:
        rig.close()
    else:
        rig.abandon()
        rig.disk.kill()
    return rig


def fill_up(rig: Rig) -> None:
    rig.disk.fail("write", "*", errno.ENOSPC, times=FOREVER)
    rig.disk.fail("allocate", "*", errno.ENOSPC, times=FOREVER)
    rig.disk.fail("replace", "*", errno.ENOSPC, times=FOREVER)


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_a_full_disk_refuses_a_start_and_loses_nothing(clean: bool) -> None:
    rig = stopped(clean=clean)
    logs = {path: data for path, data in rig.disk.files().items() if "/commitlog/" in path}
    fill_up(rig)
    for _ in range(2):
        with pytest.raises(DiskFullError, match="no space for store/"):
            _ = rig.store
        found = rig.disk.files()
        assert {path: found.get(path) for path in logs} == logs
    with ReadOnlyStore.open(ROOT, disk=rig.disk, clock=rig.clock) as view:
        assert len(view.read(ORDERS, 0, max_records=100)) == 80
    rig.disk.heal()
    assert len(values(rig.store, ORDERS)) == 80
    assert rig.store.append(ORDERS, record(80)) == 80
    rig.close()
    assert verify(ROOT, disk=rig.disk).findings == []
