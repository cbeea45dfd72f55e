"""SIGKILL before every step of uploads, manifests, local deletes, compaction and garbage."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tiered.providers.s3_server import S3Server

MEMORY = Path("/dev/shm")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: SIGKILL loses nothing of the page cache, and
    hundreds of syncs take long."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="penstock-kill-", dir=MEMORY))
    yield made
    shutil.rmtree(made)


def kill_at_steps(directory: Path, first: int, stride: int, server: S3Server | None = None) -> int:
    command = [sys.executable, "-m", "tests.tiered.upload.writer_to_kill", str(directory)]
    command += [str(stride), str(first)]
    if server is not None:
        command += [str(server.port), str(server.directory)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


@pytest.mark.parametrize("first", [0, 6])
def test_a_kill_before_a_step_loses_nothing_and_leaves_nothing(directory: Path, first: int) -> None:
    assert kill_at_steps(directory, first, 17) >= 5


@pytest.mark.soak
def test_a_kill_before_any_step_loses_nothing_and_leaves_nothing(directory: Path) -> None:
    assert kill_at_steps(directory, 0, 1) > 100


@pytest.mark.s3
def test_a_kill_before_a_request_loses_nothing_and_leaves_nothing(
    directory: Path, s3_server: S3Server
) -> None:
    assert kill_at_steps(directory, 3, 9, s3_server) >= 5


@pytest.mark.s3
@pytest.mark.soak
def test_a_kill_before_any_request_loses_nothing_and_leaves_nothing(
    directory: Path, s3_server: S3Server
) -> None:
    assert kill_at_steps(directory, 0, 1, s3_server) > 40
