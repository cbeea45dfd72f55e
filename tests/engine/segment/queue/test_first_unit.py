"""Which unit the files of a queue begin with is remembered, until files come or go."""

from __future__ import annotations

import pytest

from penstock.engine.segment.queue.queue_files import OpenFiles, UnitFiles
from penstock.record import QueueKind, ShardId
from penstock.testing.faulty_disk import FaultyDisk

UNIT = 46
UNITS_PER_FILE = 4


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def files(disk: FaultyDisk) -> UnitFiles:
    held = OpenFiles(disk, 8)
    return UnitFiles(held, "queues", ShardId("t", 0), QueueKind.BATCH, UNITS_PER_FILE * UNIT)


def test_the_first_unit_follows_the_files(files: UnitFiles) -> None:
    assert files.first_unit() is None
    files.write(0, b"x" * UNIT * 3 * UNITS_PER_FILE)
    assert files.first_unit() == 0
    files.remove_before(UNITS_PER_FILE + 1)
    assert files.first_unit() == UNITS_PER_FILE
    files.cut(0)
    assert files.first_unit() is None
    files.write(2 * UNITS_PER_FILE, b"y" * UNIT)
    assert files.first_unit() == 2 * UNITS_PER_FILE
    files.remove_all()
    assert files.first_unit() is None


def test_the_directory_is_listed_once(
    files: UnitFiles, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(0, b"x" * UNIT)
    listed: list[str] = []
    listing = disk.list

    def count(path: str) -> list[str]:
        listed.append(path)
        return listing(path)

    monkeypatch.setattr(disk, "list", count)
    assert [files.first_unit() for _ in range(3)] == [0, 0, 0]
    assert len(listed) == 1


def test_a_file_that_goes_while_somebody_looks_is_not_remembered(
    files: UnitFiles, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(0, b"x" * UNIT * 2 * UNITS_PER_FILE)
    remove = disk.remove

    def look_before(path: str) -> None:
        assert files.first_unit() == 0
        remove(path)

    monkeypatch.setattr(disk, "remove", look_before)
    files.remove_before(UNITS_PER_FILE)
    assert files.first_unit() == UNITS_PER_FILE
