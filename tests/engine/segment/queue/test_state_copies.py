"""Shard states are kept twice: damage to one file loses nothing, damage to both is told."""

from __future__ import annotations

import random

import pytest

from penstock.engine.segment.queue.shard_state import ShardState
from penstock.engine.segment.queue.state_files import StateFiles, bucket_of
from penstock.errors import CorruptionError
from penstock.record import Offset, QueueKind, ShardId
from penstock.testing import FaultyDisk, PowerCut

FILES = "penstock/shards"
COPIES = "penstock/copies"
SHARD = ShardId("orders", 0)
NAME = f"{bucket_of(SHARD):02d}"


def files_on(disk: FaultyDisk) -> StateFiles:
    return StateFiles(disk, FILES, COPIES)


def saved(latest: int = 7) -> FaultyDisk:
    disk = FaultyDisk()
    state = ShardState(QueueKind.SIMPLE)
    state.latest_offset = Offset(latest)
    files_on(disk).save([SHARD], {SHARD: state}, durable=True)
    return disk


def latest(files: StateFiles) -> int | None:
    states, damaged = files.load_all()
    assert damaged == []
    state = files.load(SHARD)
    assert (state is None) == (SHARD not in states)
    assert state is None or state.latest_offset == states[SHARD].latest_offset
    return None if state is None else state.latest_offset


@pytest.mark.parametrize("directory", [FILES, COPIES])
def test_any_flipped_bit_and_any_cut_of_one_of_the_two_loses_nothing(directory: str) -> None:
    disk = saved()
    path = f"{directory}/{NAME}"
    size = len(disk.files()[path])
    for bit in range(size * 8):
        other = disk.copy()
        other.flip_bit(path, bit)
        files = files_on(other)
        assert latest(files) == 7
        assert files.mended == ({bucket_of(SHARD)} if directory == FILES else set())
    for cut in range(size):
        other = disk.copy()
        other.open(path).truncate(cut)
        assert latest(files_on(other)) == 7


@pytest.mark.parametrize("directory", [FILES, COPIES])
def test_one_of_the_two_may_be_missing(directory: str) -> None:
    disk = saved()
    disk.remove(f"{directory}/{NAME}")
    assert latest(files_on(disk)) == 7


def test_damage_to_both_is_told() -> None:
    disk = saved()
    disk.flip_bit(f"{FILES}/{NAME}", 200)
    disk.flip_bit(f"{COPIES}/{NAME}", 300)
    files = files_on(disk)
    assert files.load_all() == ({}, [f"{FILES}/{NAME}"])
    with pytest.raises(CorruptionError):
        files.load(SHARD)


def test_a_bucket_that_should_be_there_and_is_not_counts_as_damaged() -> None:
    disk = saved()
    assert files_on(disk).load_all(expected=[bucket_of(SHARD)])[1] == []
    disk.remove_tree("penstock")
    assert files_on(disk).load_all(expected=[bucket_of(SHARD)]) == ({}, [f"{FILES}/{NAME}"])
    assert files_on(disk).load_all() == ({}, [])


def test_the_buckets_that_hold_shards_are_known() -> None:
    files = files_on(saved())
    files.load_all()
    assert files.buckets == [bucket_of(SHARD)]


def test_a_power_cut_while_saving_leaves_the_old_state_or_the_new() -> None:
    disk = saved()
    for call in range(8):
        for seed in range(5):
            other = disk.copy()
            files = files_on(other)
            states, _ = files.load_all()
            states[SHARD].latest_offset = Offset(9)
            other.stop_at_call(call)
            try:
                files.save([SHARD], states, durable=True)
                expected = [9]
            except PowerCut:
                expected = [7, 9]
            other.crash(random.Random(seed))
            assert latest(files_on(other)) in expected
