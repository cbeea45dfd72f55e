"""The HTTP port: what it answers, and that slow or many clients cannot take it over."""

from __future__ import annotations

import http.client
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from prometheus_client import CollectorRegistry, Counter

from penstock.errors import SetupError
from penstock.remote.monitoring import pages as http_pages
from penstock.remote.monitoring.http_server import MonitoringServer

HOST = "127.0.0.1"
WAIT_S = 60.0


@contextmanager
def serving(
    health: Callable[[], dict[str, object]] = dict,
    *,
    connections_max: int = 4,
    seconds_max: float = WAIT_S,
) -> Iterator[MonitoringServer]:
    registry = CollectorRegistry()
    Counter("orders", "Orders.", registry=registry).inc(3)
    server = MonitoringServer(
        HOST, 0, registry, health, connections_max=connections_max, seconds_max=seconds_max
    )
    try:
        yield server
    finally:
        server.close()


def get(server: MonitoringServer, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=WAIT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except ConnectionError:
        return 503, b""  # refused before the request came
    finally:
        connection.close()


def dial(server: MonitoringServer) -> socket.socket:
    return socket.create_connection((HOST, server.port), timeout=WAIT_S)


def read_until_closed(connection: socket.socket) -> bytes:
    found = b""
    try:
        while data := connection.recv(4096):
            found += data
    except ConnectionError:
        pass  # cut while there was something that the server had not read
    return found


def test_metrics_and_health() -> None:
    with serving(lambda: {"problem": "the disk is full"}) as server:
        status, body = get(server, "/metrics")
        assert status == 200
        assert b"orders_total 3.0" in body
        assert get(server, "/metrics?name[]=orders_total")[0] == 200
        assert get(server, "/health") == (503, b'{"problem":"the disk is full"}')
        assert get(server, "/")[0] == 404


def test_a_busy_port_is_named() -> None:
    with (
        serving() as server,
        pytest.raises(SetupError, match=f"{HOST}:{server.port}.*another http port"),
    ):
        MonitoringServer(HOST, server.port, CollectorRegistry(), dict)


def test_clients_that_say_nothing_keep_no_other_out() -> None:
    with ExitStack() as idle, serving(connections_max=3) as server:
        before = threading.active_count()
        silent = [idle.enter_context(dial(server)) for _ in range(40)]
        for path in ("/health", "/health/ready", "/health/live", "/metrics"):
            assert get(server, path)[0] == 200
        assert threading.active_count() == before
        # The oldest made room for the others.
        assert read_until_closed(silent[0]) == b""


def test_a_flood_of_half_requests_keeps_no_other_out() -> None:
    with ExitStack() as idle, serving(connections_max=8) as server:
        for _ in range(20):
            for _ in range(20):
                idle.enter_context(dial(server)).sendall(b"GET /health HTTP/1.1\r\nX: ")
            assert get(server, "/health")[0] == 200


def test_clients_that_do_not_read_keep_no_other_out() -> None:
    text = "x" * (8 << 20)
    with ExitStack() as idle, serving(lambda: {"text": text}, connections_max=64) as server:
        for _ in range(40):
            idle.enter_context(dial(server)).sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert get(server, "/metrics")[0] == 200
        assert len(get(server, "/health")[1]) > len(text)


def test_a_check_that_hangs_is_not_ready_and_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_pages, "CHECK_S", 0.2)
    go = threading.Event()

    def hang() -> dict[str, object]:
        assert go.wait(WAIT_S)
        return {}

    with serving(hang) as server:
        try:
            status, body = get(server, "/health/ready")
            assert (status, b"did not finish" in body) == (503, True)
            assert get(server, "/health/live")[0] == 200
            assert get(server, "/metrics")[0] == 200
        finally:
            go.set()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /health HTTP/1.1\r\n\r\n", 405),
        (b"GET /health/other HTTP/1.1\n\n", 404),
        (b"x" * 20_000, 431),
    ],
)
def test_what_is_no_request_for_a_page_is_refused(sent: bytes, status: int) -> None:
    with serving() as server, dial(server) as connection:
        connection.sendall(sent)
        assert read_until_closed(connection).startswith(b"HTTP/1.1 %d " % status)


def test_a_process_without_descriptors_still_answers() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as taken, serving() as server, dial(server) as connection:
        used = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 50, limits[1]))
        try:
            with suppress(OSError):
                while True:
                    taken.callback(os.close, os.dup(0))
            connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            assert read_until_closed(connection).startswith(b"HTTP/1.1 200 ")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("sent", [b"", b"GET /metr"], ids=["silent", "half a request"])
def test_an_idle_connection_is_closed(sent: bytes) -> None:
    with serving(seconds_max=0.05) as server, dial(server) as connection:
        connection.sendall(sent)
        assert read_until_closed(connection) == b""


def test_a_client_that_trickles_is_cut() -> None:
    """Each byte comes in time, the request never does."""
    with serving(seconds_max=0.3) as server, dial(server) as connection:
        connection.settimeout(0.01)
        ended = False
        while not ended:
            try:
                connection.sendall(b"x")
                ended = connection.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                ended = True


def test_closing_does_not_wait_for_clients() -> None:
    with ExitStack() as idle:
        with serving(connections_max=3) as server:
            silent = [idle.enter_context(dial(server)) for _ in range(3)]
            assert get(server, "/health")[0] == 200
        for connection in silent:
            assert read_until_closed(connection) == b""


def test_a_client_that_goes_away_is_no_event(capfd: pytest.CaptureFixture[str]) -> None:
    waiting, go = threading.Event(), threading.Event()

    def slow_health() -> dict[str, object]:
        waiting.set()
        assert go.wait(WAIT_S)
        return {"text": "x" * (4 << 20)}

    with serving(slow_health, connections_max=1) as server:
        with dial(server) as connection:
            connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            assert waiting.wait(WAIT_S)
        go.set()
        answers = (get(server, "/metrics")[0] for _ in range(100_000))
        assert next(status for status in answers if status != 503) == 200
    assert "Traceback" not in capfd.readouterr().err
