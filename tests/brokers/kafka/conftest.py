"""Servers on directories in memory: these tests start them often, and do not test the device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers.kafka.running import Running, WireClient, running
from tests.engine.quick_directory import quick_directory


@pytest.fixture
def data_path() -> Iterator[Path]:
    with quick_directory() as directory:
        yield Path(directory) / "data"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """One for all tests of a module, each with topics of its own."""
    with quick_directory() as directory, running(Path(directory) / "data") as one:
        yield one


@pytest.fixture
def client(server: Running) -> Iterator[WireClient]:
    with WireClient(server.server.port) as one:
        yield one
