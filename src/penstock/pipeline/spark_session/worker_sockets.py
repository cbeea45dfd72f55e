"""Unix sockets between Spark and its Python workers on this machine.

They halve the system time of a transfer compared with TCP. Their files are in a private directory
of this process, since a worker trusts every client of its socket; Spark limits the path to 61
characters.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import tempfile
from functools import cache
from typing import Final

ENABLED: Final = "spark.python.unix.domain.socket.enabled"
DIRECTORY: Final = "spark.python.unix.domain.socket.dir"
PATH_LENGTH_MAX: Final = 61
_CHOSEN_BY_USER: Final = "PYSPARK_UDS_MODE"


def socket_settings() -> dict[str, str]:
    """Return the settings of Spark that turn such sockets on; none where they cannot be had."""
    if not hasattr(socket, "AF_UNIX") or _CHOSEN_BY_USER in os.environ:
        return {}
    try:
        directory = _directory(tempfile.gettempdir(), os.getpid())
    except OSError:
        return {}  # a machine without a place for them
    return {} if directory is None else {ENABLED: "true", DIRECTORY: directory}


@cache
def _directory(parent: str, process: int) -> str | None:
    """Return this process's directory, which goes with it; None where its path is too long."""
    path = tempfile.mkdtemp(prefix="penstock-", dir=parent)
    if len(os.fsencode(path)) > PATH_LENGTH_MAX:
        os.rmdir(path)
        return None
    atexit.register(_remove, path, process)
    return path


def _remove(path: str, process: int) -> None:
    if os.getpid() == process:  # not a copy that was forked from it
        shutil.rmtree(path, ignore_errors=True)
