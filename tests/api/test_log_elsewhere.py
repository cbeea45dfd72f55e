"""The commit log on another disk."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.errors import CorruptionError, SettingsError

SMALL: dict[str, object] = {"broker__commit_log_file_size": 1 << 16}


def test_a_commit_log_elsewhere_is_found_again_and_missed_when_it_is_not_named(
    tmp_path: Path,
) -> None:
    data, log = str(tmp_path / "data"), tmp_path / "disk" / "log"
    settings = {**SMALL, "engine__commit_log_path": str(log)}
    for first in range(0, 300, 100):
        with penstock.open(data, **settings) as store:
            topic = store.create_topic("orders") if first == 0 else store.topic("orders")
            topic.write_many([penstock.Record(b"%d" % n) for n in range(first, first + 100)])
            found = [one.value for one in topic.records()]
            assert found == [b"%d" % n for n in range(first + 100)]
    assert list(log.glob("0*"))
    assert not list((tmp_path / "data/segment").glob("commitlog/0*"))
    with pytest.raises(CorruptionError, match="commit_log_path"):
        penstock.open(data, **SMALL)
    other = str(tmp_path / "other")
    with (
        pytest.raises(SettingsError, match="belongs to the store"),
        penstock.open(other, **settings) as store,
    ):
        store.create_topic("x")
