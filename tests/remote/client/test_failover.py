"""`penstock.connect` with several addresses: calls go to the next one when a server is away."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.free_ports import free_ports
from tests.meta.raft.cluster_in_process import wait_until
from tests.meta.raft.test_serve_cluster import Servers as ServeCluster
from typer.testing import CliRunner

import penstock
from penstock.cli import build
from penstock.errors import (
    BadRequestError,
    DeadlineError,
    RetryableError,
    StoreError,
    UnknownTopicError,
)
from penstock.node.connect_store import check_addresses
from penstock.remote.client import failover
from penstock.remote.client.failover import Server, Servers, UnansweredError
from penstock.remote.server.node_server import Server as NodeServer
from penstock.settings import EMBEDDED, merge_settings

LOST = UnansweredError(DeadlineError("went away; the outcome is unknown"))


def serve(directory: Path) -> NodeServer:
    ports = {"kafka": {"enabled": False}, "server": {"port": 0, "http_port": 0}}
    return NodeServer(str(directory), merge_settings(EMBEDDED, ports))


class Fake:
    """Servers that are reached or not, and answer or fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *behaviours: object) -> None:
        self.behaviours = dict(zip("abcdef", behaviours, strict=False))
        self.asked: list[str] = []
        self.budgets: list[float] = []
        monkeypatch.setattr(
            Server, "await_ready", lambda server, seconds, _now: self._ready(server, seconds)
        )
        self.servers = Servers([f"{name}:1" for name in self.behaviours], [])

    def _ready(self, server: Server, _seconds: float) -> bool:
        return self.behaviours[server.address[0]] is not None

    def attempt(self, server: Server, seconds: float, waits: bool) -> str:
        assert not waits
        name = server.address[0]
        self.asked.append(name)
        self.budgets.append(seconds)
        behaviour = self.behaviours[name]
        if isinstance(behaviour, Exception):
            raise behaviour
        assert isinstance(behaviour, str)
        return behaviour


def test_a_call_that_was_not_sent_goes_to_the_next_server_also_when_it_may_not_be_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unsent = UnansweredError(DeadlineError("failed to connect"), is_sent=False)
    fake = Fake(monkeypatch, unsent, "from b")
    assert fake.servers.call(fake.attempt, 5.0) == "from b"
    assert fake.asked == ["a", "b"]
    fake = Fake(monkeypatch, LOST, "from b")
    with pytest.raises(DeadlineError, match="the outcome is unknown"):
        fake.servers.call(fake.attempt, 5.0)
    assert fake.asked == ["a"]


def test_a_call_goes_to_the_first_server_that_is_there_and_stays_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = Fake(monkeypatch, None, "b", "c")
    for _ in range(2):
        assert fake.servers.call(fake.attempt, 5, waits=False) == "b"
    assert fake.asked == ["b", "b"]
    fake.behaviours |= {"a": "a", "b": None}
    assert fake.servers.call(fake.attempt, 5) == "c"


