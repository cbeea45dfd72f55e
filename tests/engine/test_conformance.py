"""Every engine of Penstock keeps the storage contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing.conformance import EngineConformance, EngineHarness
from penstock.testing.conformance.engines import ENGINES


class TestEveryEngine(EngineConformance):
    @pytest.fixture(params=sorted(ENGINES))
    def harness(self, request: pytest.FixtureRequest, tmp_path: Path) -> EngineHarness:
        name: str = request.param
        return ENGINES[name](tmp_path)
