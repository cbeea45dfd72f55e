"""Every engine of Penstock keeps the storage contract."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.quick_directory import quick_directory

from penstock.testing.conformance import EngineConformance, EngineHarness
from penstock.testing.conformance.engines import ENGINES

# On the Python backend, beside a run on the native one, only what differs is worth the time.
NAMES = ["segment"] if os.environ.get("PENSTOCK_PURE") == "1" else sorted(ENGINES)


class TestEveryEngine(EngineConformance):
    @pytest.fixture(params=NAMES)
    def harness(self, request: pytest.FixtureRequest) -> Iterator[EngineHarness]:
        name: str = request.param
        with quick_directory() as directory:
            yield ENGINES[name](Path(directory))
