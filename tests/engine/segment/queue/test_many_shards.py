"""What thousands of shards cost a checkpoint: few syncs, however many files there are."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Final

import pytest
from tests.engine.segment.rig import QUIET, Rig

from penstock.engine.segment.store import SegmentStore
from penstock.platform import file_system_sync
from penstock.record import Record, ShardId

SHARDS: Final = 300


def test_closing_a_store_of_many_shards_syncs_no_file_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not file_system_sync.supported:
        pytest.skip("this system has no syncfs that reports errors")
    syncs = 0
    sync, sync_data = os.fsync, os.fdatasync

    def count(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        sync(descriptor)

    def count_data(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        sync_data(descriptor)

    with SegmentStore.open(str(tmp_path), QUIET) as store:
        for number in range(SHARDS):
            shard = ShardId("many", number)
            store.create_shard(shard)
            store.append(shard, Record(b"v", b"k"))
        monkeypatch.setattr(os, "fsync", count)
        monkeypatch.setattr(os, "fdatasync", count_data)
    assert syncs < SHARDS
    monkeypatch.undo()
    with SegmentStore.open(str(tmp_path), QUIET) as store:
        assert all(store.bounds(ShardId("many", n)).commit == 1 for n in range(SHARDS))


@pytest.mark.parametrize("seed", range(8))
def test_queues_of_many_new_shards_survive_a_power_cut_after_a_checkpoint(seed: int) -> None:
    rig = Rig(QUIET)
    shards = [ShardId("many", number) for number in range(40)]
    for shard in shards:
        rig.store.create_shard(shard)
        rig.store.append(shard, Record(b"v", b"k"))
    rig.store.checkpoint()
    rebuilt = rig.crash(seed)._parts.metrics.rebuilt_files._value.get()
    chosen = random.Random(seed).sample(shards, 10)
    assert [rig.store.bounds(shard).commit for shard in chosen] == [1] * 10
    assert all(next(iter(rig.store.by_key(shard, b"k"))).offset == 0 for shard in chosen)
    assert rebuilt == rig.store._parts.metrics.rebuilt_files._value.get() == 0


def test_a_failed_sync_of_many_shards_is_done_again_by_the_next_checkpoint() -> None:
    rig = Rig(QUIET)
    shards = [ShardId("many", number) for number in range(12)]
    for shard in shards:
        rig.store.create_shard(shard)
        rig.store.append(shard, Record(b"v", b"k"))
    rig.disk.fail("sync_directory", "*consumequeue/many*", after=3)
    with pytest.raises(Exception, match="consumequeue"):
        rig.store.checkpoint()
    rig.store.checkpoint()
    rig.crash(1)
    assert [rig.store.bounds(shard).commit for shard in shards] == [1] * 12
