"""What a person meets at the command line first: hints, completion, tables, logs of one form."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.conftest import Run

import penstock
from penstock.cli import output

WAIT_S = 120


def test_produce_to_an_unknown_topic_says_how_to_create_it(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    penstock.open(tmp_path / "data").close()
    (tmp_path / "value").write_bytes(b"3 apples")
    ran = run("produce", "--data", tmp_path / "data", "my orders", tmp_path / "value")
    assert ran.code == 2
    assert "topic 'my orders' does not exist" in ran.err
    assert "penstock topic create 'my orders'" in ran.err


def test_creating_a_topic_twice_is_an_error_unless_it_may_exist(tmp_path: Path, run: Run) -> None:
    words = ("topic", "create", "--data", tmp_path / "data", "orders", "--set", "retention_ms=3d")
    assert run(*words).code == 0
    assert run(*words).code == 2
    again = run(*words, "--exist-ok")
    assert (again.code, again.out) == (0, "orders already exists\n")
    described = run("topic", "describe", "--data", tmp_path / "data", "orders", "--json")
    assert json.loads(described.out)["config"]["retention_ms"] == 3 * 86_400_000


@pytest.mark.parametrize(("typed", "found"), [("or", ["orders"]), ("", ["orders", "refunds"])])
def test_names_of_topics_are_completed(typed: str, found: list[str], tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data") as store:
        store.create_topic("orders")
        store.create_topic("refunds")
    assert _completed(f"penstock consume --data {tmp_path}/data {typed}") == found


def test_completion_without_a_store_is_empty_and_silent(tmp_path: Path) -> None:
    assert _completed(f"penstock consume --data {tmp_path}/missing or") == []


def _completed(line: str) -> list[str]:
    environment = {
        **os.environ,
        "_PENSTOCK_COMPLETE": "complete_zsh",
        "_TYPER_COMPLETE_ARGS": line,
    }
    done = subprocess.run(
        [sys.executable, "-m", "penstock"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.stderr == ""
    return [word for word in ("orders", "refunds") if f'"{word}"' in done.stdout]


def test_numbers_are_never_cut_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "console", lambda: Console(highlight=False, width=40))
    name = "a-rather-long-name-of-a-topic-for-a-narrow-terminal"
    output.print_table(("topic", "#earliest", "#latest"), [(name, 1234567890, 12345678901)])
    shown = capsys.readouterr().out
    assert "1234567890 " in shown
    assert "12345678901" in shown
    assert "…" not in shown
    assert all(len(line) <= 40 for line in shown.splitlines())


def test_a_server_that_logs_json_prints_nothing_else(tmp_path: Path) -> None:
    words = ["--data", str(tmp_path / "data"), "--port", "0", "--http-port", "0"]
    settings = ["--kafka-port", "0", "--set", "log.format=json"]
    server = subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", *words, *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    lines = []
    for line in server.stderr:
        lines.append(json.loads(line))
        if lines[-1]["event"] == "serving":
            server.send_signal(signal.SIGTERM)
    out, _ = server.communicate(timeout=WAIT_S)
    assert (server.returncode, out) == (0, "")
    assert [line["event"] for line in lines][-2:] == ["stopping", "stopped"]
