"""A server from the command line: started, used by the other commands, and stopped cleanly."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Final, Protocol

import pytest

import penstock
from penstock.cli import main

pytestmark = pytest.mark.timeout(300)

WAIT_S: Final = 180.0
"""Long enough for a machine that does ten other things; nothing waits so long on others."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from penstock.cli import main; main()", *arguments]


class Run(Protocol):
    def __call__(self, *arguments: str, stdin: str = "", code: int = 0) -> str: ...


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in this process; a process for each would take most of the time."""
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: str, stdin: str = "", code: int = 0) -> str:
        capfdbinary.readouterr()
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as stopped:
            main(list(arguments))
        out, errors = (each.decode() for each in capfdbinary.readouterr())
        assert (stopped.value.code or 0) == code, errors
        return out if code == 0 else errors

    return run


class Served:
    """A `penstock serve` of our own."""

    def __init__(self, data: Path) -> None:
        self.data = data
        arguments = ["--data", str(data), "--port", "0", "--http-port", "0"]
        # Small and without what these tests do not use: they start several.
        arguments += ["--set", "kafka.enabled=false"]
        arguments += ["--set", f"broker.commit_log_file_size={16 << 20}"]
        self.process = subprocess.Popen(
            command("serve", *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.greeting = self._read_greeting()
        listens = re.search(r"storage API +\S+:(\d+)", self.greeting)
        self.port = listens[1] if listens else "?"

    def _read_greeting(self) -> str:
        assert self.process.stdout is not None
        lines = []
        deadline = time.monotonic() + WAIT_S
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
        _, errors = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, errors


@contextmanager
def serving(data: Path) -> Iterator[Served]:
    running = Served(data)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.communicate(timeout=WAIT_S)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A server of a test's own, which may stop it."""
    with serving(tmp_path / "data") as running:
        yield running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("shared") / "data") as running:
        yield running


def test_a_server_says_where_it_listens_and_what_to_try(shared: Served) -> None:
    assert shared.address in shared.greeting
    assert "penstock produce" in shared.greeting
    assert "/metrics" in shared.greeting


