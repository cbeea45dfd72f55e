"""A shard on three nodes keeps the storage contract, although its leader changes between any two
calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.quick_directory import quick_directory
from tests.engine.replication.replicated_engine import RotatingHarness

from penstock.testing.conformance import EngineConformance, EngineHarness
from penstock.testing.conformance.engines import ENGINES


class TestLeaderChanges(EngineConformance):
    @pytest.fixture(params=sorted(ENGINES))
    def harness(self, request: pytest.FixtureRequest) -> Iterator[EngineHarness]:
        name: str = request.param
        with quick_directory() as directory:
            yield RotatingHarness(ENGINES[name], Path(directory))
