"""A server from the command line: started, used by the other commands, and stopped cleanly."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

START_S: Final = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from penstock.cli import main; main()", *arguments]


def run(*arguments: str, stdin: str = "", code: int = 0) -> str:
    done = subprocess.run(
        command(*arguments), input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


class Served:
    """A `penstock serve` of our own."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.port = free_port()
        arguments = ["--data", str(data), "--port", str(self.port), "--http-port", "0"]
        arguments += ["--kafka-port", "0"]
        self.process = subprocess.Popen(
            command("serve", *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.greeting = self._read_greeting()

    def _read_greeting(self) -> str:
        assert self.process.stdout is not None
        lines = []
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            line = self.process.stdout.readline()
            lines.append(line)
            if "Ctrl-C" in line or not line:
                break
        return "".join(lines)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    running = Served(tmp_path / "data")
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.communicate(timeout=60)


def test_a_server_says_where_it_listens_and_what_to_try(served: Served) -> None:
    assert served.address in served.greeting
    assert "penstock produce" in served.greeting
    assert "/metrics" in served.greeting


def test_records_go_in_and_out_by_commands(served: Served) -> None:
    at = ("-s", served.address)
    assert "2 partitions" in run("topic", "create", *at, "orders", "-p", "2")
    run("produce", *at, "orders", "-t", "eu", "-K", ":", stdin="k1:a\nk2:b\nno key\n")
    found = [json.loads(line) for line in run("consume", *at, "orders", "--json").splitlines()]
    assert sorted((line["key"] or "", line["value"]) for line in found) == [
        ("", "no key"),
        ("k1", "a"),
        ("k2", "b"),
    ]
    assert all(line["tags"] == ["eu"] for line in found)
    assert run("consume", *at, "orders", "-k", "k2") == "b\n"
    assert len(run("consume", *at, "orders", "-g", "readers", "-n", "2").splitlines()) == 2
    assert len(run("consume", *at, "orders", "-g", "readers").splitlines()) == 1
    assert run("consume", *at, "orders", "-g", "readers") == ""
    lag = [json.loads(line) for line in run("groups", "list", *at, "--json").splitlines()]
    assert lag == [{"group": "readers", "lag": 0}]
    run("groups", "reset", *at, "readers", "orders", "--to", "earliest")
    assert len(run("consume", *at, "orders", "-g", "readers").splitlines()) == 3


def test_topics_are_described_altered_and_deleted_by_commands(served: Served) -> None:
    at = ("-s", served.address)
    run("topic", "create", *at, "t", "--storage", "memory", "--set", "retention_records=10")
    assert "memory" in run("topic", "describe", *at, "t")
    run("topic", "alter", *at, "t", "-p", "3", "--set", "retention_records=none")
    (info,) = (json.loads(line) for line in run("topic", "list", *at, "--json").splitlines())
    assert info["partition_count"] == 3
    assert "exists" in run("topic", "create", *at, "t", code=2)
    run("topic", "delete", *at, "t", "--yes")
    assert run("topic", "list", *at, "--json") == ""
    run("retention", "run", *at)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_server_has_lost_nothing(served: Served, number: signal.Signals) -> None:
    at = ("-s", served.address)
    run("topic", "create", *at, "t")
    run("produce", *at, "t", stdin="kept\n")
    code, errors = served.stop(number)
    assert (code, "stopped" in errors) == (0, True)
    assert run("consume", "--data", str(served.data), "t") == "kept\n"


def test_a_busy_port_and_a_busy_directory_are_refused_in_a_sentence(
    served: Served, tmp_path: Path
) -> None:
    other = ("--data", str(tmp_path / "other"), "--http-port", "0", "--kafka-port", "0")
    refused = run("serve", *other, "--port", str(served.port), code=2)
    assert "choose another port" in refused
    assert "Traceback" not in refused
    busy = run("serve", "--data", str(served.data), "--port", "0", "--http-port", "0", code=2)
    assert "Traceback" not in busy
    assert str(served.data) in busy


def test_settings_are_shown_and_misspelt_ones_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[broker]\nfile_reserved_time = 24\n")
    shown = run("config", "-c", str(file), "--set", "offsets.enable_cache=false")
    assert "file_reserved_time = 24" in shown
    assert "enable_cache = false" in shown
    file.write_text("[broker]\nfile_reserved_tim = 24\n")
    assert "file_reserved_time" in run("config", "-c", str(file), code=2)


def test_no_server_is_said_with_what_to_do(tmp_path: Path) -> None:
    refused = run("topic", "list", "-s", f"127.0.0.1:{free_port()}", code=2)
    assert "penstock serve" in refused
