"""Directories for tests that open and close engines often and do not test the device.

Opening a database syncs a dozen times; on a busy disk that is most of a test's time.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

IN_MEMORY: Final = Path("/dev/shm")


def quick_directory() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary directory, in memory where the system has such a place."""
    return tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None)
