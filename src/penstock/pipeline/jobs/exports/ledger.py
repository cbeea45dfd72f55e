"""What an export has done: a bookmark in its target, and the files of a run being published.

    stage      Spark writes files below `_penstock/staging`      readers do not see them
    begin      `run.json` names every file and its last place    from here on the run happens
    publish    each file is renamed to its place, or a table     what has moved is passed over
               takes all of them in one commit
    finish     `bookmark.json` says up to where is exported      a repeat begins there

Killed before `begin`, a run leaves only staged files, which the next one removes. Killed after it,
the next run first moves the files that are left. So no row is there twice, and none is missing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar
from uuid import uuid4

import msgspec
from msgspec import Struct

from penstock.errors import BadRequestError, SetupError
from penstock.pipeline.jobs.exports.iceberg_place import IcebergPlace
from penstock.pipeline.jobs.exports.payload import Payload
from penstock.platform.local_disk import LocalDisk

HIDDEN: Final = "_penstock"
"""Spark, Arrow and others take names that begin with an underscore for no data."""

_T = TypeVar("_T")

Offsets = dict[str, dict[int, int]]
"""Topic, partition: the next offset to export."""


FILES: Final = "files"
ICEBERG: Final = "iceberg"


class Bookmark(Struct, frozen=True):
    """How far an export has come."""

    run: int = 0
    store: str = ""
    offsets: Offsets = {}
    mode: str = ""
    """How runs are published; the first one decides."""
    payload: Payload | None = None
    """How values are decoded, if they are."""
    export_id: str = ""
    """Under which an Iceberg table knows this export."""
    ids: dict[str, str] = {}
    """The ids of topics that the offsets are of, as far as the store knows them."""


class OpenRun(Struct, frozen=True):
    """A run whose files are complete, and perhaps published in part."""

    after: Bookmark
    attempt: str
    """The name of its staging directory."""
    mode: str = FILES
    """How they are published: as files, or into a table (Delta: append, upsert; Iceberg)."""
    files: tuple[str, ...] = ()
    """Paths below the staging directory, and, with the run's name put before it, the target."""


_bookmarks: Final = msgspec.json.Decoder(Bookmark)
_runs: Final = msgspec.json.Decoder(OpenRun)


class Ledger:
    """The bookmark and the runs of one target directory."""

    def __init__(self, target: Path, iceberg: IcebergPlace | None = None) -> None:
        self._target: Final = target
        self._iceberg: Final = iceberg
        self._own: Final = target / HIDDEN
        self._disk: Final = LocalDisk()
        # A name of its own: the Java process of a run that was killed may write a little longer.
        self._attempt: Final = uuid4().hex
        self.staging: Final = self._own / "staging" / self._attempt

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other exports out of the target; raise `LockedError` when one is at work."""
        self._own.mkdir(parents=True, exist_ok=True)
        lock = self._disk.lock(str(self._own / "lock"))
        try:
            yield
        finally:
            lock.release()

    def bookmark(self) -> Bookmark:
        path = self._own / "bookmark.json"
        return _read(path, _bookmarks) or Bookmark()

    def recover(self) -> int:
        """Finish what a killed run had begun, remove what it had not; return the files moved."""
        begun = self.unfinished_run()
        moved = 0 if begun is None else self._publish(begun)
        self.clean()
        return moved

    def unfinished_run(self) -> OpenRun | None:
        """Return the run that was killed while it was published, if there is one."""
        begun = _read(self._own / "run.json", _runs)
        return None if begun is None or begun.after.run <= self.bookmark().run else begun

    def publish(self, after: Bookmark, mode: str = FILES) -> int:
        """Publish everything that is staged, and remember `after`; return the files' bytes."""
        staged = self.staged_files()
        files = [str(path.relative_to(self.staging)) for path in staged]
        size = sum(path.stat().st_size for path in staged)
        for path in staged:
            _sync(path)
        begun = OpenRun(after, self._attempt, mode, tuple(files))
        self._disk.replace(str(self._own / "run.json"), msgspec.json.encode(begun))
        self._publish(begun)
        self.clean()
        return size

    def staged_files(self) -> list[Path]:
        return sorted(self.staging.rglob("*.parquet"))

    def clean(self) -> None:
        """Remove what no run needs any more."""
        (self._own / "run.json").unlink(missing_ok=True)
        shutil.rmtree(self._own / "staging", ignore_errors=True)

    def remove_staged(self, keep: str | None) -> tuple[int, int]:
        """Remove the staged files of all attempts but `keep`; return their number and size."""
        sizes = []
        for attempt in (self._own / "staging").glob("*"):
            if attempt.name != keep:
                sizes += [path.stat().st_size for path in attempt.rglob("*") if path.is_file()]
                shutil.rmtree(attempt, ignore_errors=True)
        return len(sizes), sum(sizes)

    def _publish(self, begun: OpenRun) -> int:
        staging = self._own / "staging" / begun.attempt
        publish = self._move if begun.mode == FILES else self._commit
        moved = publish(begun, staging)
        after = msgspec.json.format(msgspec.json.encode(begun.after), indent=2)
        self._disk.replace(str(self._own / "bookmark.json"), after)
        return moved

    def _commit(self, begun: OpenRun, staging: Path) -> int:
        # Imported here, so that exports to files need no more than Spark.
        files = [staging / name for name in begun.files]
        run = begun.after.run
        if begun.mode == ICEBERG:
            from penstock.pipeline.jobs.exports import iceberg_table

            if self._iceberg is None:
                raise BadRequestError(
                    f"run {run} into an Iceberg table was interrupted: repeat the export into it"
                )
            done = iceberg_table.commit_files(
                self._target, self._iceberg, files, begun.after.export_id, run
            )
        else:
            from penstock.pipeline.jobs.exports import delta_table

            done = delta_table.commit_files(self._target, files, staging, run, begun.mode)
        return len(files) if done else 0

    def _move(self, begun: OpenRun, staging: Path) -> int:
        moved = 0
        directories = {self._target}
        for name in begun.files:
            source = staging / name
            place = self._target / name
            place = place.with_name(f"run-{begun.after.run:06d}-{place.name}")
            if not source.exists():
                if not place.exists():
                    raise SetupError(
                        f"{place} is missing: run {begun.after.run} of this export was interrupted "
                        "and its files were removed since"
                    )
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            source.rename(place)
            directories |= {place.parent, place.parent.parent}
            moved += 1
        for directory in sorted(directories):
            self._disk.sync_directory(str(directory))
        return moved


def _read(path: Path, decoder: msgspec.json.Decoder[_T]) -> _T | None:
    try:
        return decoder.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise SetupError(f"{path} is not a valid export ledger file: {error}") from error


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
