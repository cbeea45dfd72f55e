"""`/health` of a server: up while everything works, and what has stopped for good when it has."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

import penstock
from penstock import Store
from penstock.engine.rocksdb import Database
from penstock.engine.segment.engine import SegmentEngine
from penstock.errors import DiskFailedError, DiskFullError, StoreError
from penstock.meta.database import RocksDatabase
from penstock.remote.server import Server
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


def health(server: Server) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        return answer.status, msgspec.json.decode(answer.read(), type=dict[str, object])
    finally:
        connection.close()


def check_failed(server: Server, match: str) -> None:
    status, found = health(server)
    assert (status, found["status"]) == (503, "failed")
    assert match in str(found["problem"])


def test_a_node_that_works_is_up(server: Server, store: Store) -> None:
    for kind in ("memory", "rocksdb", "segment"):
        store.create_topic(kind, storage=kind).write(b"v")
    assert health(server) == (200, {"status": "up", "node": 1, "topics": 3})


def test_a_metadata_log_that_has_stopped_is_told(
    server: Server, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: RocksDatabase) -> None:
        raise DiskFailedError("there/meta", "Input/output error")

    monkeypatch.setattr(RocksDatabase, "sync", fail)
    with pytest.raises(StoreError):
        store.create_topic("t")
    check_failed(server, "there/meta")


def test_a_commit_log_that_has_stopped_is_told_and_one_whose_disk_is_full_is_not(
    server: Server, store: Store
) -> None:
    topic = store.create_topic("t", storage="segment")
    topic.write(b"v")
    (engine,) = server.node.engines.opened().values()
    assert isinstance(engine, SegmentEngine)
    engine.store._log.refuse(DiskFullError("no room"))
    assert health(server)[0] == 200
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