@pytest.fixture(params=["server", "directory"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Which store the commands work on."""
    if request.param == "directory":
        return "--data", str(tmp_path / "own")
    shared: Served = request.getfixturevalue("shared")
    return "-s", shared.address


@pytest.fixture
def topic(run: Run, at: tuple[str, str]) -> str:
    """A topic with two partitions, the values a to f in turn in them."""
    name = f"letters-{secrets.token_hex(4)}"
    run("topic", "create", *at, name, "-p", "2")
    run("produce", *at, name, stdin="a\nb\nc\nd\ne\nf\n")
    return name


def test_records_go_in_and_out_by_commands(at: tuple[str, str], run: Run) -> None:
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
    assert lag == [{"group": "readers", "lag": 0, "state": "Empty", "members": 0}]
    run("groups", "reset", *at, "readers", "orders", "--to", "earliest", "--yes")
    assert len(run("consume", *at, "orders", "-g", "readers").splitlines()) == 3


def test_consume_begins_where_it_is_told_to(at: tuple[str, str], topic: str, run: Run) -> None:
    def consumed(*options: str) -> list[str]:
        return run("consume", *at, topic, *options).split()

    first = set(consumed("-p", "0"))
    assert len(first) == 3
    assert set(consumed()) == set("abcdef")
    assert set(consumed("--offset", "earliest")) == set("abcdef")
    assert consumed("--offset", "latest") == []
    assert set(consumed("-p", "0", "-o", "1")) < first
    assert set(consumed("--since", "2020-01-01")) == set("abcdef")
    assert consumed("--since", "2100-01-01") == []
    for wrong in (
        ("-o", "-1"),
        ("-o", "newest"),
        ("-o", "1", "--since", "2020-01-01"),
        ("--since", "yesterday"),
        ("-p", "2"),
        ("-g", "g", "-o", "0"),
        ("-g", "g", "-p", "0"),
    ):
        assert run("consume", *at, topic, *wrong, code=2).count("\n") == 1


def test_the_lag_of_a_group_counts_the_partitions_that_it_has_not_reached(
    at: tuple[str, str], topic: str, run: Run
) -> None:
    group = f"of-{topic}"
    run("consume", *at, topic, "-g", group, "-n", "2")
    described = run("groups", "describe", *at, group, "--json").splitlines()
    rows = [json.loads(line) for line in described]
    assert [(row["topic"], row["partition"]) for row in rows] == [(topic, 0), (topic, 1)]
    assert sum(row["lag"] for row in rows) == 4
    assert "4" in run("groups", "list", *at)
    run("groups", "reset", *at, group, topic, "--to", "latest", "-p", "1", "--yes")
    run("groups", "reset", *at, group, topic, "--to", "1", "-p", "0", "--yes")
    rest = run("consume", *at, topic, "-g", group).split()
    assert rest == run("consume", *at, topic, "-p", "0", "-o", "1").split()
    run("groups", "reset", *at, group, topic, "--to", "@2020-01-01", "--yes")
    assert len(run("consume", *at, topic, "-g", group).split()) == 6
    assert "is not a position" in run("groups", "reset", *at, group, topic, "--to", "x", code=2)
    run("groups", "delete", *at, group, "-y")
    assert "does not exist" in run("groups", "describe", *at, group, code=2)


def test_a_reset_says_where_to_shows_its_plan_and_asks(
    at: tuple[str, str], topic: str, run: Run
) -> None:
    group = f"of-{topic}"
    reset = ("groups", "reset", *at, group, topic)
    run("consume", *at, topic, "-g", group)
    assert "--to" in run(*reset, code=2)
    assert "--yes" in run(*reset, "--to", "earliest", code=2)
    assert "--yes" in run("groups", "delete", *at, group, code=2)
    plan = run(*reset, "--to", "earliest", "--dry-run")
    assert "-3" in plan
    assert "nothing was set" in plan
    assert run("consume", *at, topic, "-g", group) == ""
    run(*reset, "--to", "-1h", "--yes")
    assert len(run("consume", *at, topic, "-g", group).split()) == 6
    assert "duration" in run(*reset, "--to", "-1y", "--yes", code=2)
    run("groups", "delete", *at, group, "--yes")


def test_a_group_with_members_is_described_and_neither_reset_nor_deleted(
    shared: Served, run: Run
) -> None:
    at, topic = ("-s", f"127.0.0.1:{shared.port}"), f"letters-{secrets.token_hex(4)}"
    group = f"of-{topic}"
    run("topic", "create", *at, topic, "-p", "2")
    with (
        penstock.connect(f"127.0.0.1:{shared.port}") as store,
        store.consumer(group, [topic]) as consumer,
    ):
        (member,) = store.describe_group(group).members
        shown = run("groups", "describe", *at, group)
        assert member.member_id in shown
        assert "Stable" in shown
        rows = run("groups", "describe", *at, group, "--json").splitlines()
        assert {json.loads(row)["member"] for row in rows} == {member.member_id}
        for words in (("reset", group, topic, "--to", "earliest"), ("delete", group)):
            refused = run("groups", *words, *at, "--yes", code=2)
            assert member.member_id in refused
        consumer.commit()
    run("groups", "delete", *at, group, "--yes")


def test_following_waits_for_what_comes_and_passes_over_what_was_deleted(
    shared: Served, run: Run
) -> None:
    at = ("-s", shared.address)
    run("topic", "create", *at, "followed", "-p", "2")
    followed = penstock.connect(shared.address).topic("followed")
    followed.write(b"gone", partition=0)
    followed.write(b"other", partition=1)
    followed.delete_by_offset(0, 0)
    follower = subprocess.Popen(
        command("consume", *at, "followed", "--follow", "-p", "0", "-n", "2"),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        followed.write(b"first", partition=0)
        followed.write(b"second", partition=0)
        out, _ = follower.communicate(timeout=WAIT_S)
    finally:
        follower.kill()
        follower.wait()
    assert (follower.returncode, out) == (0, "first\nsecond\n")


def test_a_missing_directory_is_not_made_by_looking_at_it(tmp_path: Path, run: Run) -> None:
    missing = tmp_path / "typo"
    for words in (
        ("topic", "list"),
        ("topic", "describe", "t"),
        ("consume", "t"),
        ("produce", "t"),
        ("groups", "list"),
        ("retention", "run"),
    ):
        refused = run(*words, "--data", str(missing), code=2)
        assert "does not exist; create it with `penstock topic create" in refused
    assert not missing.exists()


def test_a_file_is_no_data_directory(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"mine")
    for words in (("topic", "list"), ("topic", "create", "t"), ("consume", "t")):
        assert f"{file} is not a directory" in run(*words, "--data", str(file), code=2)
    assert file.read_bytes() == b"mine"


def test_json_has_names_for_the_options_of_a_topic(at: tuple[str, str], run: Run) -> None:
    name = f"named-{secrets.token_hex(4)}"
    tiered = ("--set", "tiering=on", "--set", "tiering.local_retention_ms=60000")
    run("topic", "create", *at, name, "--set", "retention_ms=5000", *tiered)
    listed = [json.loads(line) for line in run("topic", "list", *at, "--json").splitlines()]
    described = json.loads(run("topic", "describe", *at, name, "--json"))
    for info in (described, *(one for one in listed if one["name"] == name)):
        assert info["config"]["retention_ms"] == 5000
        assert info["config"]["tiering"]["local_retention_ms"] == 60_000
    run("topic", "alter", *at, name, "--set", "tiering=none")
    assert json.loads(run("topic", "describe", *at, name, "--json"))["config"]["tiering"] is None


def test_names_of_topics_and_groups_play_no_tricks(at: tuple[str, str], run: Run) -> None:
    for name, shown in (("[/a]", "[/a]"), ("[red]b", "[red]b"), ("c\x1b[31m", "c\\x1b[31m")):
        assert f"created {shown}:" in run("topic", "create", *at, name)
        run("produce", *at, name, stdin="v\n")
        run("consume", *at, name, "-g", name)
        for words in (
            ("topic", "list"),
            ("topic", "describe", name),
            ("groups", "list"),
            ("groups", "describe", name),
            ("groups", "reset", name, name, "--to", "earliest", "--yes"),
            ("groups", "delete", "-y", name),
            ("topic", "delete", "-y", name),
        ):
            out = run(*words, *at)
            assert shown in out
            assert "\x1b" not in out


def test_texts_that_are_not_unicode_are_read_and_shown(
    at: tuple[str, str], topic: str, run: Run
) -> None:
    text = os.fsdecode(b"\xff")
    run("produce", *at, topic, "-t", text, "-H", f"{text}={text}", "-k", text, stdin="odd\n")
    run("produce", *at, topic, "-K", "é", stdin="kévalue\n")
    run("produce", *at, topic, "-K", text, stdin="no key\n")
    found = [json.loads(line) for line in run("consume", *at, topic, "--json").splitlines()]
    by_value = {one["value"]: one for one in found}
    base64 = {"base64": "/w=="}
    assert by_value["odd"]["tags"] == [base64]
    assert by_value["odd"]["headers"] == [[base64, base64]]
    assert by_value["odd"]["key"] == base64
    assert by_value["value"]["key"] == "k"
    assert by_value["no key"]["key"] is None
    assert run("consume", *at, topic, "-t", text) == "odd\n"
    assert "--key-separator" in run("produce", *at, topic, "-K", "", stdin="a:b\n", code=2)


def test_a_number_that_is_none_or_too_large_is_refused(
    at: tuple[str, str], topic: str, run: Run
) -> None:
    group = f"of-{topic}"
    run("groups", "reset", *at, group, topic, "--to", str(2**63 - 1), "--yes")
    for wrong in ("²", str(2**63), "9" * 5000):
        for words in (
            ("groups", "reset", group, topic, "--to", wrong),
            ("groups", "reset", group, topic, "--to", f"@{wrong}"),
            ("consume", topic, "-o", wrong),
            ("consume", topic, "--since", wrong),
        ):
            assert run(*words, *at, code=2).count("\n") == 1
    described = run("groups", "describe", *at, group, "--json").splitlines()
    assert {json.loads(line)["offset"] for line in described} == {2**63 - 1}
    run("groups", "delete", *at, group, "-y")


def test_topics_are_described_altered_and_deleted_by_commands(
    at: tuple[str, str], run: Run
) -> None:
    run("topic", "create", *at, "t", "--storage", "memory", "--set", "retention_records=10")
    assert "memory" in run("topic", "describe", *at, "t")
    run("topic", "alter", *at, "t", "-p", "3", "--set", "retention_records=none")
    listed = [json.loads(line) for line in run("topic", "list", *at, "--json").splitlines()]
    assert [info["partition_count"] for info in listed if info["name"] == "t"] == [3]
    assert "exists" in run("topic", "create", *at, "t", code=2)
    run("topic", "delete", *at, "t", "--yes")
    listed = run("topic", "list", *at, "--json").splitlines()
    assert "t" not in {json.loads(line)["name"] for line in listed}
    run("retention", "run", *at)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_server_has_lost_nothing(
    served: Served, number: signal.Signals, run: Run
) -> None:
    at = ("-s", served.address)
    run("topic", "create", *at, "t")
    run("produce", *at, "t", stdin="kept\n")
    code, errors = served.stop(number)
    assert (code, "stopped" in errors) == (0, True)
    assert run("consume", "--data", str(served.data), "t") == "kept\n"


def test_a_busy_port_is_all_that_is_said(shared: Served, tmp_path: Path) -> None:
    options = ("--port", shared.port, "--http-port", "0", "--set", "log.level=error")
    ran = subprocess.run(
        command("serve", "--data", str(tmp_path), *options, "--set", "kafka.enabled=false"),
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
        env={name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"},
    )
    assert ran.returncode == 2
    assert "choose another port" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_busy_port_and_a_busy_directory_are_refused_in_a_sentence(
    shared: Served, tmp_path: Path, run: Run
) -> None:
    other = ("--data", str(tmp_path / "other"), "--http-port", "0", "--set", "kafka.enabled=false")
    refused = run("serve", *other, "--port", shared.port, code=2)
    assert "choose another port" in refused
    assert "Traceback" not in refused
    busy = run("serve", "--data", str(shared.data), "--port", "0", "--http-port", "0", code=2)
    assert "Traceback" not in busy
    assert str(shared.data) in busy


def test_settings_are_shown_and_misspelt_ones_are_refused(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[broker]\nfile_reserved_time = 24\n")
    shown = run("config", "-c", str(file), "--set", "offsets.enable_cache=false")
    assert "file_reserved_time = 24" in shown
    assert "enable_cache = false" in shown
    file.write_text("[broker]\nfile_reserved_tim = 24\n")
    assert "file_reserved_time" in run("config", "-c", str(file), code=2)


def test_no_server_is_said_with_what_to_do(run: Run) -> None:
    with socket.socket() as silent:  # holds a port, and answers nobody
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        refused = run("topic", "list", "-s", address, code=2)
    assert "penstock serve" in refused


def test_the_settings_are_printed_without_secrets(run: Run) -> None:
    url = "s3://AKIAXXXX:wJalrSECRET@bucket/prefix?X-Amz-Signature=00SECRET&region=eu"
    shown = run("config", "--set", f"tiering.url={url}")
    assert "SECRET" not in shown
    assert "AKIAXXXX" not in shown
    assert 'url = "s3://***@bucket/prefix?X-Amz-Signature=***&region=eu"' in shown
