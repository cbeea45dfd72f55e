"""A full check beside a writer in another process tells no tales."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.segment.view.test_view_beside_writer import open_soon, writer

from penstock.engine.segment.inspect import verify


@pytest.mark.parametrize("mode", ["append", "remove", "truncate", "delete"])
def test_a_store_that_is_being_written_is_whole(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with writer(mode, path):
        open_soon(path)
        checks = records = 0
        until = time.monotonic() + 60
        while (checks < 10 or records <= 100) and time.monotonic() < until:
            report = verify(str(path))
            assert report.findings == []
            checks += 1
            records = max(records, report.checked.records)
    assert records > 100
    assert verify(str(path)).findings == []


def test_a_store_whose_writer_was_killed_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with writer("append", path):
        open_soon(path)
        time.sleep(1)
    assert verify(str(path)).findings == []
