"""Replication under a bad network, bad disks and bad clocks, a seed at a time."""

from __future__ import annotations

import sys
from typing import Final

import pytest
from tests.engine.replication.planted_bugs import BUGS, Plant
from tests.engine.replication.seed_runs import run_long, run_seeds
from tests.engine.replication.simulator import simulate

PARTS: Final = 4
SEEDS: Final = 1_000
SECONDS: Final = 15.0
"""For each part; what is not done then is left to longer runs."""
SEEDS_MAX: Final = 1_500
"""How many seeds a planted bug may survive."""
RARE_SEEDS: Final = (74, 94, 95, 101)
"""The first seeds that have found the bugs that need the rarest faults; tried first."""


@pytest.mark.parametrize("part", range(PARTS))
def test_no_fault_loses_or_changes_a_committed_record(part: int) -> None:
    run_seeds(simulate, range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS), SECONDS)


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_the_simulation_finds_a_planted_bug(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in (*RARE_SEEDS, *range(SEEDS_MAX)):
        try:
            simulate(seed)
        except AssertionError as violation:
            sys.stderr.write(f"{plant.__name__}: seed {seed}: {violation}\n")
            return
    pytest.fail(f"{SEEDS_MAX} seeds passed with the bug")


@pytest.mark.soak
@pytest.mark.timeout(12 * 3600)
def test_no_fault_loses_or_changes_a_committed_record_in_a_long_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_long(simulate, 50_000, capsys)
