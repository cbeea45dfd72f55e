"""What starting a server loads: a module that is not needed is waited for at every start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

NEEDLESS: Final = {
    "hypothesis",
    "numpy",
    "penstock.cli.commands.pipeline.jobs",
    "penstock.cli.commands.store.app",
    "penstock.pipeline",
    "pyarrow",
    "pyspark",
    "rich.console",
}

SERVE: Final = """
import sys
from penstock.cli import build
build("serve")
from penstock.remote.server.node_server import Server
from penstock.settings import load_settings
ports = {"server.port": 0, "server.http_port": 0, "kafka.port": 0}
small = {"broker.commit_log_file_size": 16 << 20}
with Server(sys.argv[1], load_settings(None, overrides=ports | small)) as server:
    print(*sorted(sys.modules))
"""


@pytest.mark.timeout(300)
def test_a_server_loads_only_what_it_needs(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    modules = set(ran.stdout.split())
    assert "penstock.node.node" in modules
    assert NEEDLESS & modules == set()


def test_the_module_is_the_command() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    assert ran.stdout.startswith("penstock 0.")
