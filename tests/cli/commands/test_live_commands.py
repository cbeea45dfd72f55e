"""`produce` from a stream that goes on, and `consume` for a group: nothing is kept back, nothing is
counted as printed that was not."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from tests.cli.conftest import Run

import penstock
from penstock.adapter.locations import Message
from penstock.cli.commands import consume
from penstock.remote.server.node_server import Server
from penstock.settings import load_settings

pytestmark = pytest.mark.timeout(300)

WAIT_S: Final = 120.0
SETTINGS: Final = {
    "server.port": 0,
    "server.http_port": 0,
    "kafka.enabled": False,
    "broker.commit_log_file_size": 16 << 20,
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = load_settings(None, overrides=SETTINGS)
    with Server(str(tmp_path_factory.mktemp("live") / "data"), settings) as server:
        yield f"{server.host}:{server.port}"


@pytest.fixture
def store(address: str) -> Iterator[penstock.Store]:
    with penstock.connect(address) as found:
        yield found


@contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", "from penstock.cli import main; main()", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def offsets(store: penstock.Store, group: str) -> dict[tuple[str, int], int]:
    if group not in store.groups():
        return {}
    return {at: int(offset) for at, offset in store.describe_group(group).offsets.items()}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_lines_are_written_while_the_stream_goes_on(
    address: str, store: penstock.Store, number: signal.Signals
) -> None:
    name = f"live-{number}"
    topic = store.create_topic(name)
    with running("produce", "-s", address, name) as child:
        assert child.stdin is not None
        for line in ("a", "b"):
            child.stdin.write(f"{line}\n")
            child.stdin.flush()
            assert topic.wait({0: ord(line) - ord("a")}, seconds=WAIT_S)
        child.send_signal(number)
        _, errors = child.communicate(timeout=WAIT_S)
    assert (child.returncode, errors) == (130, f"wrote 2 records to {name}\n")
    assert [message.value for message in topic] == [b"a", b"b"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_group_that_follows_is_saved_while_nothing_comes(
    address: str, store: penstock.Store, number: signal.Signals
) -> None:
    name = f"idle-{number}"
    topic = store.create_topic(name)
    topic.write_many([b"a", b"b"])
    with running("consume", "-s", address, name, "-f", "-g", name) as child:
        wait_until(lambda: offsets(store, name) == {(name, 0): 2})
        topic.write(b"c")
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in "abc"] == ["a\n", "b\n", "c\n"]
        child.send_signal(number)
        assert child.communicate(timeout=WAIT_S) == ("", "")
    assert child.returncode == 0
    assert offsets(store, name) == {(name, 0): 3}


def test_a_record_that_could_not_be_printed_is_not_committed(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.open(tmp_path) as own:
        own.create_topic("t").write_many([b"a", b"b", b"c"])

    def print_until_the_disk_is_full(message: Message, *, as_json: bool) -> None:
        if message.value == b"b":
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(consume, "_print", print_until_the_disk_is_full)
        ran = run("consume", "t", "-g", "g", "-d", tmp_path)
    assert (ran.code, ran.err) == (2, "penstock: [Errno 28] No space left on device\n")
    assert run("consume", "t", "-g", "g", "-d", tmp_path).out == "b\nc\n"


def test_a_limit_counts_what_is_printed_and_commits_what_was_passed_over(
    tmp_path: Path, run: Run
) -> None:
    with penstock.open(tmp_path) as own:
        records = [penstock.Record(value, tags=(value.decode(),)) for value in (b"a", b"b", b"c")]
        own.create_topic("t").write_many(records)
    for expected in ("b\n", ""):
        assert run("consume", "t", "-g", "g", "-t", "b", "-n", "1", "-d", tmp_path).out == expected
        with penstock.open(tmp_path) as own:
            assert offsets(own, "g") == {("t", 0): 2 if expected else 3}
    with penstock.open(tmp_path) as own:
        own.topic("t").write(b"d")
    assert run("consume", "t", "-g", "g", "-n", "1", "-d", tmp_path).out == "d\n"


def test_a_topic_made_anew_in_between_is_not_passed_over(
    address: str, store: penstock.Store, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = store.create_topic("anew", partitions=2)
    for partition in (0, 1):
        old.write_many([b"old", b"old"], partition=partition)
    printed: list[bytes | None] = []

    def print_and_make_anew(message: Message, *, as_json: bool) -> None:
        printed.append(message.value)
        if len(printed) == 4:
            old.delete()
            store.create_topic("anew", partitions=2).write(b"new", partition=0)

    monkeypatch.setattr(consume, "_print", print_and_make_anew)
    assert run("consume", "anew", "-g", "of-anew", "-s", address).code == 0
    assert printed == [b"old"] * 4 + [b"new"]
    assert offsets(store, "of-anew") == {("anew", 0): 1, ("anew", 1): 0}


def test_a_write_that_fails_says_what_went_before(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.open(tmp_path) as own:
        own.create_topic("t", record_size_max=100)
    files = [tmp_path / "small", tmp_path / "large"]
    files[0].write_bytes(b"s")
    files[1].write_bytes(b"l" * 101)
    monkeypatch.setattr("penstock.cli.commands.line_batches.BATCH", 1)
    ran = run("produce", "t", *files, "-d", tmp_path)
    told, sentence = ran.err.splitlines()
    assert (ran.code, told) == (2, "wrote 1 record to t")
    assert "101" in sentence
    assert run("consume", "t", "-d", tmp_path).out == "s\n"


def test_following_a_topic_goes_on_with_one_of_the_same_name_from_its_start(
    address: str, store: penstock.Store
) -> None:
    store.create_topic("made-anew").write_many([b"a", b"b", b"c"])
    with running("consume", "-s", address, "made-anew", "-f") as child:
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in "abc"] == ["a\n", "b\n", "c\n"]
        store.topic("made-anew").delete()
        store.create_topic("made-anew").write_many([b"1", b"2", b"3", b"4", b"5"])
        assert [child.stdout.readline() for _ in "12345"] == [f"{one}\n" for one in "12345"]
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=WAIT_S)
    assert "made-anew was deleted and created again" in errors
