"""Removes staged files that a killed export left in its target."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from penstock.errors import BadRequestError
from penstock.pipeline.jobs.exports.ledger import HIDDEN, Ledger


class CleanResult(Struct, frozen=True):
    target: str
    files_removed: int
    bytes_removed: int
    unfinished_run: int | None
    """A run that was killed while it was published. Its files are kept: the next export to this
    target finishes it."""


def clean(target: str) -> CleanResult:
    """Remove what killed exports staged in `target`. Published files and the bookmark stay.

    The next export does the same before it begins. Raises `LockedError` while an export runs.
    """
    if not Path(target, HIDDEN).is_dir():
        raise BadRequestError(f"{target} is not the target of an export: it has no {HIDDEN}")
    ledger = Ledger(Path(target))
    with ledger.locked():
        unfinished = ledger.unfinished_run()
        kept = None if unfinished is None else unfinished.attempt
        files, size = ledger.remove_staged(keep=kept)
    return CleanResult(target, files, size, None if unfinished is None else unfinished.after.run)
