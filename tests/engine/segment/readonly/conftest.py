"""The store that RocketMQ wrote, unpacked once; tests that change it take a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.codec.golden_store import GoldenStore
from tests.engine.segment.readonly.sample_store import write_sample


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of ours, closed. Not to be changed."""
    return write_sample(tmp_path_factory.mktemp("sample") / "store")


@pytest.fixture
def golden_copy(golden: GoldenStore, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden.root, tmp_path / "golden"))


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "store"))
