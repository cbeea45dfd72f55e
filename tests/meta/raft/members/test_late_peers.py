"""Nodes of a cluster that start at different times, with hours between them if need be."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from msgspec import json as msgspec_json
from tests.free_ports import free_ports
from tests.meta.raft.cluster_in_process import wait_until
from tests.meta.raft.test_serve_cluster import Servers

import penstock
from penstock.errors import DeadlineError, RetryableError
from penstock.meta.raft.group.status import RaftStatus
from penstock.meta.raft.members.leader_wait import (
    VOTE_SECONDS,
    StartEvent,
    await_leaders,
    await_votes,
)
from penstock.meta.state.model import Member
from penstock.meta.storage import log_format as fmt
from penstock.testing.manual_clock import ManualClock

pytest.importorskip("penstock._native", reason="a cluster needs the extension")


def health(port: int) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60) as answer:
            return answer.status, msgspec_json.decode(answer.read(), type=dict)
    except urllib.error.HTTPError as error:
        return error.code, msgspec_json.decode(error.read(), type=dict)
    except OSError:
        return 0, {}


def problem(port: int) -> str:
    status, found = health(port)
    return str(found.get("problem", "")) if status == 503 else ""


@pytest.mark.timeout(240)
def test_a_node_waits_for_its_peers_however_late_they_start(tmp_path: Path) -> None:
    servers = Servers(tmp_path)
    (http,) = free_ports(1)
    try:
        # Fresh ones: the first waits, and can be stopped.
        servers.start(1, f"server.http_port={http}")
        wait_until(lambda: "waiting for nodes 2, 3" in problem(http), "it says for whom")
        servers.stop(1)
        for node in (1, 2, 3):
            servers.start(node)
        wait_until(servers.all_vote, "three servers vote")
        with penstock.connect(servers.addresses[1]) as store:
            store.create_topic("orders", storage="rocksdb", partitions=3).write(b"one")
        for node in (1, 2, 3):
            servers.stop(node)
        # Old ones: none serves alone, and none ends.
        servers.start(1, f"server.http_port={http}")
        wait_until(lambda: "waiting for nodes 2 (127." in problem(http), "it says for whom")
        with pytest.raises(RetryableError), penstock.connect(servers.addresses[1]) as store:
            store.topics()
        log = (tmp_path / "1.log").read_text()
        wait_until(lambda: "start_waits" in (tmp_path / "1.log").read_text(), "it is logged")
        assert log.count("start_waits") <= 2
        servers.stop(1)
        servers.start(1, f"server.http_port={http}")
        wait_until(lambda: bool(problem(http)), "it waits again")
        servers.start(3)
        wait_until(lambda: health(http)[0] == 200, "it serves as soon as there is a majority")
        with penstock.connect(servers.addresses[1]) as store:
            assert store.topics() == ["orders"]
    finally:
        servers.close()


TWO_VOTE = fmt.Configuration(voters=(1, 2))


def _status(
    leader: int,
    name: str = "metadata",
    configuration: fmt.Configuration = TWO_VOTE,
) -> RaftStatus:
    return RaftStatus(
        name=name,
        role="follower",
        term=1,
        leader=leader,
        commit=1,
        applied=1,
        first=1,
        last=1,
        configuration=configuration,
    )


def test_the_wait_is_logged_once_per_change_and_again_every_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    stopping = StartEvent()
    away = [Member(node_id=2, address="h:2", incarnation="")]
    reasons: list[str] = []

    class Watched(ManualClock):
        """Each wait is a second; after 100 of them there is a leader."""

        def wait(self, event: threading.Event, seconds: float) -> bool:
            clock.advance(1)
            reasons.append(stopping.waits_for)
            return event.is_set()

        def monotonic(self) -> float:
            return clock.monotonic()

    def status() -> list[RaftStatus]:
        return [_status(1), _status(0 if len(reasons) < 100 else 2, "offset-0")]

    await_leaders(status, lambda: away, clock=Watched(), stopping=stopping)
    assert set(reasons) == {"no leader of offset-0: waiting for nodes 2 (h:2)"}
    assert stopping.waits_for == ""
    assert sum("start_waits" in record.message for record in caplog.records) == 2
    stopping.set()
    with pytest.raises(DeadlineError, match="stopped while metadata had no leader"):
        await_leaders(lambda: [_status(0)], lambda: away, clock=clock, stopping=stopping)


class Waits(ManualClock):
    """Each wait takes its time; after `count` of them something has happened."""

    def __init__(self, count: float) -> None:
        super().__init__()
        self.count = count
        self.reasons: list[str] = []

    @property
    def is_over(self) -> bool:
        return len(self.reasons) >= self.count

    def wait(self, event: threading.Event, seconds: float) -> bool:
        assert isinstance(event, StartEvent)
        self.advance(milliseconds=round(seconds * 1_000))
        self.reasons.append(event.waits_for)
        return event.is_set()


LEARNS = fmt.Configuration(voters=(1, 2), learners=(3,))
LEAVES_THE_ONE_BEFORE = fmt.Configuration(voters=(1, 2, 3), voters_outgoing=(1, 2))
VOTES = fmt.Configuration(voters=(1, 2, 3))


@pytest.mark.parametrize("before", [LEARNS, LEAVES_THE_ONE_BEFORE])
def test_a_node_that_joins_serves_once_it_votes_in_all_groups(before: fmt.Configuration) -> None:
    clock, stopping = Waits(7), StartEvent()

    def status() -> list[RaftStatus]:
        later = VOTES if clock.is_over else before
        return [_status(1, configuration=VOTES), _status(2, "offset-0", later)]

    await_votes(3, status, clock=clock, stopping=stopping)
    assert clock.reasons == ["this node has joined offset-0 and has no vote there yet"] * 7
    assert stopping.waits_for == ""


def test_a_node_that_gets_no_vote_serves_in_the_end() -> None:
    clock = Waits(float("inf"))
    learning = [_status(1, configuration=LEARNS)]
    await_votes(3, lambda: learning, clock=clock, stopping=StartEvent())
    assert clock.monotonic() >= VOTE_SECONDS
    stopping = StartEvent()
    stopping.set()
    with pytest.raises(DeadlineError, match="stopped while this node has joined metadata"):
        await_votes(3, lambda: learning, clock=clock, stopping=stopping)


def test_settings_of_the_cluster_are_not_shown(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from penstock.cli import build

    secret = tmp_path / "secret"
    secret.write_text("the secret of this file\n")
    settings = {"node.secret": "the secret of all", "node.join_token": "4.5.new.abcdef"}
    pairs = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    shown = CliRunner().invoke(build(), ["config", *pairs, "--set", f"node.secret_file={secret}"])
    assert shown.exit_code == 0
    assert 'secret = "***"' in shown.output
    assert 'join_token = "***"' in shown.output
    assert "of all" not in shown.output
    assert "abcdef" not in shown.output
    refused = CliRunner().invoke(build(), ["config", "--set", "node.secret=12345678901234567890"])
    assert "1234567890" not in f"{refused.output}{refused.exception}"
