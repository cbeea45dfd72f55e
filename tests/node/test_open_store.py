"""What can be opened and connected to, and how the rest is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.ordinary_user import ordinary_user

import penstock
from penstock import aio
from penstock.errors import BadRequestError, NotAStoreError, SetupError
from penstock.node.node import Node

NO_PATHS = (None, 5, b"data", ["data"], "", Path, "a\0b")


@pytest.mark.parametrize("path", NO_PATHS)
def test_what_is_no_path_is_said_of_the_argument(path: str) -> None:
    with pytest.raises(BadRequestError, match="path is"):
        penstock.open(path)
    with pytest.raises(BadRequestError, match="path is"):
        asyncio.run(aio.open(path))
    with pytest.raises(BadRequestError, match="path is"):
        Node(path)


def test_a_path_may_be_text_or_an_object(directory: Path) -> None:
    paths: list[str | Path] = [directory, str(directory), f"{directory}//"]
    for number, path in enumerate(paths):
        with penstock.open(path) as store:
            store.create_topic(f"t{number}")
            assert len(store.topics()) == number + 1


def test_a_file_is_no_data_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"mine")
    for path in (file, file / "data"):
        with pytest.raises(NotAStoreError, match="not a directory"):
            penstock.open(path)
    assert file.read_bytes() == b"mine"


def test_a_path_that_no_system_takes_is_refused(tmp_path: Path) -> None:
    for name in ("n" * 300, "\ud800"):
        with pytest.raises(SetupError, match="cannot be a data directory"):
            penstock.open(tmp_path / name)


def test_a_directory_that_may_not_be_used_is_named(directory: Path) -> None:
    directory.mkdir()
    with ordinary_user(directory):
        directory.chmod(0o500)
        with pytest.raises(SetupError, match="cannot be a data directory: Permission denied"):
            penstock.open(directory)


@pytest.mark.parametrize(
    "address", [None, 5, b"host:1", [b"host:1"], [], "", "x", ":1", "host:", "host:²", "host:65536"]
)
def test_what_is_no_address_is_said(address: str) -> None:
    with pytest.raises(BadRequestError, match="address"):
        penstock.connect(address)


@pytest.mark.parametrize("deadline_s", ["x", None, 0, -1, float("nan")])
def test_a_deadline_is_a_time_to_wait(deadline_s: float) -> None:
    with pytest.raises(BadRequestError, match="deadline_s"):
        penstock.connect("127.0.0.1:1", deadline_s=deadline_s)
