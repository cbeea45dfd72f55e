"""Rebuilding everything derived from the log."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.codec.golden_store import GoldenStore
from tests.engine.segment.readonly.sample_store import EVENTS, ORDERS, ORDERS_COUNT, QUIET, flip

from penstock.engine.segment.inspect import rebuild, verify
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.store import SegmentStore
from penstock.errors import CorruptionError, LockedError, NotAStoreError


def everything(path: Path) -> list[object]:
    view = ReadOnlyStore.open(str(path))
    return [
        *(view.read(shard, 0) for shard in (ORDERS, EVENTS)),
        *(list(view.by_key(ORDERS, b"o-%d" % number)) for number in range(20)),
        view.offset_by_timestamp(ORDERS, 1_001_234),
    ]


def test_a_rebuilt_store_is_whole_and_answers_as_before(copy: Path) -> None:
    before = everything(copy)
    shutil.rmtree(copy / "consumequeue")
    flip(min((copy / "index").iterdir()), 1_000)
    flip(min((copy / "batchconsumequeue" / "events" / "3").iterdir()), 50)
    calls: list[tuple[int, int]] = []
    report = rebuild(str(copy), progress=lambda done, total: calls.append((done, total)))
    assert report.records_scanned >= ORDERS_COUNT
    assert report.rebuilt
    assert calls
    assert everything(copy) == before
    assert verify(str(copy)).findings == []


def test_rebuilding_a_whole_store_changes_no_queue(copy: Path) -> None:
    queues = {path: path.read_bytes() for path in copy.glob("*consumequeue/*/*/*")}
    rebuild(str(copy))
    assert {path: path.read_bytes() for path in copy.glob("*consumequeue/*/*/*")} == queues


def test_rocketmqs_queues_and_indexes_come_out_as_rocketmq_wrote_them(
    golden: GoldenStore, golden_copy: Path
) -> None:
    for name in ("consumequeue", "batchconsumequeue", "index"):
        shutil.rmtree(golden_copy / name)
    rebuild(str(golden_copy))
    for name in ("consumequeue", "batchconsumequeue"):
        expected = {
            path.relative_to(golden.root): path.read_bytes()
            for path in (golden.root / name).rglob("*")
            if path.is_file()
        }
        found = {path: (golden_copy / path).read_bytes() for path in expected}
        assert found == expected
    indexes = [path.read_bytes() for path in sorted((golden_copy / "index").iterdir())]
    assert indexes == golden.index_files()


def test_a_store_in_use_is_not_rebuilt(copy: Path) -> None:
    with SegmentStore.open(str(copy), QUIET), pytest.raises(LockedError):
        rebuild(str(copy))


def test_a_directory_that_is_no_store_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError):
        rebuild(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_store_whose_log_cannot_be_opened_keeps_what_is_derived(golden_copy: Path) -> None:
    """What is derived could not be built again, and is all that tells where records were."""
    first, middle, _ = sorted((golden_copy / "commitlog").iterdir())
    whole = middle.read_bytes()
    damages: list[Callable[[], object]] = [
        lambda: middle.write_bytes(whole[:1000]),
        lambda: middle.write_bytes(b""),
        middle.unlink,
        lambda: middle.write_bytes(whole + b"more"),
        lambda: (golden_copy / "store.properties").write_text("mappedFileSizeCommitLog=x"),
    ]
    for damage in damages:
        damage()
        before = files_of(golden_copy)
        with pytest.raises((NotAStoreError, CorruptionError)):
            rebuild(str(golden_copy))
        (golden_copy / "lock").unlink()
        assert files_of(golden_copy) == before
        middle.write_bytes(whole)
    assert first.exists()


def files_of(path: Path) -> dict[Path, bytes | None]:
    return {each: each.read_bytes() if each.is_file() else None for each in path.rglob("*")}


def test_other_files_beside_the_index_are_left_alone(copy: Path) -> None:
    (copy / "index" / "readme").write_bytes(b"mine")
    rebuild(str(copy))
    assert (copy / "index" / "readme").read_bytes() == b"mine"