@pytest.mark.parametrize("error", [LOST, DeadlineError("no majority")])
def test_what_may_have_arrived_is_sent_again_only_if_it_may_be_repeated(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    fake = Fake(monkeypatch, error, "b")
    with pytest.raises(DeadlineError):
        fake.servers.call(fake.attempt, 5)
    assert fake.asked == ["a"]
    assert fake.servers.call(fake.attempt, 5, may_repeat=True) == "b"
    # A server that hangs does not take the time of the others.
    assert fake.budgets[1] <= 2.5


def test_an_answer_of_the_store_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(monkeypatch, UnknownTopicError("orders"), "b")
    with pytest.raises(UnknownTopicError):
        fake.servers.call(fake.attempt, 5, may_repeat=True)
    assert fake.asked == ["a"]


def test_without_any_server_the_deadline_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(monkeypatch, None, None)
    began = time.monotonic()
    with pytest.raises(DeadlineError, match=r"answers at a:1, b:1; nothing was done"):
        fake.servers.call(fake.attempt, 0.5)
    assert time.monotonic() - began >= 0.5
    with pytest.raises(DeadlineError, match="nothing was done"):
        fake.servers.call(fake.attempt, 1_000, waits=False)
    fake = Fake(monkeypatch, LOST, LOST)
    with pytest.raises(DeadlineError, match="outcome is unknown"):
        fake.servers.call(fake.attempt, 0.5, may_repeat=True)
    with pytest.raises(DeadlineError, match="outcome is unknown"):
        fake.servers.call(fake.attempt, 1_000, may_repeat=True, waits=False)


def test_what_may_have_been_done_is_not_called_undone_when_the_last_round_reaches_no_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = Fake(monkeypatch, LOST, LOST)

    def attempt(server: Server, seconds: float, waits: bool) -> str:
        try:
            return fake.attempt(server, seconds, waits)
        finally:
            fake.behaviours[server.address[0]] = None  # gone

    with pytest.raises(DeadlineError, match="outcome is unknown"):
        fake.servers.call(attempt, 0.5, may_repeat=True)


def test_a_server_that_refuses_connections_is_known_to_be_away_immediately() -> None:
    (port,) = free_ports(1)
    server = Server(f"127.0.0.1:{port}", [])
    assert not server.connect(10_000)  # not after this time
    assert not server.connect(0.2, waits=True)
    server.channel.close()
    assert server.connect(10_000), "the call itself says that the channel is closed"


def test_a_call_is_not_sent_to_a_server_that_accepts_connections_and_says_nothing(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, serve(tmp_path / "data") as serving:
        addresses = [f"127.0.0.1:{silent.getsockname()[1]}", f"127.0.0.1:{serving.port}"]
        with penstock.connect(addresses) as store:
            assert store.create_topic("orders").write(b"one").offset == 0


PROGRAM = """
import sys, penstock
store = penstock.connect(sys.argv[1:])
topic = store.topic("orders")
topic.write(b"first")
print("connected", flush=True)
sys.stdin.readline()
topic.read()
print("read", flush=True)
"""


def test_a_program_that_lost_a_server_ends_without_closing_its_store(tmp_path: Path) -> None:
    with serve(tmp_path / "b") as second:
        with serve(tmp_path / "a") as first:
            addresses = [f"127.0.0.1:{server.port}" for server in (first, second)]
            for address in addresses:
                with penstock.connect(address) as store:
                    store.create_topic("orders")
            program = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *addresses],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                assert program.stdout is not None
                assert program.stdout.readline() == "connected\n"
            except BaseException:
                program.kill()
                raise
        try:
            said, _ = program.communicate("go on\n", timeout=60)
        finally:
            program.kill()
            program.wait()
    assert (program.returncode, said) == (0, "read\n")


def test_addresses_are_a_list_or_have_commas_between() -> None:
    assert check_addresses("a:1") == ["a:1"]
    assert check_addresses(" a:1, b:2 ,,a:1") == ["a:1", "b:2"]
    assert check_addresses(("a:1", "b:2")) == ["a:1", "b:2"]
    wrong: list[object] = ["", ",", [], "a:1,b", [1], 5, None, ["a:1"] * 65]
    for one in wrong:
        with pytest.raises(BadRequestError):
            check_addresses(one)  # type: ignore[arg-type] # what a caller may hand over


def test_connecting_needs_one_server_of_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "CONNECT_S", 2.0)
    nothing, other = (f"127.0.0.1:{port}" for port in free_ports(2))
    with pytest.raises(DeadlineError, match=f"answers at {nothing}, {other}"):
        penstock.connect([nothing, other])


@pytest.mark.timeout(300)
def test_a_client_of_three_nodes_goes_on_when_one_is_killed_or_hangs(tmp_path: Path) -> None:
    pytest.importorskip("penstock._native", reason="a cluster needs the extension")
    cluster = ServeCluster(tmp_path)
    try:
        for node in (1, 2, 3):
            cluster.start(node)
        wait_until(cluster.all_vote, "three servers vote")
        wait_until(lambda: cluster.nodes_that("online") == 3, "all nodes are registered")
        addresses = ",".join(cluster.addresses.values())
        with penstock.connect(addresses, deadline_s=20) as store:
            topic = store.create_topic("orders", storage="rocksdb", partitions=3)
            led = {one.leader: one.partition for one in topic.describe().partitions}
            for partition in range(3):
                topic.write(b"one", partition=partition)
            with store.consumer("readers", ["orders"]) as consumer:
                assert consumer.poll(5)
                consumer.commit()
            cluster.kill(1)
            alive = [partition for node, partition in led.items() if node != 1]
            for partition in alive:
                assert _within(120, partial(topic.write, b"two", partition=partition))
                assert [one.value for one in topic.read(partition)] == [b"one", b"two"]
            assert store.topics() == ["orders"]
            _ask_all(store, addresses)
            cluster.start(1)
            wait_until(lambda: cluster.nodes_that("online", node=2) == 3, "it is back")
            # A node that hangs is worse than one that is gone.
            hung = cluster.running[2]
            os.kill(hung.pid, signal.SIGSTOP)
            try:
                with penstock.connect(
                    [cluster.addresses[2], cluster.addresses[3]], deadline_s=8
                ) as other:
                    assert _within(120, other.topics) == ["orders"]
            finally:
                os.kill(hung.pid, signal.SIGCONT)
    finally:
        cluster.close()


def _within(seconds: float, call: Callable[[], object]) -> object:
    """Repeat a call that may be tried again; return its answer."""
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except RetryableError:
            assert time.monotonic() < end


def _ask_all(store: penstock.Store, addresses: str) -> None:
    """With a node away, what can be listed is, in a bounded time, and says what is not known."""
    for call in (
        store.topics,
        store.groups,
        lambda: store.topic("orders").describe(),
        lambda: [store.describe_group(group) for group in store.groups()],
    ):
        began = time.monotonic()
        found: object = None
        try:
            found = call()
        except StoreError as error:
            pytest.fail(f"{call}: {error}")
        assert found is not None
        assert time.monotonic() - began < 60
    for command in (["topic", "list"], ["topic", "describe", "orders"]):
        shown = CliRunner().invoke(build(), [*command, "-s", addresses])
        assert shown.exit_code == 0, shown.output
