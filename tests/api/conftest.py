"""Stores for the tests of the programs' interface."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.api import Store

KINDS = ["memory", "rocksdb", "segment"]


@pytest.fixture
def store(directory: Path) -> Iterator[Store]:
    with penstock.open(directory) as store:
        yield store


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found
