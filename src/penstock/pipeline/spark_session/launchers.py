"""Small scripts that stand in for a program which Spark starts, and change how it is started."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def write_launcher(directory: str, name: str, text: str) -> Path:
    """Write an executable script that is there for all processes of this user; return its path."""
    script = _own_directory(directory) / name
    script.parent.mkdir(parents=True, exist_ok=True)
    staged = script.with_name(f"{script.name}.{os.getpid()}")
    staged.write_text(text, encoding="utf-8")
    staged.chmod(0o755)
    staged.replace(script)  # atomic: another process may be running the script
    return script


def _own_directory(name: str) -> Path:
    """Return a directory that only this user can write to."""
    path = Path(tempfile.gettempdir(), f"{name}-{os.getuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    others = stat.S_IWGRP | stat.S_IWOTH
    if (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.getuid()
        and not status.st_mode & others
    ):
        return path
    return Path(tempfile.mkdtemp(prefix=f"{name}-"))  # another user owns the name
