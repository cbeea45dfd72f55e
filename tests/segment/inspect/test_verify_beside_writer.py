"""A full check beside a writer in another process tells no tales."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.segment.view.sample_store import ORDERS, QUIET, flip
from tests.segment.view.test_view_beside_writer import open_soon, writer

from penstock.engine.segment.inspect import verify
from penstock.engine.segment.store import SegmentStore
from penstock.record import Record, ShardId
from penstock.testing.manual_clock import ManualClock


@pytest.mark.parametrize(
    "mode",
    ["append", "remove", "truncate", "delete", pytest.param("recreate", marks=pytest.mark.soak)],
)
def test_a_store_that_is_being_written_is_whole(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with writer(mode, path):
        open_soon(path)
        checks = records = 0
        until = time.monotonic() + 60
        while (checks < 10 or records <= 100) and time.monotonic() < until:
            report = verify(str(path))
            assert report.findings == []
            checks += 1
            records = max(records, report.checked.records)
    assert records > 100
    assert verify(str(path)).findings == []


@pytest.mark.parametrize("publishes", [True, False])
def test_a_shard_deleted_and_made_again_under_every_look_is_no_damage(
    publishes: bool, copy: Path
) -> None:
    again = ShardId("again", 0)
    with SegmentStore.open(str(copy), QUIET) as store:

        def change() -> None:
            store.delete_shard(again)
            store.create_shard(again)
            # Seldom as many as before: each life has other units in its files.
            count = store.bounds(ORDERS).end_position % 97
            records = [Record(b"v", key=b"k") for _ in range(count)]
            store.append_many(again, [Record(b"first"), *records])
            store.delete_offsets(again, [0])
            if publishes:
                store.run_upkeep()

        seen = 0

        def disturb(what: str, done: int, _: int) -> None:
            nonlocal seen
            if what == "commit log":
                if done <= seen or not seen:
                    change()  # in the midst of each check
                seen = done

        change()
        store.run_upkeep()
        report = verify(str(copy), clock=ManualClock(), progress=disturb)
        assert report.findings == []
        assert any("again_0" in note for note in report.notes)
        flip(copy / "consumequeue/orders/0" / f"{0:020d}", 25)
        report = verify(str(copy), clock=ManualClock(), progress=disturb)
        assert {each.path for each in report.findings} == {f"{copy}/consumequeue/orders/0/{0:020d}"}


def test_a_store_whose_writer_was_killed_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with writer("append", path):
        open_soon(path)
        time.sleep(1)
    assert verify(str(path)).findings == []
