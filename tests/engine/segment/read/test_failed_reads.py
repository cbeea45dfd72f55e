"""A read that fails says which file it was and why, and that only reads are concerned."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.engine.segment.rig import ORDERS, QUIET, Rig, create, fill, record
from tests.ordinary_user import ordinary_user

from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.store import SegmentStore
from penstock.errors import DiskFailedError, ReadOnlyError, StoreError
from penstock.platform.local_disk import LocalDisk
from penstock.platform.local_file import LocalFile
from penstock.testing import FOREVER

QUEUE = "consumequeue/orders/0/00000000000000000000"


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.EIO, DiskFailedError),
        (errno.EACCES, ReadOnlyError),
        (errno.EPERM, ReadOnlyError),
    ],
)
@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.read(ORDERS, 0),
        lambda store: store.read(ORDERS, 0, max_records=1),
        lambda store: store.read_raw(ORDERS, 0),
        lambda store: list(store.read_arrow(ORDERS)),
        lambda store: store.newest_by_key(ORDERS, b"key-1"),
        lambda store: store.query_by_key(ORDERS, b"key-1"),
        lambda store: store.offset_by_timestamp(ORDERS, 0),
    ],
)
def test_a_failed_read_names_the_file_and_stops_no_writes(
    read: Callable[[SegmentStore], object], number: int, error: type[StoreError]
) -> None:
    rig = Rig()
    create(rig.store)
    fill(rig.store, ORDERS, 25)
    rig.restart()
    rig.disk.fail("open", "store/consumequeue/orders/0/*", number, times=FOREVER)
    where = r"^store/consumequeue/orders/0/\d{20}: cannot be read"
    with pytest.raises(error, match=where) as raised:
        read(rig.store)
    assert "the log takes no more writes" not in str(raised.value)
    rig.disk.heal()
    assert rig.store.append(ORDERS, record(25)) == 25
    assert len(rig.store.read(ORDERS, 0)) == 26


def test_an_open_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SegmentStore.open(str(tmp_path / "store"), QUIET) as store:
        create(store)
        fill(store, ORDERS, 25)
    with SegmentStore.open(str(tmp_path / "store"), QUIET) as store:

        def fail(*_: object) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr("os.pread", fail)
            with pytest.raises(
                DiskFailedError, match=r"/orders/0/\d{20}: cannot be read: Input/output"
            ):
                store.read(ORDERS, 0, max_records=5)
            patch.undo()
            patch.setattr(LocalFile, "read_at", fail)
            with pytest.raises(DiskFailedError, match=r"^the queue of 'orders_0': cannot be read"):
                store.read(ORDERS, 0, max_records=5)


def test_a_reader_without_permission_is_told_which_file(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    with ordinary_user(own):
        with SegmentStore.open(str(own / "store"), QUIET) as store:
            create(store)
            fill(store, ORDERS, 25)
        (own / "store" / QUEUE).chmod(0)
        with (
            ReadOnlyStore.open(str(own / "store"), disk=LocalDisk()) as view,
            pytest.raises(ReadOnlyError, match=f"{QUEUE}: cannot be read: Permission denied; let"),
        ):
            view.read(ORDERS, 0)
        (own / "store" / QUEUE).chmod(0o600)
