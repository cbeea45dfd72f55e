"""The directory that a node keeps its data in: what can be one, and that one process has it.

Nothing is made or changed in a directory that holds something else.
"""

from __future__ import annotations

import os
from typing import Final

from penstock.errors import BadRequestError, NotAStoreError, SetupError
from penstock.platform.disk import Disk, Lock

LOCK: Final = "penstock.lock"


def check_path(path: object) -> str:
    """Return the path of a data directory, given as text or as a `pathlib.Path`."""
    text = path.__fspath__() if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise BadRequestError(
            f"path is that of a data directory, as text or as a pathlib.Path, not {path!r}"
        )
    if not text:
        raise BadRequestError("path is empty; name the data directory, '.' is the current one")
    if "\0" in text:
        raise BadRequestError(f"path is {text!r}: no path has a null character")
    return text.rstrip("/") or "/"


def lock_directory(disk: Disk, path: str, ours: frozenset[str]) -> Lock:
    """Lock the directory for this process; create it if it is missing. `ours` are the names of the
    entries that a data directory can have.

    Raises `LockedError` when another process has locked it, `NotAStoreError` when it is not a
    directory or has other contents, `SetupError` when it cannot be used.
    """
    try:
        others = sorted(set(disk.list(path)) - ours)
        if others and not disk.exists(f"{path}/{LOCK}"):
            raise NotAStoreError(
                f"{path} is not a data directory of Penstock: it holds "
                f"{', '.join(others[:3])}{', …' if len(others) > 3 else ''}; "
                "choose an empty or a new directory"
            )
        return disk.lock(f"{path}/{LOCK}")
    except (NotADirectoryError, FileExistsError) as error:
        raise NotAStoreError(f"{path} is not a directory; choose an empty or a new one") from error
    except (OSError, UnicodeEncodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.reason
        raise SetupError(f"{path!r} cannot be a data directory: {reason}") from error
