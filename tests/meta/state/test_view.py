"""The views agree with a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.meta.state.view import MemoryView, Overlay

keys = st.binary(min_size=1, max_size=2)
changes = st.lists(st.tuples(keys, st.none() | st.binary(max_size=2)), max_size=20)


@given(below=changes, above=changes, start=keys, end=keys)
def test_an_overlay_shows_the_rows_below_as_changed_above(
    below: list[tuple[bytes, bytes | None]],
    above: list[tuple[bytes, bytes | None]],
    start: bytes,
    end: bytes,
) -> None:
    model: dict[bytes, bytes] = {}
    view = MemoryView()
    overlay = Overlay(view)
    for target, steps in ((view, below), (overlay, above)):
        for key, value in steps:
            if value is None:
                target.delete(key)
                model.pop(key, None)
            else:
                target.put(key, value)
                model[key] = value
    expected = sorted(row for row in model.items() if start <= row[0] < end)
    assert list(overlay.scan(start, end)) == expected
    assert all(overlay.get(key) == model.get(key) for key, _ in [*below, *above])


def test_an_overlay_leaves_what_is_below_alone() -> None:
    view = MemoryView()
    view.put(b"a", b"1")
    overlay = Overlay(view)
    overlay.delete(b"a")
    overlay.put(b"b", b"2")
    assert list(view.scan(b"", b"z")) == [(b"a", b"1")]
    assert overlay.changes == {b"a": None, b"b": b"2"}
