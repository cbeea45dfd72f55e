"""Rows that are not written yet are read by any thread while another one applies."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping

import pytest
from tests.meta.simulated_database import SimulatedDatabase

from penstock.meta.storage.unflushed_rows import UnflushedRows

ROWS = 500


@pytest.fixture
def eager_collector() -> Iterator[None]:
    """The collector comes whenever it can."""
    before = gc.get_threshold()
    callbacks = list(gc.callbacks)
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.callbacks[:] = callbacks


@pytest.mark.usefixtures("eager_collector")
def test_a_scan_sees_rows_of_one_moment_while_others_are_published() -> None:
    rows = UnflushedRows(SimulatedDatabase([], ("state",)), "state", 1, 1)
    rows.publish({b"row %04d" % number: b"old" for number in range(ROWS)}, 1)
    published = 0

    def publish(phase: str, _: Mapping[str, int]) -> None:
        nonlocal published
        if phase == "start" and published < 50:  # another thread's turn, as far as a scan can tell
            published += 1
            rows.publish({b"row %04d more" % published: b"new", b"row 0000": b"new"}, 1)

    gc.callbacks.append(publish)
    found = dict(rows.scan(b"row", b"rox"))
    assert published > 0
    assert len(found) >= ROWS
    assert {key for key in found if not key.endswith(b"more")} == {
        b"row %04d" % number for number in range(ROWS)
    }
