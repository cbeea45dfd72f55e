"""The ledger of an export, without Spark: files are published once, wherever a run is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import BadRequestError, LockedError, SetupError
from penstock.pipeline.jobs import clean
from penstock.pipeline.jobs.exports.ledger import Bookmark, Ledger

FIRST = Bookmark(1, "store", {"orders": {0: 7}})
NAMES = [f"topic=orders/day=2026-01-0{day}/part-0.parquet" for day in (1, 2, 3)]


class KilledError(BaseException):
    """Ends a run where a signal could have ended it."""


def stage(ledger: Ledger, text: str = "rows") -> None:
    for name in NAMES:
        path = ledger.staging / name
        path.parent.mkdir(parents=True)
        path.write_text(text)


def published(target: Path) -> list[str]:
    return sorted(path.read_text() for path in target.glob("topic=*/day=*/*.parquet"))


def test_staged_files_appear_with_the_bookmark(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with ledger.locked():
        stage(ledger)
        assert published(tmp_path) == []
        assert ledger.publish(FIRST) == len("rows") * len(NAMES)
    assert published(tmp_path) == ["rows"] * len(NAMES)
    assert Ledger(tmp_path).bookmark() == FIRST
    assert not ledger.staging.parent.exists()


@pytest.mark.parametrize("moved", range(len(NAMES)))
def test_a_publication_goes_on_where_it_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    ledger = Ledger(tmp_path)
    rename = Path.rename
    left = [moved]

    def rename_some(source: Path, place: Path) -> Path:
        if left[0] == 0:
            raise KilledError
        left[0] -= 1
        return rename(source, place)

    with ledger.locked(), monkeypatch.context() as patched:
        patched.setattr(Path, "rename", rename_some)
        stage(ledger)
        with pytest.raises(KilledError):
            ledger.publish(FIRST)
    assert Ledger(tmp_path).bookmark() == Bookmark()
    again = Ledger(tmp_path)
    with again.locked():
        assert again.recover() == len(NAMES) - moved
        assert again.recover() == 0
    assert published(tmp_path) == ["rows"] * len(NAMES)
    assert again.bookmark() == FIRST


def test_what_a_killed_run_only_staged_is_never_published(tmp_path: Path) -> None:
    killed, ledger = Ledger(tmp_path), Ledger(tmp_path)
    stage(killed, "old")
    with ledger.locked():
        assert ledger.recover() == 0
        # The Java process of the killed run writes on for a moment.
        stage(killed, "late")
        stage(ledger, "new")
        ledger.publish(FIRST)
    assert published(tmp_path) == ["new"] * len(NAMES)


def test_staged_files_of_a_killed_run_are_removed_without_another_export(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with ledger.locked():
        stage(ledger)
        ledger.publish(FIRST)
    killed, running = Ledger(tmp_path), Ledger(tmp_path)
    stage(killed, "old")
    with running.locked():
        stage(running, "rows of a running export")
        with pytest.raises(LockedError):
            clean(str(tmp_path))
        assert len(running.staged_files()) == len(NAMES)
    result = clean(str(tmp_path))
    assert (result.files_removed, result.unfinished_run) == (2 * len(NAMES), None)
    assert published(tmp_path) == ["rows"] * len(NAMES)
    assert len([*tmp_path.rglob("*.parquet")]) == len(NAMES)
    assert ledger.bookmark() == FIRST
    with pytest.raises(BadRequestError, match="is not the target of an export"):
        clean(str(tmp_path / "elsewhere"))


def test_a_run_that_is_to_be_finished_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, again = Ledger(tmp_path), Ledger(tmp_path)

    def die(*_: object) -> None:
        raise KilledError

    with killed.locked(), monkeypatch.context() as patched:
        patched.setattr(Path, "rename", die)
        stage(killed)
        with pytest.raises(KilledError):
            killed.publish(FIRST)
    stage(Ledger(tmp_path), "never published")
    result = clean(str(tmp_path))
    assert (result.files_removed, result.unfinished_run) == (len(NAMES), FIRST.run)
    with again.locked():
        assert again.recover() == len(NAMES)
    assert published(tmp_path) == ["rows"] * len(NAMES)


def test_only_one_export_at_a_time_writes_to_a_target(tmp_path: Path) -> None:
    with Ledger(tmp_path).locked(), pytest.raises(LockedError), Ledger(tmp_path).locked():
        pass


def test_a_bookmark_that_nobody_of_us_wrote_is_refused(tmp_path: Path) -> None:
    (tmp_path / "_penstock").mkdir()
    (tmp_path / "_penstock" / "bookmark.json").write_text("[1]")
    with pytest.raises(SetupError, match="not a valid export ledger file"):
        Ledger(tmp_path).bookmark()
