"""A queue in RocketMQ's layout on a disk that loses what was not synced, stopped at every call."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tiered.rig import SHARD, fill, open_store

from penstock.errors import CorruptionError
from penstock.record import StoredRecord
from penstock.testing import CHANGES, FaultyDisk, PowerCut
from penstock.tiered.rocketmq import tier as rocketmq
from penstock.tiered.rocketmq.append_result import AppendResult
from penstock.tiered.rocketmq.file_segment import FileSegmentType
from penstock.tiered.rocketmq.tier import RocketMqQueue, RocketMqTier

COUNT = 120
PER_COMMIT = 30
SEEDS = range(2)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[bytes], list[StoredRecord]]:
    with open_store(Path(tmp_path_factory.mktemp("store"))) as store:
        store.create_shard(SHARD)
        fill(store, COUNT)
        return store.read_raw(SHARD, 0, max_records=COUNT), store.read(SHARD, 0)


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {FileSegmentType.COMMIT_LOG: 16_000, FileSegmentType.CONSUME_QUEUE: 1_600}
    monkeypatch.setattr(rocketmq, "_SIZES", sizes)


def open_queue(disk: FaultyDisk) -> RocketMqQueue:
    return RocketMqTier("rocketmq+file:///tier", broker="b", disk=disk).queue(SHARD)


def write(disk: FaultyDisk, messages: list[bytes]) -> tuple[int, bool]:
    """Append what the queue lacks; return what was acknowledged, and whether power was cut."""
    acknowledged = 0
    try:
        queue = open_queue(disk)
        for offset in range(queue.max_offset, COUNT):
            assert queue.append(messages[offset]) is AppendResult.SUCCESS
            if (offset + 1) % PER_COMMIT == 0:
                queue.commit()
                acknowledged = offset + 1
    except PowerCut:
        return acknowledged, True
    return acknowledged, False


@pytest.mark.parametrize("page_size", [512, 4096])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_power_cut_at_any_call_loses_no_committed_record_and_shows_no_half_one(
    stored: tuple[list[bytes], list[StoredRecord]], seed: int, page_size: int
) -> None:
    messages, records = stored
    call, was_cut = 0, True
    while was_cut:
        disk = FaultyDisk(seed=1000 * seed + call, page_size=page_size)
        disk.stop_at_call(call, operations=CHANGES)
        acknowledged, was_cut = write(disk, messages)
        disk.crash()
        queue = open_queue(disk)
        assert queue.max_offset >= acknowledged
        assert list(queue.records()) == records[: queue.max_offset]
        assert not write(disk, messages)[1], "the next process goes on"
        assert list(open_queue(disk).records()) == records
        call += 1
    assert call > 20, "a queue is written in many calls"


@pytest.mark.parametrize("first", range(0, 40, 3))
def test_units_that_a_power_cut_tore_are_not_served(
    stored: tuple[list[bytes], list[StoredRecord]], first: int
) -> None:
    """The pages of a file reach the device in any order: zeros may be between whole units."""
    messages, records = stored
    disk = FaultyDisk()
    queue = open_queue(disk)
    for message in messages[:60]:
        assert queue.append(message) is AppendResult.SUCCESS
    queue.commit()
    (path,) = [path for path in disk.files() if "CONSUME_QUEUE" in path]
    file = disk.open(path)
    start = 800 + first
    if any(file.read_at(start, 400 - first)):
        file.write_at(start, bytes(60 if first % 2 else 400 - first))
    file.close()
    queue = open_queue(disk)
    assert queue.max_offset in (start // 20, -(-start // 20))
    assert list(queue.records()) == records[: queue.max_offset]
    assert all(queue.unit(offset) for offset in range(queue.max_offset))


def test_a_damaged_last_record_is_reported_and_not_taken_for_a_torn_unit(
    stored: tuple[list[bytes], list[StoredRecord]],
) -> None:
    disk = FaultyDisk()
    queue = open_queue(disk)
    for message in stored[0][:5]:
        assert queue.append(message) is AppendResult.SUCCESS
    queue.commit()
    (path,) = [path for path in disk.files() if "COMMIT_LOG" in path]
    file = disk.open(path)
    file.write_at(file.size() - len(stored[0][4]) + 92, b"x")
    file.close()
    queue = open_queue(disk)
    assert queue.max_offset == 5
    with pytest.raises(CorruptionError):
        queue.raw(4)
