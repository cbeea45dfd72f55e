"""The README's tour runs as it is written: the programs, and the commands against a server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.remote.server.node_server import Server
from penstock.settings import SERVE, merge_settings

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
TOUR = README.partition("## Five-minute tour")[2].partition("\n## ")[0]
SMALL = {"commit_log_file_size": 16 << 20}
WAIT_S = 240


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of the tour that have exactly this mark."""
    return re.findall(rf"^```{language}\n(.*?)^```", TOUR, re.DOTALL | re.MULTILINE)


def test_the_tour_runs_as_written(tmp_path: Path) -> None:
    programs = blocks("python")
    assert programs
    subprocess.run([sys.executable, "-c", "\n".join(programs)], cwd=tmp_path, check=True)


def commands() -> list[str]:
    """Return the lines of the tour that are typed into a shell."""
    lines = "".join(blocks("sh")).splitlines()
    return [line.partition("#")[0].strip() for line in lines]


@pytest.mark.timeout(600)
def test_the_commands_of_the_tour_run_as_written(tmp_path: Path) -> None:
    """Only the port differs, and following ends with the first record."""
    command = tmp_path / "bin" / "penstock"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m penstock "$@"\n')
    command.chmod(0o755)
    ports = {"port": 0, "http_port": 0}
    settings = merge_settings(
        SERVE, {"broker": SMALL, "server": ports, "kafka": {"enabled": False}}
    )
    typed = commands()
    assert [line for line in typed if "consume" in line and "--follow" in line]
    with Server(str(tmp_path / "data"), settings) as server:
        environment = {
            **os.environ,
            "PATH": f"{command.parent}:{os.environ['PATH']}",
            "PENSTOCK_SERVER": f"127.0.0.1:{server.port}",
        }
        for line in typed:
            done = subprocess.run(
                line.replace("--follow", "--follow --limit 1"),
                check=False,
                shell=True,
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=WAIT_S,
            )
            assert done.returncode == 0, f"{line}: {done.stderr}"
            if "consume" in line:
                assert done.stdout == "3 apples\n"


@pytest.mark.timeout(600)
def test_the_kafka_part_of_the_tour_runs_as_written(tmp_path: Path) -> None:
    """Only the ports differ."""
    pytest.importorskip("confluent_kafka")
    pytest.importorskip("penstock._native", reason="Kafka needs the native extension")
    programs = blocks("python kafka")
    assert len(programs) > 1
    ports = {"port": 0, "http_port": 0}
    settings = merge_settings(SERVE, {"broker": SMALL, "server": ports, "kafka": {"port": 0}})
    with Server(str(tmp_path / "data"), settings) as server:
        assert server.kafka is not None
        program = "\n".join(programs)
        program = program.replace("127.0.0.1:9092", f"127.0.0.1:{server.kafka.port}")
        program = program.replace("127.0.0.1:9190", f"127.0.0.1:{server.port}")
        subprocess.run([sys.executable, "-c", program], check=True, timeout=WAIT_S)
