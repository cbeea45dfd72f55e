"""Processes that commit offsets and are killed, again and again: nothing acknowledged is lost.

A kill is not a power cut: what a killed process wrote is in the page cache, so even cached commits
must all be there when the next process has started.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

COMMITTER = Path(__file__).with_name("committer.py")
SEED = 20261115


class Expectation:
    """What the next process must find: what was acknowledged, or what was about to be."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, int] = {}
        self.attempted: dict[str, int] = {}
        self.changes = 0

    def read(self, line: str) -> None:
        word, *rest = line.split()
        if word == "ready":
            return
        key, offset = rest[0], int(rest[1])
        if word == "has":
            self.check(key, offset)
        elif word == "try":
            self.attempted = {key: offset}
        else:
            self.acknowledged[key] = offset
            self.attempted = {}
            self.changes += 1

    def check(self, key: str, offset: int) -> None:
        possible = {self.acknowledged.get(key), self.attempted.get(key)}
        assert offset in possible, f"{key} is at {offset}, expected one of {possible}"
        self.acknowledged[key] = offset


def run_and_kill(directory: Path, seed: int, seconds: float, expected: Expectation) -> None:
    """Let a process commit for a while, kill it, and take note of all it said."""
    process = subprocess.Popen(
        [sys.executable, str(COMMITTER), str(directory), str(seed)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    found: set[str] = set()
    for line in process.stdout:
        if line.startswith("has "):
            found.add(line.split()[1])
        expected.read(line)
        if line == "ready\n":
            break
    assert found >= expected.acknowledged.keys(), "offsets are missing"
    killer = threading.Timer(seconds, process.kill)
    killer.start()
    for line in process.stdout:
        if line.endswith("\n"):
            expected.read(line)
    killer.join()
    process.wait()
    process.stdout.close()


def kill_again_and_again(directory: Path, rounds: int) -> Expectation:
    choose = random.Random(SEED)
    expected = Expectation()
    for number in range(rounds):
        run_and_kill(directory, SEED + number, choose.uniform(0, 0.15), expected)
    run_and_kill(directory, SEED + rounds, 0, expected)
    return expected


def test_no_acknowledged_offset_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    assert kill_again_and_again(tmp_path, rounds=5).changes > 0


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_no_acknowledged_offset_is_lost_in_300_kills(tmp_path: Path) -> None:
    assert kill_again_and_again(tmp_path, rounds=300).changes > 1_000
