"""A full check beside a writer in another process tells no tales."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.segment.view.test_view_beside_writer import open_soon, writer

from penstock.engine.segment.inspect import verify


@pytest.mark.parametrize("mode", ["append", "remove", "truncate"])
def test_a_store_that_is_being_written_is_whole(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with writer(mode, path):
        open_soon(path)
        until = time.monotonic() + 2
        while time.monotonic() < until:
            report = verify(str(path))
            assert report.findings == []
    report = verify(str(path))
    assert report.findings == []
    assert report.checked.records > 100


def test_a_store_whose_writer_was_killed_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with writer("append", path):
        open_soon(path)
        time.sleep(1)
    assert verify(str(path)).findings == []
