"""What a check of a store found: damage with file, position and reason, and how much was checked.

A torn tail is not damage: a log ends so after a crash, and the next writer truncates it. Records
that cannot be served because of damage are named by their offsets, beside the damage itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from penstock.errors import CorruptionError, StoreError
from penstock.record import ShardId

FINDINGS_MAX: Final = 1_000
"""Findings kept in a report; further ones are only counted."""

Progress = Callable[[str, int, int], None]
"""Called with what is being checked, the bytes or items done, and how many there are."""


class Finding(Struct, frozen=True):
    """One place where the store is not what it should be."""

    path: str
    position: int
    """Bytes from the begin of the file."""
    reason: str


class Checked(Struct):
    """How much was looked at."""

    log_files: int = 0
    log_bytes: int = 0
    records: int = 0
    shards: int = 0
    units: int = 0
    index_files: int = 0
    index_entries: int = 0
    pages: int = 0
    states: int = 0
    control_records: int = 0
    time_blocks: int = 0


class TornTail(Struct, frozen=True):
    """The end of a log that was not closed: from here on there is nothing that was promised."""

    path: str
    position: int
    reason: str


class LostRange(Struct, frozen=True):
    """The offsets [first, end) of a shard whose records are damaged."""

    shard: str
    first: int
    end: int


class VerifyReport(Struct):
    """The result of `verify`."""

    path: str
    checked: Checked
    findings: list[Finding]
    findings_left_out: int
    lost: list[LostRange]
    notes: list[str]
    """What could not be checked, and why."""
    torn_tail: TornTail | None
    seconds: float

    @property
    def is_whole(self) -> bool:
        return not self.findings


class DamagedSpans:
    """The parts of the log that hold no record although they should, ascending."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._starts)

    def add(self, start: int, end: int) -> None:
        self._starts.append(start)
        self._ends.append(end)

    def __contains__(self, position: int) -> bool:
        index = bisect_right(self._starts, position) - 1
        return index >= 0 and position < self._ends[index]


class Findings:
    """Collects what the single checks find."""

    def __init__(
        self,
        progress: Progress | None = None,
        shard_of: Callable[[str], ShardId | None] = lambda _: None,
    ) -> None:
        """`shard_of` says whose a file is, where it is one shard's."""
        self.checked: Final = Checked()
        self.entries: Final[list[Finding]] = []
        self.left_out = 0
        self.lost: Final[list[LostRange]] = []
        self.notes: Final[list[str]] = []
        self.torn_tail: TornTail | None = None
        self._progress: Final = progress
        self._shard_of: Final = shard_of
        self._places: dict[tuple[str, int], ShardId | None] = {}
        """Where something was found, and about which shard."""

    def add(self, path: str, position: int, reason: str, shard: ShardId | None = None) -> None:
        if (path, position) in self._places:
            return
        self._places[path, position] = shard or self._shard_of(path)
        if len(self.entries) < FINDINGS_MAX:
            self.entries.append(Finding(path, position, reason))
        else:
            self.left_out += 1

    def keep(self, places: set[tuple[str, int]]) -> None:
        """Forget findings that are not at one of `places`."""
        self.entries[:] = [
            finding for finding in self.entries if (finding.path, finding.position) in places
        ]
        if not self.entries:
            self.left_out = 0

    def leave_out(self, shards: set[ShardId]) -> None:
        """Forget findings about these shards, which a writer changed meanwhile."""
        places = {(finding.path, finding.position) for finding in self.entries}
        hasty = {place for place in places if self._places[place] in shards}
        for shard in {self._places[place] for place in hasty}:
            assert shard is not None
            self.add_note(f"{shard.name}: a writer cut or deleted it while it was checked")
        self.keep(places - hasty)

    def add_error(self, path: str, error: StoreError) -> None:
        """Add what a reader raised; `path` is for errors that do not name their file."""
        if isinstance(error, CorruptionError):
            self.add(error.path, error.position, error.reason)
        else:
            self.add(path, 0, str(error))

    def lose(self, shard: str, first: int, end: int) -> None:
        """Note offsets that damage took; neighbours are joined."""
        last = self.lost[-1] if self.lost else None
        if last is not None and last.shard == shard and last.end == first:
            self.lost[-1] = LostRange(shard, last.first, end)
        else:
            self.lost.append(LostRange(shard, first, end))

    def add_note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def progress(self, stage: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(stage, done, total)
