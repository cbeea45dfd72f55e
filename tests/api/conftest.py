"""Stores for the tests of the programs' interface."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.quick_directory import quick_directory

import penstock
from penstock.api import Store

KINDS = ["memory", "rocksdb", "segment"]


@pytest.fixture
def directory() -> Iterator[Path]:
    with quick_directory() as found:
        yield Path(found) / "data"


@pytest.fixture
def store(directory: Path) -> Iterator[Store]:
    with penstock.open(directory) as store:
        yield store


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found
