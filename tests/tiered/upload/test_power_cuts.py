"""A local tier on a disk that loses what was not synced, stopped at every call of an upload."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tiered.rig import SHARD, fill, open_store, read_all

from penstock.errors import TierUnavailableError
from penstock.platform.clock import Clock
from penstock.testing import CHANGES, FOREVER, FaultyDisk, ManualClock, PowerCut
from penstock.tiered.chunk.chunk import read_footer
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.maintenance.scrubber import ScrubReport, verify_shard
from penstock.tiered.providers.posix import PosixProvider
from penstock.tiered.providers.retrying import RetryingProvider
from penstock.tiered.rocketmq.append_result import AppendResult

COUNT = 60
PER_COMMIT = 20
SEEDS = range(3)


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    with open_store(Path(tmp_path_factory.mktemp("store"))) as store:
        store.create_shard(SHARD)
        fill(store, COUNT)
        return store.read_raw(SHARD, 0, max_records=COUNT)


def open_flat(disk: FaultyDisk, window: int = 1) -> CompositeFlatFile:
    clock: Clock = ManualClock()
    provider = RetryingProvider(PosixProvider("/tier", disk=disk), clock=clock)
    config = TierConfig(
        url="file:///tier", chunk_size=2000, segment_size=5000, upload_window=window
    )
    return CompositeFlatFile(config, SHARD, provider=provider, clock=clock)


def upload(disk: FaultyDisk, messages: list[bytes], window: int = 1) -> Iterator[int]:
    """Upload what the tier lacks; yield the end of what each commit has acknowledged."""
    flat = open_flat(disk, window)
    flat.acquire()
    for message in messages[flat.dispatch_offset :]:
        if flat.append(message) is not AppendResult.SUCCESS:
            flat.stage()
            assert flat.append(message) is AppendResult.SUCCESS
        if flat.dispatch_offset % PER_COMMIT == 0:
            flat.commit(sync=True)
            yield flat.commit_offset
    flat.fetcher.close()


def check(disk: FaultyDisk, messages: list[bytes], acknowledged: int) -> None:
    """Everything acknowledged is there, and every object that can be seen is whole."""
    flat = open_flat(disk)
    flat.refresh()
    assert flat.commit_offset >= acknowledged
    assert [one.offset for one in read_all(flat)] == list(range(flat.commit_offset))
    for info in flat.provider.list():
        data = flat.provider.get(info.key).data
        assert len(data) == info.size
        if info.key.endswith(".chunk"):
            footer, entry = read_footer(info.key, data)
            footer.check_blocks(info.key, 0, data[: entry.data_size])
    report = ScrubReport()
    verify_shard(flat, report, lambda _: None)
    assert report.damage == []
    flat.fetcher.close()


def run_until_cut(disk: FaultyDisk, messages: list[bytes], window: int = 1) -> tuple[int, bool]:
    """Return what was acknowledged, and whether the power was cut."""
    acknowledged = 0
    try:
        for end in upload(disk, messages, window):
            acknowledged = end
    except PowerCut:
        return acknowledged, True
    return acknowledged, False


@pytest.mark.parametrize("seed", SEEDS)
def test_a_power_cut_at_any_call_loses_no_acknowledged_chunk_and_shows_no_half_object(
    messages: list[bytes], seed: int
) -> None:
    call, was_cut = 0, True
    while was_cut:
        disk = FaultyDisk(seed=1000 * seed + call)
        disk.stop_at_call(call, operations=CHANGES)
        acknowledged, was_cut = run_until_cut(disk, messages)
        disk.crash()
        check(disk, messages, acknowledged)
        assert not run_until_cut(disk, messages)[1], "the next process goes on"
        check(disk, messages, COUNT)
        call += 1
    assert call > 40, "an upload has many calls"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_power_cut_during_parallel_puts_loses_no_acknowledged_chunk(
    messages: list[bytes], seed: int
) -> None:
    for call in range(seed, 60, 3):
        disk = FaultyDisk(seed=call)
        disk.stop_at_call(call, operations=CHANGES)
        acknowledged, _ = run_until_cut(disk, messages, window=4)
        disk.crash()
        check(disk, messages, acknowledged)


@pytest.mark.parametrize("write", ["put_if_absent", "compare_and_set"])
def test_a_write_whose_directory_was_not_synced_is_not_acknowledged_by_reading_it_back(
    write: str,
) -> None:
    for seed in range(8):
        disk = FaultyDisk(seed)
        provider = RetryingProvider(PosixProvider("/tier", disk=disk), attempts=2)
        provider.put_if_absent("a/first", b"makes the directory")
        disk.fail("sync_directory", "*/a", errno.EIO, times=1)
        if write == "put_if_absent":
            provider.put_if_absent("a/one", b"mine")
        else:
            provider.compare_and_set("a/one", b"mine", None)
        disk.crash(random.Random(seed))
        assert provider.get("a/one").data == b"mine"


def test_a_directory_that_cannot_be_synced_fails_the_write() -> None:
    disk = FaultyDisk()
    provider = RetryingProvider(PosixProvider("/tier", disk=disk), attempts=2)
    provider.put_if_absent("a/first", b"makes the directory")
    disk.fail("sync_directory", "*/a", errno.EIO, times=FOREVER)
    with pytest.raises(TierUnavailableError, match="cannot sync"):
        provider.put_if_absent("a/one", b"mine")
    with pytest.raises(TierUnavailableError, match="cannot sync"):
        provider.compare_and_set("a/two", b"mine", None)
    disk.heal()
    provider.put_if_absent("a/one", b"mine")
    assert not [path for path in disk.files() if ".penstock-" in path and "lock" not in path]
