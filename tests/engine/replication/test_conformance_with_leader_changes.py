"""A shard on three nodes keeps the storage contract, although its leader changes between any two
calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from tests.engine.quick_directory import quick_directory
from tests.engine.replication.replicated_engine import RotatingHarness

from penstock.testing.conformance import EngineConformance, EngineHarness
from penstock.testing.conformance.engines import ENGINES

DURABLE = sorted(ENGINES.keys() - {"memory"})


class TestLeaderChanges(EngineConformance):
    """Each test with one engine, which follows from its name."""

    @pytest.fixture
    def harness(self, request: pytest.FixtureRequest) -> Iterator[EngineHarness]:
        names = DURABLE if "restart" in request.fixturenames else sorted(ENGINES)
        name = names[crc32(request.node.name.encode()) % len(names)]
        with quick_directory() as directory:
            yield RotatingHarness(ENGINES[name], Path(directory))


@pytest.mark.soak
class TestLeaderChangesOnEveryEngine(EngineConformance):
    @pytest.fixture(params=sorted(ENGINES))
    def harness(self, request: pytest.FixtureRequest) -> Iterator[EngineHarness]:
        name: str = request.param
        with quick_directory() as directory:
            yield RotatingHarness(ENGINES[name], Path(directory))
