"""A shard can begin at any offset: what comes before is kept elsewhere, and takes no room here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.errors import NotSupportedError
from penstock.record import QueueKind, Record, ShardId

SHARD = ShardId("orders", 0)
SETTINGS = SegmentSettings(
    sizes=FileSizes(
        commit_log_file_size=1 << 16,
        consume_queue_file_size=2000,
        batch_queue_file_size=4600,
        index_slots=100,
        index_entries_max=1000,
    ),
    record_size_max=1 << 14,
    background=False,
)


@pytest.mark.parametrize("lost", ["nothing", "penstock", "consumequeue", "batchconsumequeue"])
@pytest.mark.parametrize("start", [5, 100, 12_345, 10**12])
@pytest.mark.parametrize("kind", list(QueueKind))
def test_a_shard_goes_on_where_it_was_told_to_begin(
    tmp_path: Path, kind: QueueKind, start: int, lost: str
) -> None:
    path = str(tmp_path / "store")

    def open_and_check(end: int) -> SegmentStore:
        store = SegmentStore.open(path, SETTINGS)
        bounds = store.bounds(SHARD)
        assert (bounds.earliest, bounds.commit) == (start, end)
        found = [one.offset for one in store.read(SHARD, start, max_records=1000)]
        assert found == list(range(start, end))
        return store

    with SegmentStore.open(path, SETTINGS) as store:
        store.create_shard(SHARD, kind, start_offset=start)
        assert store.bounds(SHARD).commit == start
    with open_and_check(start) as store:
        for n in range(250):
            assert store.append(SHARD, Record(b"value %d" % n)) == start + n
    shutil.rmtree(f"{path}/{lost}", ignore_errors=True)
    with open_and_check(start + 250) as store:
        assert store.append(SHARD, Record(b"next")) == start + 250
    used = sum(each.stat().st_blocks * 512 for each in Path(path).rglob("*") if each.is_file())
    assert used < 4 << 20


def test_a_journal_line_alone_brings_the_start_back(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    with SegmentStore.open(path, SETTINGS) as store:
        store.create_shard(SHARD, start_offset=777)
    shutil.rmtree(f"{path}/penstock/shards", ignore_errors=True)
    for each in Path(path, "penstock").glob("state*"):
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    with SegmentStore.open(path, SETTINGS) as store:
        assert store.append(SHARD, Record(b"next")) == 777


def test_a_deleted_shard_begins_again_at_zero_only(tmp_path: Path) -> None:
    with SegmentStore.open(str(tmp_path / "store"), SETTINGS) as store:
        store.create_shard(SHARD, start_offset=10)
        store.delete_shard(SHARD)
        with pytest.raises(NotSupportedError, match="another data directory"):
            store.create_shard(SHARD, start_offset=10)
        store.create_shard(SHARD)
        assert store.append(SHARD, Record(b"first")) == 0
