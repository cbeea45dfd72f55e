"""The command as a whole: help, version, errors, exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.ordinary_user import ordinary_user

CALL = "from penstock.cli import main; main()"
COMMANDS = ("info", "ls", "cat", "get", "query", "verify", "rebuild")


def test_the_version_is_printed(run: Run) -> None:
    ran = run("--version")
    assert ran.code == 0
    assert ran.out.startswith("penstock 0.")


def test_help_names_the_groups_and_completion(run: Run) -> None:
    ran = run("--help")
    assert ran.code == 0
    assert "store" in ran.out
    assert "--install-completion" in ran.out
    assert run("store", "-h").code == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(run: Run, command: str) -> None:
    ran = run("store", command, "--help")
    assert ran.code == 0
    assert f"penstock store {command} data" in ran.out


@pytest.mark.parametrize("command", COMMANDS)
def test_a_directory_that_is_no_store_is_one_sentence_on_stderr(
    run: Run, command: str, tmp_path: Path
) -> None:
    more = {"cat": ["a_0"], "get": ["a_0", "0"], "query": ["--key", "k"]}.get(command, [])
    empty, file = tmp_path / "empty", tmp_path / "file"
    empty.mkdir()
    file.write_bytes(b"mine")
    reasons = {
        empty: "it has no commitlog/ and no store.properties",
        file: "it is not a directory",
        tmp_path / "missing": "there is no such directory",
    }
    for path, reason in reasons.items():
        ran = run("store", command, path, *more)
        assert ran.code == 2
        assert ran.err == f"penstock: {path} is not a store: {reason}\n"
        assert ran.out == ""
    assert sorted(tmp_path.iterdir()) == [empty, file]
    assert list(empty.iterdir()) == []
    assert file.read_bytes() == b"mine"


def test_a_shard_that_does_not_exist_is_one_sentence(run: Run, written: Path) -> None:
    ran = run("store", "cat", written, "nothing_0")
    assert (ran.code, ran.err) == (2, "penstock: shard 'nothing_0' does not exist\n")
    ran = run("store", "cat", written, "nonsense")
    assert ran.code == 2
    assert "'nonsense' is not a shard name" in ran.err


def test_damage_met_while_reading_is_one_sentence(run: Run, copy: Path) -> None:
    for path in (copy / "consumequeue" / "orders" / "0").iterdir():
        path.unlink()
    ran = run("store", "cat", copy, "orders_0")
    assert ran.code == 2
    assert "this queue file is missing" in ran.err
    assert ran.err.count("\n") == 1


def test_a_directory_that_may_not_be_read_is_one_sentence(run: Run, copy: Path) -> None:
    # Once before: the other user may not be able to load what the command needs.
    assert run("store", "cat", copy, "orders_0").code == 0
    with ordinary_user(copy):
        assert run("store", "cat", copy, "orders_0").code == 0
        (copy / "commitlog" / f"{0:020d}").chmod(0)
        ran = run("store", "cat", copy, "orders_0")
    assert ran.code == 2
    assert "Permission denied" in ran.err


def test_wrong_usage_exits_with_2(run: Run) -> None:
    assert run("store", "cat").code == 2
    assert run("store", "unknown").code == 2


def test_python_without_asserts_is_refused() -> None:
    command = [sys.executable, "-O", "-c", CALL, "--version"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith("penstock: python -O")
    assert ran.stdout == ""


BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
"""Small output is kept until the end then: errors in writing it come late."""


@pytest.mark.parametrize("words", [("cat", "orders_0", "--json"), ("cat", "orders_0"), ("ls",)])
def test_a_reader_that_goes_away_ends_a_command_as_sigpipe_does(
    written: Path, words: tuple[str, ...]
) -> None:
    name, *more = words
    command = [sys.executable, "-c", CALL, "store", name, str(written), *more]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=BUFFERED)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    err = child.stderr.read()
    child.stderr.close()
    assert (child.wait(), err) == (128 + signal.SIGPIPE, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize("words", [("cat", "orders_0", "--json"), ("cat", "orders_0"), ("ls",)])
def test_output_that_cannot_be_written_is_one_sentence(
    written: Path, words: tuple[str, ...]
) -> None:
    name, *more = words
    command = [sys.executable, "-c", CALL, "store", name, str(written), *more]
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=BUFFERED
        )
    assert ran.returncode == 2
    assert "No space left" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_command_that_is_not_confirmed_has_found_no_damage(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("topic", "create", "t", "--data", tmp_path).code == 0
    for answer in ("n\n", ""):
        monkeypatch.setattr(sys, "stdin", StringIO(answer))
        assert run("topic", "delete", "t", "--data", tmp_path).code == 2
    assert run("topic", "describe", "t", "--data", tmp_path).code == 0


def test_completion_knows_the_commands() -> None:
    environment = {
        **os.environ,
        "_PENSTOCK_COMPLETE": "complete_bash",
        "COMP_WORDS": "penstock store ",
        "COMP_CWORD": "2",
    }
    ran = subprocess.run(
        [sys.executable, "-c", CALL],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert set(COMMANDS) <= set(ran.stdout.split())
