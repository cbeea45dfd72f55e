"""The concurrent part of the conformance suite, again and again, for rare interleavings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROUNDS = int(os.environ.get("PENSTOCK_SOAK_ROUNDS", "500"))
SUITE = Path(__file__).parent / "test_conformance.py"
CONCURRENT = (
    "readers_see or 64_writers or one_write_sent or exactly_one_of_many or deleted_and_created"
)


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("pure", ["0", "1"], ids=["native", "pure"])
def test_concurrent_calls_behave_in_every_round(pure: str) -> None:
    for number in range(ROUNDS):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", str(SUITE), "-k", CONCURRENT],
            env={**os.environ, "PENSTOCK_PURE": pure},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"round {number}:\n{done.stdout[-4000:]}"
