"""What tests of tiers share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tiered.providers.s3_server import S3Server, find_server, running_server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    program = find_server()
    if program is None:
        pytest.skip("no S3 server: go install github.com/versity/versitygw/cmd/versitygw")
    directory: Path = tmp_path_factory.mktemp("s3")
    with running_server(program, directory) as server:
        yield server
