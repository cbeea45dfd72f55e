"""Reports to a service manager, received on a real socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.platform.service_manager import READY, notify

WAIT_S = 120.0


def listening(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.settimeout(WAIT_S)
    made.bind(path)
    return made


@pytest.mark.timeout(300)
def test_a_server_reports_when_it_serves_and_when_it_stops(tmp_path: Path) -> None:
    path = f"{tmp_path}/notify"
    options = ["--port", "0", "--http-port", "0", "--set", "kafka.enabled=false"]
    options += ["--set", f"broker.commit_log_file_size={16 << 20}"]
    code = "from penstock.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", "--data", str(tmp_path / "data"), *options]
    environment = {**os.environ, "NOTIFY_SOCKET": path}
    with (
        listening(path) as manager,
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as server,
    ):
        assert manager.recv(4096) == f"READY=1\nSTATUS=serving {tmp_path}/data".encode()
        server.send_signal(signal.SIGTERM)
        assert manager.recv(4096) == b"STOPPING=1"
        assert server.wait(WAIT_S) == 0


def test_an_abstract_socket_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"penstock-test-{os.getpid()}"
    with listening(f"\0{name}") as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        assert notify(READY)
        assert manager.recv(4096) == b"READY=1"


def test_a_missing_service_manager_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify(READY)
    monkeypatch.setenv("NOTIFY_SOCKET", f"{tmp_path}/none")
    assert not notify(READY)
    monkeypatch.setenv("NOTIFY_SOCKET", "x" * 200)
    assert not notify(READY)
