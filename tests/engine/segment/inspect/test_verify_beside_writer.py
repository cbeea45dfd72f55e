"""A full check beside a writer in another process tells no tales."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.engine.segment.readonly.sample_store import ORDERS, QUIET, flip
from tests.engine.segment.readonly.test_readonly_beside_writer import open_soon, writer

from penstock.engine.segment.inspect import verify
from penstock.engine.segment.inspect.log_check import LogCheck
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


@pytest.mark.parametrize("moment", ["_check_file", "_check_rest"])
@pytest.mark.parametrize("publishes", [True, False])
def test_a_shard_deleted_and_made_again_under_every_look_is_no_damage(
    publishes: bool, moment: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = ShardId("again", 0)
    looks = 0
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

        change()
        store.run_upkeep()
        usual = getattr(LogCheck, moment)

        def disturbed(self: LogCheck, *arguments: int) -> object:
            nonlocal looks
            if moment == "_check_rest" or arguments[0] == 0:
                looks += 1
                change()
            return usual(self, *arguments)

        monkeypatch.setattr(LogCheck, moment, disturbed)
        assert verify(str(copy), clock=ManualClock()).findings == []
        flip(copy / "consumequeue/orders/0" / f"{0:020d}", 25)
        report = verify(str(copy), clock=ManualClock())
        assert {each.path for each in report.findings} == {f"{copy}/consumequeue/orders/0/{0:020d}"}
        assert looks >= 4


def test_a_shard_made_again_and_not_yet_published_is_no_damage(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = ShardId("again", 0)
    with SegmentStore.open(str(copy), QUIET) as store:
        store.create_shard(again)
        store.append_many(again, [Record(b"v", key=b"k") for _ in range(40)])
        store.delete_offsets(again, [3])
        store.run_upkeep()
        monkeypatch.setattr(store._upkeep, "publish_soon", lambda: None)
        store.delete_shard(again)
        store.create_shard(again)
        report = verify(str(copy), clock=ManualClock())
        assert report.findings == []
        assert any("again_0" in note for note in report.notes)


def test_a_store_whose_writer_was_killed_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with writer("append", path):
        open_soon(path)
        time.sleep(1)
    assert verify(str(path)).findings == []
