"""For tests of permissions: root, as whom tests often run, may do everything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

NOBODY: Final = 65534


@contextmanager
def ordinary_user(own: Path) -> Iterator[None]:
    """Do what follows as a user to whom permissions apply. `own` becomes this user's, and so do
    the ways to it; only tests use these."""
    if os.geteuid() != 0:
        yield
        return
    for above in own.parents:
        if above.stat().st_uid == 0 and above.stat().st_mode & 0o777 == 0o700:
            above.chmod(0o711)
    for path in (own, *own.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
