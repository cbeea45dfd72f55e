"""Runs of many seeds: bounded in number and time, with the seed of what they find."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Final

import pytest

PROGRESS_EVERY: Final = 1_000


def run_seeds(
    simulate: Callable[[int], object],
    seeds: Iterable[int],
    seconds: float | None = None,
    report: Callable[[str], None] | None = None,
) -> int:
    """Simulate seeds until time is up; return how many there were. Fails with the first seed that
    breaks an invariant."""
    until = None if seconds is None else time.monotonic() + seconds
    count = 0
    for seed in seeds:
        try:
            simulate(seed)
        except AssertionError as violation:
            pytest.fail(f"seed {seed}: {violation}")
        count += 1
        if report is not None and count % PROGRESS_EVERY == 0:
            report(f"{count} seeds passed, the last was {seed}")
        if until is not None and time.monotonic() > until:
            break
    return count


def run_long(
    simulate: Callable[[int], object], count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Simulate `count` seeds, or as the environment says:

    PENSTOCK_SOAK_SEED     the first seed (0)
    PENSTOCK_SOAK_SEEDS    how many
    PENSTOCK_SOAK_SECONDS  no new seed after this time
    """
    first = int(os.environ.get("PENSTOCK_SOAK_SEED", "0"))
    count = int(os.environ.get("PENSTOCK_SOAK_SEEDS", str(count)))
    limit = os.environ.get("PENSTOCK_SOAK_SECONDS")

    def report(line: str) -> None:
        with capsys.disabled():
            sys.stderr.write(f"\n{line}")
            sys.stderr.flush()

    seconds = float(limit) if limit else None
    passed = run_seeds(simulate, range(first, first + count), seconds, report)
    report(f"{passed} seeds from {first} on passed")
