"""The storage contract holds when records are in the tier, in the log, or in both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.engine.quick_directory import quick_directory
from tests.tiered.cold_engines import BatchColdHarness, ColdHarness, HalfColdHarness

from penstock.testing.conformance import EngineConformance, EngineHarness

COLD: Final[dict[str, Callable[[Path], EngineHarness]]] = {
    "cold": ColdHarness,
    "half-cold": HalfColdHarness,
    "batch-cold": BatchColdHarness,
}


class TestColdEngines(EngineConformance):
    @pytest.fixture(
        params=[
            "half-cold",
            pytest.param("cold", marks=pytest.mark.soak),
            pytest.param("batch-cold", marks=pytest.mark.soak),
        ]
    )
    def harness(self, request: pytest.FixtureRequest) -> Iterator[EngineHarness]:
        with quick_directory() as directory:
            yield COLD[request.param](Path(directory))
