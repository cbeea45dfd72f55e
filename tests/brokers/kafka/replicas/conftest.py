"""Two nodes on two racks, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers.kafka.transactions.test_transactions_across_nodes import TwoNodes
from tests.engine.quick_directory import quick_directory

from penstock.remote.server import node_server as serving


@pytest.fixture(scope="session")
def nodes() -> Iterator[TwoNodes]:
    with quick_directory() as directory:
        made = TwoNodes(Path(directory))
        yield made
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(serving, "LEAVE_S", 0.01)  # both go: no node is left to hear of it
            made.close()
