"""The command as a whole: help, version, errors, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
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
        file: "it is no directory",
        tmp_path / "missing": "there is no such directory",
    }
    for path, reason in reasons.items():
        ran = run("store", command, path, *more)
        assert ran.code == 2
        assert ran.err == f"penstock: {path} is no store: {reason}\n"
        assert ran.out == ""
    assert sorted(tmp_path.iterdir()) == [empty, file]
    assert list(empty.iterdir()) == []
    assert file.read_bytes() == b"mine"


def test_a_shard_that_does_not_exist_is_one_sentence(run: Run, written: Path) -> None:
    ran = run("store", "cat", written, "nothing_0")
    assert (ran.code, ran.err) == (2, "penstock: shard 'nothing_0' does not exist\n")
    ran = run("store", "cat", written, "nonsense")
    assert ran.code == 2
    assert "'nonsense' is no shard name" in ran.err


def test_damage_met_while_reading_is_one_sentence(run: Run, copy: Path) -> None:
    for path in (copy / "consumequeue" / "orders" / "0").iterdir():
        path.unlink()
    ran = run("store", "cat", copy, "orders_0")
    assert ran.code == 2
    assert "this queue file is missing" in ran.err
    assert ran.err.count("\n") == 1


def test_a_directory_that_may_not_be_read_is_one_sentence(run: Run, copy: Path) -> None:
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


def test_a_reader_that_goes_away_is_no_error(written: Path) -> None:
    command = [sys.executable, "-c", CALL, "store", "cat", str(written), "orders_0", "--json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    err = child.stderr.read()
    child.stderr.close()
    child.wait()
    assert b"Traceback" not in err


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
