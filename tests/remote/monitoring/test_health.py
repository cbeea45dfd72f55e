"""`/health` of a server: up while everything works, and what has stopped for good when it has."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

import penstock
from penstock import Store
from penstock.engine.rocksdb import Database
from penstock.engine.segment.engine import SegmentEngine
from penstock.errors import DiskFailedError, DiskFullError, StoreError
from penstock.meta.standalone.client import StandaloneMetaClient
from penstock.meta.storage.database import RocksDatabase
from penstock.platform.clock import SystemClock
from penstock.platform.disk import Usage
from penstock.platform.local_disk import LocalDisk
from penstock.remote.monitoring import health as health_module
from penstock.remote.monitoring.health import Reason
from penstock.remote.server import node_server as server_module
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, merge_settings

SETTINGS = merge_settings(
    EMBEDDED, {"kafka": {"enabled": False}, "server": {"port": 0, "http_port": 0}}
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(str(tmp_path / "data"), SETTINGS)
    yield running
    with suppress(StoreError):  # what has failed cannot be put on the device
        running.close()


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    with penstock.connect(f"127.0.0.1:{server.port}") as connected:
        yield connected


def health(server: Server, path: str = "/health") -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, msgspec.json.decode(answer.read(), type=dict[str, object])
    finally:
        connection.close()


def check_failed(server: Server, match: str) -> None:
    status, found = health(server)
    assert (status, found["status"]) == (503, "failed")
    assert match in str(found["problem"])
    assert health(server, "/health/ready")[0] == 503
    assert health(server, "/health/live")[0] == 503, "only a new start helps"


def test_a_node_that_works_is_up(server: Server, store: Store) -> None:
    for kind in ("memory", "rocksdb", "segment"):
        store.create_topic(kind, storage=kind).write(b"v")
    assert health(server) == (
        200,
        {"status": "up", "node": 1, "topics": 3, "reasons": []},
    )


def test_a_metadata_log_that_has_stopped_is_told(
    server: Server, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: RocksDatabase) -> None:
        raise DiskFailedError("there/meta", "Input/output error")

    monkeypatch.setattr(RocksDatabase, "sync", fail)
    with pytest.raises(StoreError):
        store.create_topic("t")
    check_failed(server, "there/meta")


def test_a_commit_log_that_has_stopped_is_told_and_one_whose_disk_is_full(
    server: Server, store: Store
) -> None:
    topic = store.create_topic("t", storage="segment")
    topic.write(b"v")
    (engine,) = server.node.engines.opened().values()
    assert isinstance(engine, SegmentEngine)
    engine.store._log.refuse(DiskFullError("no room"))
    status, found = health(server)
    assert (status, found["status"]) == (503, "not_ready")
    assert found["reasons"] == [{"check": "disk", "level": "error", "reason": "no room"}]
    assert health(server, "/health/live")[0] == 200
    engine.store._log.refuse(DiskFailedError("there/commitlog", "sync failed"))
    with pytest.raises(DiskFailedError):
        topic.write(b"w")
    check_failed(server, "there/commitlog")


def test_an_instance_of_rocksdb_that_has_failed_is_told(
    server: Server, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.create_topic("t", storage="rocksdb", flush="sync")

    def fail(*_: object) -> None:
        raise Exception("IO error: Input/output error")  # noqa: TRY002 - as the binding raises it

    monkeypatch.setattr(Database, "_flush_log", fail)
    with pytest.raises(DiskFailedError):
        topic.write(b"v")
    check_failed(server, "/rocksdb")


def reasons(server: Server) -> dict[str, tuple[str, str]]:
    _, found = health(server, "/health/ready")
    shown = msgspec.convert(found["reasons"], list[Reason])
    return {one.check: (one.level, one.reason) for one in shown}


def test_a_full_disk_is_told_also_without_an_open_engine(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalDisk, "usage", lambda _, __: Usage(100, 95))
    assert health(server)[0] == 503
    level, reason = reasons(server)["disk"]
    assert level == "error"
    assert "95 % full" in reason
    assert health(server, "/health/live")[0] == 200


def test_a_metadata_service_without_a_leader_is_told(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StandaloneMetaClient, "leader_problem", lambda _: "no leader")
    assert health(server)[0] == 503
    assert reasons(server) == {"metadata_leader": ("error", "no leader")}


def test_calls_that_find_no_thread_are_told(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_module, "WAITING_S", 0.01)
    go = threading.Event()
    threads = server._threads
    calls = [threads.submit(go.wait, 60) for _ in range(threads.threads_max + 5)]
    try:
        deadline = time.monotonic() + 30
        while "grpc" not in reasons(server) and time.monotonic() < deadline:
            pass
        level, reason = reasons(server)["grpc"]
        assert (level, "5 calls wait" in reason) == ("error", True)
    finally:
        go.set()
    wait(calls)
    assert reasons(server) == {}


def test_a_clock_that_is_held_is_told_and_the_node_stays_ready(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SystemClock.now_ms
    monkeypatch.setattr(SystemClock, "now_ms", lambda self: real(self) + 10 * 86_400_000)
    status, found = health(server)
    assert (status, found["status"]) == (200, "degraded")
    assert reasons(server)["clock"][0] == "warning"


def test_a_front_end_that_was_asked_for_and_does_not_run_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_serve_kafka", lambda *_: None)
    settings = merge_settings(SETTINGS, {"kafka": {"enabled": True, "port": 0}})
    with Server(str(tmp_path / "data"), settings) as server:
        assert health(server)[0] == 503
        assert reasons(server)["kafka"][0] == "error"
        assert health(server, "/health/live")[0] == 200
