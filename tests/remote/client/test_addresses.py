"""Where a server listens: IPv4, IPv6 and names; and what is said when it cannot."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import penstock
from penstock.codec.select import IS_NATIVE
from penstock.errors import SetupError
from penstock.platform.addresses import bare_host, bracketed, find_problem, resolve, with_port
from penstock.remote.monitoring.http_server import MonitoringServer
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, Settings, merge_settings

UNKNOWN = "no-such-host.invalid"
ELSEWHERE = "192.0.2.1"
"""An address for documents: no machine has it."""


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as trial:
            trial.bind(("::1", 0))
    except OSError:
        return False
    return True


def know_nobody(*_: object, **_named: object) -> None:
    """In place of a server for names, which no test asks."""
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def settings(host: str) -> Settings:
    ports = {"kafka": {"port": 0}, "server": {"host": host, "port": 0, "http_port": 0}}
    return merge_settings(EMBEDDED, ports)


def test_brackets_stand_in_front_of_a_port_only() -> None:
    assert with_port("::1", 7) == with_port("[::1]", 7) == "[::1]:7"
    assert with_port("10.0.0.1", 7) == "10.0.0.1:7"
    assert [bare_host(host) for host in ("[::1]", "::1", "name")] == ["::1", "::1", "name"]
    assert [bracketed(host) for host in ("[::1]", "::1", "name")] == ["[::1]", "[::1]", "name"]


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["::1", "[::1]", "::", "[::]"])
def test_every_port_of_a_server_listens_on_ipv6(tmp_path: Path, host: str) -> None:
    with Server(str(tmp_path / "data"), settings(host)) as server:
        assert server.host == bracketed(host)
        with penstock.connect(f"[::1]:{server.port}") as store:
            store.create_topic("t").write(b"v")
        monitoring = http.client.HTTPConnection("::1", server.http_port, timeout=60)
        monitoring.request("GET", "/health")
        assert monitoring.getresponse().status == 200
        monitoring.close()
        assert (server.kafka is not None) == IS_NATIVE
        if server.kafka is not None:
            socket.create_connection(("::1", server.kafka.port), timeout=60).close()
        if bare_host(host) == "::":
            with penstock.connect(f"127.0.0.1:{server.port}") as store:
                assert store.topics() == ["t"]


def test_a_name_is_listened_on(tmp_path: Path) -> None:
    with Server(str(tmp_path / "data"), settings("localhost")) as server:
        with penstock.connect(f"localhost:{server.port}") as store:
            assert store.topics() == []
        socket.create_connection(("localhost", server.http_port), timeout=60).close()


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        (UNKNOWN, "nor a name that this machine can resolve"),
        ("[::1", "nor a name that this machine can resolve"),
        (ELSEWHERE, f"{ELSEWHERE}:.*no such address"),
    ],
)
def test_a_host_that_cannot_be_listened_on_is_named(
    tmp_path: Path, host: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not host[0].isdigit():
        monkeypatch.setattr(socket, "getaddrinfo", know_nobody)
    with pytest.raises(SetupError, match=problem) as raised:
        Server(str(tmp_path / "data"), settings(host))
    assert "choose another host" in str(raised.value)
    with pytest.raises(SetupError, match=problem):
        MonitoringServer(host, 0, CollectorRegistry(), dict)


def test_a_host_that_cannot_be_a_name_is_told() -> None:
    with pytest.raises(SetupError, match="nor a name that this machine can resolve"):
        resolve("a" * 300, 7)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = str(find_problem("127.0.0.1", port, choose="another port"))
    assert found == f"127.0.0.1:{port} is in use; choose another port"


def test_a_name_with_several_addresses_is_listened_on_where_it_was_before() -> None:
    assert resolve("localhost", 7) == (socket.AF_INET, ("127.0.0.1", 7))
