"""A copy of a store whose process was killed holds what was written, and nothing else is made."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.engine.quick_directory import quick_directory

from penstock.testing.conformance.engines import copy_at_rest

SIZE = 8 << 20
PARTS = {0: b"first", 3 << 20: b"middle", SIZE - 4: b"last"}


def write_parts(path: Path) -> bytes:
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(SIZE)
        for position, data in PARTS.items():
            file.seek(position)
            file.write(data)
    return path.read_bytes()


def test_a_copy_has_every_byte_and_leaves_out_what_was_never_written() -> None:
    with quick_directory() as directory:
        source, target = Path(directory) / "store", Path(directory) / "copy"
        written = write_parts(source / "log" / "file")
        (source / "empty").touch()
        copy_at_rest(source, target)
        copied = target / "log" / "file"
        assert copied.read_bytes() == written
        assert (target / "empty").read_bytes() == b""
        assert copied.stat().st_mtime_ns == (source / "log" / "file").stat().st_mtime_ns
        assert copied.stat().st_blocks <= (source / "log" / "file").stat().st_blocks


def test_a_file_system_that_does_not_know_what_was_written_gets_a_whole_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_descriptor: int, _position: int, _how: int) -> int:
        raise OSError(errno.EINVAL, "not here")

    with quick_directory() as directory:
        source, target = Path(directory) / "store", Path(directory) / "copy"
        written = write_parts(source / "log" / "file")
        with monkeypatch.context() as patched:
            patched.setattr(os, "lseek", refuse)
            copy_at_rest(source, target)
        assert (target / "log" / "file").read_bytes() == written
