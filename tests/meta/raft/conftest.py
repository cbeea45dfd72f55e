"""The run of `test_torture` begins when the tests are known, beside all others."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

SECONDS = 60
_ROOT = Path(__file__).parents[3]
_running: list[subprocess.Popen[bytes]] = []


def torture_directory() -> Path:
    """Return where the run of this session lies; all workers name the same."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    return Path(tempfile.gettempdir()) / f"penstock-torture-{run}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let what asks for an outcome come when it is there."""
    items.sort(key=lambda item: item.get_closest_marker("at_the_end") is not None)


def pytest_collection_finish(session: pytest.Session) -> None:
    worker = getattr(session.config, "workerinput", {"workerid": "gw0"})["workerid"]
    is_wanted = any(item.get_closest_marker("at_the_end") for item in session.items)
    if worker != "gw0" or not is_wanted or session.config.option.collectonly:
        return
    directory = torture_directory()
    directory.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.meta.raft.torture", str(directory), str(SECONDS)]
    with (directory / "log").open("ab") as log:
        _running.append(
            subprocess.Popen(command, cwd=_ROOT, stdout=log, stderr=log, process_group=0)
        )


def pytest_sessionfinish() -> None:
    for process in _running:
        process.wait()
