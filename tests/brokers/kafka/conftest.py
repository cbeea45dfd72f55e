"""Directories in memory: these tests start servers often, and do not test the device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.quick_directory import quick_directory


@pytest.fixture
def data_path() -> Iterator[Path]:
    with quick_directory() as directory:
        yield Path(directory) / "data"
