"""A writer killed with SIGKILL at random moments: what it acknowledged is there, once, in order."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import pytest
from tests.engine.segment.recovery.writer_to_kill import SETTINGS, SHARDS, value_of

from penstock.engine.segment.store import SegmentStore
from penstock.record import ShardId

WRITER: Final = Path(__file__).with_name("writer_to_kill.py")
START_S: Final = 60.0


def run_and_kill(directory: Path, seed: int, call: int | None) -> dict[str, int]:
    """Let a writer run until it is killed; return the end that it acknowledged of each shard."""
    arguments = [sys.executable, str(WRITER), str(directory), str(seed)]
    if call is not None:
        arguments.append(str(call))
    ends: dict[str, int] = {}
    lines = 0
    wanted = random.Random(seed).randint(1, 400)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as writer:
        # A writer that hangs, or whose own call never comes, is killed all the same.
        watch = threading.Timer(START_S, writer.kill)
        watch.start()
        assert writer.stdout is not None
        for line in writer.stdout:
            if not line.endswith("\n"):
                break
            name, first, count = line.split()
            ends[name] = int(first) + int(count)
            lines += 1
            if lines == wanted and call is None:
                writer.kill()
            if lines > 5_000:
                writer.kill()
        writer.wait()
        watch.cancel()
    return ends


def check(directory: Path, acknowledged: dict[str, int]) -> None:
    with SegmentStore.open(str(directory), SETTINGS) as store:
        assert store.report.damaged == []
        for shard in SHARDS:
            if shard in store.shards():
                check_shard(store, shard, acknowledged.get(shard.name, 0))
            else:
                assert acknowledged.get(shard.name, 0) == 0


def check_shard(store: SegmentStore, shard: ShardId, acknowledged: int) -> None:
    end = int(store.bounds(shard).next)
    assert end >= acknowledged
    offset = 0
    while offset < end:
        page = store.read(shard, offset, max_records=500)
        assert [record.offset for record in page] == list(range(offset, offset + len(page)))
        assert [record.value for record in page] == [
            value_of(shard, offset + n) for n in range(len(page))
        ]
        offset += len(page)
    if end:
        newest = store.newest_by_key(shard, b"k0")
        assert newest is not None
        assert newest.offset < end


def rounds(directory: Path, count: int, seed: int) -> None:
    choose = random.Random(seed)
    acknowledged: dict[str, int] = {}
    for number in range(count):
        call = choose.randint(1, 120) if number % 2 else None
        acknowledged |= run_and_kill(directory, choose.randrange(1 << 30), call)
        check(directory, acknowledged)


@pytest.mark.timeout(300)
def test_a_killed_writer_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    rounds(tmp_path / "store", 6, seed=1)


@pytest.mark.soak
def test_two_hundred_kills_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    for seed in range(10):
        rounds(tmp_path / f"store-{seed}", 20, seed=seed)
