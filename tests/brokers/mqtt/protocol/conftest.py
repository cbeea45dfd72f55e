"""One node for all tests of a module: they use client ids and topics of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers.mqtt.serving import node_settings, port_of, serve
from tests.engine.quick_directory import quick_directory


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    settings = node_settings(
        receive_maximum=5,
        packet_size_max=4096,
        keep_alive_max_s=100,
        session_expiry_max_s=1000,
        sweep_interval_ms=50,
        connect_timeout_ms=2000,
        response_topic_prefix="answers/",
    )
    with quick_directory() as directory, serve(Path(directory) / "data", settings) as server:
        yield port_of(server)
