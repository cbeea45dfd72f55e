"""Nodes for clients of other people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers.mqtt.serving import serve
from tests.engine.quick_directory import quick_directory

from penstock.remote.server.node_server import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One node for all tests of a module: they use topics of their own."""
    with quick_directory() as directory, serve(Path(directory) / "data") as running:
        yield running
