"""Damage at rest, which no client has read: the scrubber finds it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.meta.raft.cluster_in_process import wait_until
from tests.meta.raft.test_serve_cluster import Servers

import penstock
from penstock.errors import BadRequestError, SetupError
from penstock.node.node import Node
from penstock.record import Offset
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, Settings, merge_settings

MARK = b"a record that is not read by anyone"


def flip_in_log(path: Path, mark: bytes = MARK, directory: str = "segment/commitlog") -> None:
    """Flip a bit of the first place where `mark` is."""
    for file in sorted((path / directory).iterdir()):
        at = file.read_bytes().find(mark) if file.is_file() else -1
        if at >= 0:
            with file.open("r+b") as opened:
                opened.seek(at)
                opened.write(bytes([mark[0] ^ 1]))
            return
    raise AssertionError(f"{mark!r} is nowhere in {path / directory}")


def count_in_log(path: Path) -> int:
    return sum(file.read_bytes().count(MARK) for file in (path / "segment/commitlog").iterdir())


def fill(path: Path, storage: str = "segment") -> None:
    with penstock.open(path) as store:
        topic = store.create_topic("t", storage=storage)
        topic.write_many([b"%d" % number for number in range(10)])
        topic.write(MARK)
        topic.write_many([b"%d" % number for number in range(10)])


@pytest.fixture
def node(directory: Path) -> Iterator[Node]:
    fill(directory)
    flip_in_log(directory)
    with Node(directory, EMBEDDED, background=False) as opened:
        yield opened


def metric(node: Node, name: str) -> float | None:
    return node.registry.get_sample_value(f"penstock_scrub_{name}")


def test_a_flipped_bit_is_found_and_reported_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.scrubber.run_once()
    node.scrubber.run_once()
    (damage,) = node.scrubber.damaged()
    assert damage[1] == 10
    logged = [record for record in caplog.records if "scrub_found_damage" in record.message]
    assert len(logged) == 1
    assert (metric(node, "damage_found_total"), metric(node, "damaged_shards")) == (1, 1)
    assert metric(node, "passes_total") == 2
    assert (metric(node, "bytes_total") or 0) > 0


def test_records_after_damage_are_verified_too(directory: Path) -> None:
    fill(directory)
    with penstock.open(directory) as store:
        store.topic("t").write_many([MARK + b" and another", b"last"])
    flip_in_log(directory)
    flip_in_log(directory, MARK + b" and another")
    with Node(directory, EMBEDDED, background=False) as node:
        node.scrubber.run_once()
        assert metric(node, "damage_found_total") == 2


def test_damage_that_is_deleted_is_reported_no_more(node: Node) -> None:
    node.scrubber.run_once()
    (name,) = (name for name, _ in node.scrubber.damaged())
    node.handler.delete_records_before(name, Offset(11))
    node.scrubber.look_again()
    assert node.scrubber.damaged() == []
    assert metric(node, "damaged_shards") == 0


def test_an_engine_that_cannot_be_opened_does_not_stop_the_others(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.admin.create_topic_full("rows", 1, {"storage": "rocksdb"})
    engines = node.handler.engines
    (lost,) = {
        entry.topic.storage_type
        for entry in node.storage_cache.entries()
        if "rocksdb" in entry.topic.storage_type.lower()
    }
    get = type(engines).get

    def fail(self: object, storage_type: str) -> object:
        if storage_type == lost:
            raise SetupError("the package of the engine is missing")
        return get(engines, storage_type)

    monkeypatch.setattr(type(engines), "get", fail)
    assert node.scrubber._rate(node.scrubber._entries()) > 0
    node.scrubber.run_once()
    assert len(node.scrubber.damaged()) == 1


def test_a_whole_store_has_no_damage(directory: Path) -> None:
    fill(directory)
    with Node(directory, EMBEDDED, background=False) as node:
        node.scrubber.run_once()
        assert node.scrubber.damaged() == []


def test_a_damaged_block_of_rocksdb_is_found(directory: Path) -> None:
    with penstock.open(directory) as store:
        topic = store.create_topic("t", storage="rocksdb")
        topic.write_many([b"%05d" % number * 20 for number in range(3_000)])
    with Node(directory, EMBEDDED, background=False) as node:
        node.scrubber.run_once()
        assert node.scrubber.damaged() == []
    tables = sorted(directory.glob("**/*.sst"), key=lambda path: path.stat().st_size)
    table = next((path for path in reversed(tables) if "meta" not in path.parts), None)
    if table is None:
        pytest.skip("the rows are in the log of RocksDB")
    with table.open("r+b") as file:
        file.seek(table.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(table.stat().st_size // 2)
        file.write(bytes([byte ^ 1]))
    with Node(directory, EMBEDDED, background=False) as node:
        node.scrubber.run_once()
        assert len(node.scrubber.damaged()) == 1


def test_the_scrubber_of_a_server_finds_damage_by_itself_and_health_shows_it(
    tmp_path: Path,
) -> None:
    fill(tmp_path / "data")
    flip_in_log(tmp_path / "data")
    changes = {"server": {"port": 0, "http_port": 0}, "kafka": {"enabled": False}}
    with Server(str(tmp_path / "data"), merge_settings(Settings(), changes)) as server:
        wait_until(lambda: bool(server.node.scrubber.damaged()), "it is found")
        with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/health") as answer:
            page = json.load(answer)
    (reason,) = (reason for reason in page["reasons"] if reason["check"] == "damage")
    assert reason["level"] == "warning"
    assert "1 shards have damaged records on this node" in reason["reason"]


def test_the_scrubber_can_be_switched_off(directory: Path) -> None:
    settings = merge_settings(EMBEDDED, {"engine": {"scrub_interval_days": 0}})
    fill(directory)
    flip_in_log(directory)
    with Node(directory, settings) as node:
        assert node.scrubber._thread is None


@pytest.mark.timeout(300)
def test_replicas_and_a_leader_with_damage_that_no_client_reads_are_repaired(
    tmp_path: Path,
) -> None:
    pytest.importorskip("penstock._native", reason="a cluster needs the extension")
    servers = Servers(tmp_path)
    try:
        for node in (1, 2, 3):
            servers.start(node, "engine.scrub_interval_days=0.00001")
        wait_until(lambda: servers.nodes_that("online") == 3, "three servers are registered")
        with penstock.connect(servers.addresses[1]) as store:
            wait_until(partial(_create, store), "three nodes can have replicas")
            store.topic("t").write_many([b"before", MARK, b"after"])
            leader = store.topic("t").describe().partitions[0].leader
        assert leader is not None
        follower = leader % 3 + 1
        for node in (follower, leader):
            wait_until(lambda: "all in sync" in servers.cluster("status"), "all have it")
            wait_until(partial(_has_mark, tmp_path / str(node)), "it is there")
            flip_in_log(tmp_path / str(node))
            assert count_in_log(tmp_path / str(node)) == 0
            wait_until(partial(_has_mark, tmp_path / str(node)), "it is repaired")
            assert "scrub_found_damage" in (tmp_path / f"{node}.log").read_text()
        wait_until(lambda: "all in sync" in servers.cluster("status"), "all are whole")
        with penstock.connect(servers.addresses[1]) as store:
            values = [record.value for record in store.topic("t").read(max_records=10)]
        assert values == [b"before", MARK, b"after"]
    finally:
        servers.close()


def _create(store: penstock.Store) -> bool:
    try:
        store.create_topic("t", replication=3)
    except BadRequestError:
        return False
    return True


def _has_mark(path: Path) -> bool:
    return count_in_log(path) == 1
