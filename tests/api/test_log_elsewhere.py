"""The commit log on another disk, and index files that fit the size of the log's files."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

import penstock
from penstock.engine.segment.settings import file_sizes
from penstock.errors import CorruptionError, SettingsError
from penstock.settings import EMBEDDED, SERVE

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


def test_index_files_are_no_larger_than_a_log_file_fills() -> None:
    for settings in (SERVE, EMBEDDED):
        sizes = file_sizes(settings.broker, settings.engine)
        assert sizes.index_entries_max == settings.engine.index_entries_max
        assert sizes.index_slots == settings.engine.index_slots
    for size in (4096, 1 << 20, 64 << 20, 256 << 20):
        sizes = file_sizes(replace(SERVE.broker, commit_log_file_size=size), SERVE.engine).check()
        assert sizes.index_file_size <= max(30_000, size // 2)
        assert sizes.index_slots * 4 <= sizes.index_entries_max


def test_a_server_with_small_log_files_has_small_index_files(tmp_path: Path) -> None:
    data = tmp_path / "data"
    given = {"engine__index_slots": 5_000_000, "engine__index_entries_max": 20_000_000}
    with penstock.open(str(data), **SMALL, **given) as store:
        store.create_topic("orders").write(penstock.Record(b"x", key=b"k"))
        assert [one.offset for one in store.topic("orders").query(b"k")] == [0]
    sizes = [path.stat().st_size for path in (data / "segment/index").iterdir()]
    assert sizes
    assert max(sizes) < 100_000
