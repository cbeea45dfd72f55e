"""`store.properties` may be lost or damaged: what it said is in its copy, and comes back."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from tests.engine.segment.rig import ORDERS, SIZES, Rig, create, fill, offsets

from penstock.engine.segment.inspect import verify
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.settings import SegmentSettings

PROPERTIES = "store/store.properties"
COPY = "store/penstock/store.properties"
ANY = SegmentSettings(background=False)


def filled() -> Rig:
    """Return a closed store, whose next opener does not say its sizes."""
    rig = Rig()
    create(rig.store)
    fill(rig.store, ORDERS, 25)
    rig.close()
    return Rig(ANY, disk=rig.disk, clock=rig.clock)


def flipped(data: bytes) -> bytes:
    return data.replace(b"maxIndexNum=60", b"maxIndexNum=61")


LOSSES: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda _: None,
    "empty": lambda _: b"",
    "cut in half": lambda data: data[: len(data) // 2],
    "changed": flipped,
    "garbage": lambda data: bytes(len(data)),
}


def spoil(rig: Rig, path: str, loss: str) -> None:
    left = LOSSES[loss](rig.disk.files()[path])
    if left is None:
        rig.disk.remove(path)
    else:
        rig.disk.replace(path, left)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_properties_are_restored_from_their_copy_and_nothing_is_built_anew(loss: str) -> None:
    rig = filled()
    whole = rig.disk.files()
    spoil(rig, PROPERTIES, loss)
    with ReadOnlyStore.open("store", disk=rig.disk, clock=rig.clock) as view:
        assert len(view.query_by_key(ORDERS, b"key-1")) == 5
    report = rig.store.report
    assert report.rebuilt == ["store.properties"]
    assert report.records_scanned == 0
    assert rig.store._parts.sizes == SIZES
    assert rig.store._log.files.strict
    assert offsets(rig.store, ORDERS) == list(range(25))
    rig.close()
    files = rig.disk.files()
    assert files[PROPERTIES] == files[COPY] == whole[PROPERTIES]
    assert {path for path in files if "/index/" in path} == {
        path for path in whole if "/index/" in path
    }
    assert rig.store.report.rebuilt == []


@pytest.mark.parametrize("loss", LOSSES)
def test_the_copy_is_written_anew(loss: str) -> None:
    rig = filled()
    whole = rig.disk.files()[COPY]
    spoil(rig, COPY, loss)
    assert rig.store.report.rebuilt == []
    assert rig.disk.files()[COPY] == whole


def test_a_full_disk_does_not_keep_a_store_without_copy_from_opening() -> None:
    rig = filled()
    rig.disk.remove(COPY)
    rig.disk.fail("replace", COPY, errno.ENOSPC)
    assert offsets(rig.store, ORDERS) == list(range(25))
    assert not rig.disk.exists(COPY)
    rig.restart()
    assert rig.disk.exists(COPY)


@pytest.mark.parametrize("path", [PROPERTIES, COPY])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_check_names_the_file_and_finds_nothing_else(path: str, loss: str) -> None:
    rig = filled()
    spoil(rig, path, loss)
    before = rig.disk.files()
    found = verify("store", disk=rig.disk, clock=rig.clock).findings
    # Stores of earlier versions have no copy.
    expected = [] if (path, loss) == (COPY, "missing") else [path]
    assert [each.path for each in found] == expected
    assert rig.disk.files() == before


def test_a_store_without_both_opens_with_the_sizes_of_its_files() -> None:
    rig = filled()
    rig.disk.remove(PROPERTIES)
    rig.disk.remove(COPY)
    store = rig.store
    assert store._parts.sizes.commit_log_file_size == SIZES.commit_log_file_size
    assert offsets(store, ORDERS) == list(range(25))
    assert rig.disk.exists(PROPERTIES)
    assert rig.disk.exists(COPY)


def test_whoever_edits_the_properties_by_hand_is_believed() -> None:
    rig = filled()
    lines = rig.disk.files()[PROPERTIES].splitlines(keepends=True)
    edited = b"".join(line for line in lines if not line.startswith(b"penstock"))
    rig.disk.replace(PROPERTIES, edited + b"flushDiskType=SYNC_FLUSH\n")
    for _ in range(2):
        assert not rig.store._log.files.strict
        assert rig.store.report.rebuilt == []
        rig.close()
    assert rig.disk.files()[PROPERTIES] == edited + b"flushDiskType=SYNC_FLUSH\n"
    rig.disk.remove(PROPERTIES)
    assert not rig.store._log.files.strict, "the copy follows"
