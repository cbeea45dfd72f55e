"""A replicated shard whose leader commits at once keeps the storage contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.quick_directory import quick_directory
from tests.engine.row_replica.leading_engines import HARNESSES

from penstock.testing.conformance import EngineConformance, EngineHarness


class TestReplicatedShards(EngineConformance):
    @pytest.fixture(params=sorted(HARNESSES))
    def harness(self, request: pytest.FixtureRequest) -> Iterator[EngineHarness]:
        name: str = request.param
        with quick_directory() as directory:
            yield HARNESSES[name](Path(directory))
