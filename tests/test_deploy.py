"""The files in deploy/ name commands, options, settings and ports that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import build
from penstock.settings import SERVE, load_settings

DEPLOY = Path(__file__).parents[1] / "deploy"
UNIT = (DEPLOY / "penstock.service").read_text("utf-8")
CONTAINERFILE = (DEPLOY / "Containerfile").read_text("utf-8")


def unit() -> ConfigParser:
    parser = ConfigParser(interpolation=None)
    parser.read_string(UNIT)
    return parser


def test_the_unit_starts_a_command_that_exists() -> None:
    command = unit()["Service"]["ExecStart"].split()
    assert command[0].endswith("/penstock")
    shown = CliRunner().invoke(build(), [command[1], "--help"], env={"COLUMNS": "200"})
    for option in (word for word in command if word.startswith("--")):
        assert option in shown.output


def test_the_unit_waits_for_the_report_of_the_node() -> None:
    service = unit()["Service"]
    assert service["Type"] == "notify"
    assert service["TimeoutStartSec"] == "infinity"
    assert service["KillSignal"] == "SIGTERM"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / "penstock.service"
    copy.write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", UNIT))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "penstock.service" not in done.stderr, done.stderr


def test_the_image_sets_settings_that_exist_and_exposes_the_default_ports() -> None:
    names = re.findall(r"(PENSTOCK_\w+__\w+)=", CONTAINERFILE)
    samples = {"PENSTOCK_NODE__ID": "1", "PENSTOCK_NODE__PEERS": '["1@n1:9095"]'}
    texts = {"PENSTOCK_LOG__FORMAT": "json"}
    environment = {name: (samples | texts).get(name, "0.0.0.0") for name in names}
    assert len(environment) == 5
    load_settings(environment=environment)
    exposed = re.search(r"^EXPOSE (.+)$", CONTAINERFILE, re.MULTILINE)
    assert exposed is not None
    ports = {int(port) for port in exposed[1].split()}
    served = {SERVE.server.port, SERVE.server.http_port, SERVE.kafka.port}
    assert served | {SERVE.mqtt.port, SERVE.mqtt.websocket_port} < ports
