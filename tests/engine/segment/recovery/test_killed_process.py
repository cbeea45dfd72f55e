"""A process that writes is killed, at any moment or at a call of its own choice, again and again.

After each round everything it said was acknowledged is there, in place, and once.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from tests.engine.segment import doomed_writer
from tests.engine.segment.doomed_writer import GROUP_MAX, SETTINGS, SHARDS

from penstock.engine.segment.store import SegmentStore
from penstock.record import ShardId

SCRIPT = Path(doomed_writer.__file__)
OPERATIONS = {
    "write": 60,
    "sync": 60,
    "sync_directory": 25,
    "replace": 40,
    "allocate": 8,
    "open": 80,
    "remove": 12,
    "truncate": 12,
    "map": 12,
}
"""Operations of a disk, and below which number of calls the process dies."""


class Acknowledged:
    """What the processes said so far."""

    def __init__(self) -> None:
        self.values: dict[ShardId, dict[int, str]] = {shard: {} for shard in SHARDS}
        self.deleted: dict[ShardId, set[int]] = {shard: set() for shard in SHARDS}

    def take(self, output: str) -> int:
        """Fold the lines that came whole; return how many acknowledgements there were."""
        lines = output.split("\n")[:-1]
        for line in lines:
            what, *rest = line.split(" ")
            if what == "R":
                continue
            shard, offset = ShardId.parse(rest[0]), int(rest[1])
            if what == "D":
                self.deleted[shard].add(offset)
                continue
            for number, value in enumerate(rest[2].split(",")):
                assert offset + number not in self.values[shard], "no offset is given twice"
                self.values[shard][offset + number] = value
        return len(lines)


def run_once(directory: Path, turn: int, trap: list[str], choose: random.Random) -> str:
    """Let a process write until it dies; return what it said."""
    command = [sys.executable, str(SCRIPT), str(directory), str(turn), *trap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        # The first line says that the store is open; a process with a trap may not come so far.
        output = process.stdout.readline()
        killer = threading.Timer(choose.uniform(0.0, 0.6), process.kill)
        killer.start()
        output += process.stdout.read()
        killer.join()
    assert process.returncode == -signal.SIGKILL
    return output


def check(directory: Path, said: Acknowledged) -> None:
    settings = msgspec.structs.replace(SETTINGS, background=False)
    with SegmentStore.open(str(directory), settings) as store:
        assert store.report.damaged == []
        for shard in store.shards():
            check_shard(store, shard, said)
        assert all(shard in store.shards() for shard, values in said.values.items() if values)


def check_shard(store: SegmentStore, shard: ShardId, said: Acknowledged) -> None:
    found = {
        int(each.offset): (each.value or b"").rsplit(b"/", 1)[0].decode()
        for each in store.read(shard, 0, max_records=1 << 20, max_size=1 << 30)
    }
    expected = said.values[shard]
    missing = set(range(store.bounds(shard).next)) - found.keys()
    assert len(set(found.values())) == len(found), "none is there twice"
    assert {at: expected[at] for at in expected if at in found} == {
        at: found[at] for at in found if at in expected
    }
    assert expected.keys() - found.keys() <= missing
    # A deletion may have been done and not acknowledged: one for each process that died.
    assert said.deleted[shard] & found.keys() == set()
    undone = missing - said.deleted[shard]
    turns = {value.split("/")[1] for value in expected.values()} | {""}
    assert len(undone) <= len(turns)
    # Likewise one append, or one group.
    assert len(found.keys() - expected.keys()) <= GROUP_MAX * (len(turns) + 1)
    for offset in list(found)[:: max(1, len(found) // 10)]:
        newest = store.newest_by_key(shard, found[offset].encode())
        assert newest is not None
        assert newest.offset == offset


def rounds(directory: Path, count: int, seed: int) -> None:
    choose = random.Random(seed)
    said = Acknowledged()
    heard = 0
    names = list(OPERATIONS)
    for turn in range(count):
        trap: list[str] = []
        if turn % 2:
            operation = names[turn // 2 % len(names)]
            when = (
                choose.choice(("before", "after")) if operation not in ("open", "map") else "before"
            )
            trap = [operation, str(choose.randrange(OPERATIONS[operation])), when]
        heard += said.take(run_once(directory, turn, trap, choose))
        check(directory, said)
    assert heard > 0


@pytest.mark.timeout(120)
def test_nothing_acknowledged_is_lost_by_a_kill(tmp_path: Path) -> None:
    rounds(tmp_path / "store", 5, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_nothing_acknowledged_is_lost_by_three_hundred_kills(tmp_path: Path) -> None:
    for part in range(15):
        rounds(tmp_path / f"store-{part}", 20, seed=100 + part)
