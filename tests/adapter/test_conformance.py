"""The storage contract, checked again through `EngineStorageAdapter`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.adapter.adapter_engine import AdapterHarness
from tests.engine.quick_directory import quick_directory

from penstock.testing.conformance import EngineConformance, EngineHarness


class TestAdapter(EngineConformance):
    @pytest.fixture(params=["memory", "rocksdb", "segment", "segment-sync"])
    def harness(self, request: pytest.FixtureRequest) -> Iterator[EngineHarness]:
        with quick_directory() as directory:
            yield AdapterHarness(request.param, Path(directory))
