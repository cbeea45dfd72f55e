"""Directories in which no store can be opened: what is told, and that it is an error of ours."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.ordinary_user import ordinary_user

import penstock
from penstock.errors import NotAStoreError, ReadOnlyError


def test_a_directory_that_cannot_be_made_is_named() -> None:
    with pytest.raises(NotAStoreError, match=r"^/proc/nope.*choose another directory"):
        penstock.open("/proc/nope/data")


def test_a_path_through_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear reader")
    with pytest.raises(NotAStoreError, match=r"letters\.txt/data.*is a file"):
        penstock.open(tmp_path / "letters.txt" / "data")


@pytest.mark.parametrize("exists", [True, False])
def test_a_directory_without_permission_is_named(tmp_path: Path, exists: bool) -> None:
    own = tmp_path / "own"
    own.mkdir()
    with penstock.open(own / "data"):
        pass
    if not exists:
        shutil.rmtree(own / "data")
    with ordinary_user(own):
        if exists:
            (own / "data").chmod(0)
        own.chmod(0o500)
        with pytest.raises(ReadOnlyError, match=r"data.*must be allowed to read and to write"):
            penstock.open(own / "data")
        own.chmod(0o700)
        if exists:
            (own / "data").chmod(0o700)
