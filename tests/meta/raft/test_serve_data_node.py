"""Three servers with the role `meta` and one without: it has replicas, leads, ends and returns."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.free_ports import free_ports
from tests.meta.raft.cluster_in_process import wait_until
from tests.meta.raft.test_serve_cluster import Servers

import penstock
from penstock.api import Store
from penstock.errors import AlreadyExistsError, BadRequestError, RetryableError, StoreError

pytest.importorskip("penstock._native", reason="a cluster needs the extension")
pytestmark = pytest.mark.timeout(300)

DATA_NODE = 4
PARTITIONS = 4


class WithDataNode(Servers):
    """Servers 1 to 3 vote, server 4 does not."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._storage = [f"{node}@{address}" for node, address in self.addresses.items()]
        storage, self._internal = free_ports(2)
        self.addresses[DATA_NODE] = f"127.0.0.1:{storage}"

    def start_data_node(self, *extra: str) -> None:
        self.start(
            DATA_NODE,
            "node.roles=[]",
            f"node.peers={json.dumps(self._storage)}",
            f"node.meta_listen=127.0.0.1:{self._internal}",
            *extra,
        )

    def is_whole(self, node: int = 1) -> bool:
        return "all in sync" in self.cluster("status", node=node)

    def leaders(self) -> list[int | None]:
        """Return who leads each partition; none while that cannot be told."""
        try:
            with self.connect() as store:
                return [one.leader for one in store.topic("t").describe().bounded]
        except StoreError:
            return []

    def connect(self) -> Store:
        running = [self.addresses[node] for node in self.running]
        return penstock.connect(running, deadline_s=30)

    def write_all(self, value: bytes) -> bool:
        """Write a record to each partition; False: one is not led at the moment."""
        try:
            with self.connect() as store:
                for partition in range(PARTITIONS):
                    store.topic("t").write(value, partition=partition)
        except StoreError:
            return False
        return True


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[WithDataNode]:
    made = WithDataNode(tmp_path)
    try:
        for node in (1, 2, 3):
            made.start(node)
        wait_until(lambda: made.nodes_that("online") == 3, "three servers are registered")
        made.start_data_node()
        wait_until(lambda: made.nodes_that("online") == 4, "the fourth is registered")
        with made.connect() as store:
            wait_until(lambda: _is_created(store), "four nodes can have replicas")
        yield made
    finally:
        made.close()


def _is_created(store: Store) -> bool:
    """Create a topic of which each node leads one partition, as soon as four nodes serve."""
    try:
        store.create_topic("t", partitions=PARTITIONS, replication=4)
    except AlreadyExistsError:
        return True
    except (BadRequestError, RetryableError):
        return False
    return True


def test_a_node_without_raft_has_replicas_leads_and_returns_in_sync(servers: WithDataNode) -> None:
    wait_until(lambda: DATA_NODE in servers.leaders(), "it leads a partition")
    led = servers.leaders().index(DATA_NODE)
    wait_until(lambda: servers.write_all(b"before"), "all partitions are led")
    wait_until(servers.is_whole, "all replicas are in sync")
    assert f"node {DATA_NODE}  127.0.0.1:" in servers.cluster("status")
    servers.kill(DATA_NODE)
    wait_until(
        lambda: servers.leaders()[led:][:1] not in ([], [None], [DATA_NODE]), "another leads"
    )
    wait_until(lambda: servers.write_all(b"meanwhile"), "writes go on")
    servers.start_data_node()
    wait_until(servers.is_whole, "it has caught up")
    wait_until(lambda: DATA_NODE in servers.leaders(), "it leads again")
    assert servers.write_all(b"after")
    servers.stop(DATA_NODE)
    assert "handed_over" in (servers.directory / f"{DATA_NODE}.log").read_text()
    assert DATA_NODE not in servers.leaders()
    with servers.connect() as store:
        values = {record.value for record in store.topic("t").records()}
        assert values == {b"before", b"meanwhile", b"after"}


def test_a_node_that_the_others_cannot_reach_is_fenced_with_pauses_and_shown(
    tmp_path: Path,
) -> None:
    servers = WithDataNode(tmp_path)
    log = tmp_path / f"{DATA_NODE}.log"
    try:
        for node in (1, 2, 3):
            servers.start(node)
        wait_until(lambda: servers.nodes_that("online") == 3, "three servers are registered")
        # It reaches the others, and none listens where they are to reach it.
        servers.start_data_node("server.advertised_host=127.0.0.9")
        wait_until(lambda: servers.nodes_that("offline") == 1, "it is fenced")
        shown = [servers.cluster("status", node=node) for node in (1, 2, 3)]
        assert any("but its internal port, 127.0.0.9:" in status for status in shown)
        wait_until(lambda: "registration_waits" in log.read_text(), "it says why it waits")
        wait_until(lambda: log.read_text().count("registration_waits") == 2, "it tries again")
        assert re.findall(r"seconds=(\d+)", log.read_text()) == ["2", "4"]
        servers.stop(DATA_NODE)
        servers.start_data_node()
        wait_until(lambda: servers.nodes_that("online") == 4, "it is reached")
    finally:
        servers.close()


@pytest.mark.soak
def test_a_paused_node_without_raft_is_replaced_and_shows_nothing_old(
    servers: WithDataNode,
) -> None:
    wait_until(lambda: DATA_NODE in servers.leaders(), "it leads a partition")
    led = servers.leaders().index(DATA_NODE)
    wait_until(lambda: servers.write_all(b"before"), "all partitions are led")
    process = servers.running.pop(DATA_NODE)
    process.send_signal(signal.SIGSTOP)
    try:
        wait_until(
            lambda: servers.leaders()[led:][:1] not in ([], [None], [DATA_NODE]), "another leads"
        )
        wait_until(lambda: servers.write_all(b"meanwhile"), "writes go on")
    finally:
        process.send_signal(signal.SIGCONT)
        servers.running[DATA_NODE] = process
    with penstock.connect(servers.addresses[DATA_NODE], deadline_s=60) as store:
        values = [record.value for record in store.topic("t").read(partition=led, max_records=10)]
    assert values[-1] == b"meanwhile"
    wait_until(servers.is_whole, "it has caught up")


@pytest.mark.soak
def test_a_node_without_raft_follows_another_leader_of_the_metadata(servers: WithDataNode) -> None:
    wait_until(lambda: servers.write_all(b"before"), "all partitions are led")
    for node in (1, 2, 3):
        servers.kill(node)
        wait_until(lambda: servers.write_all(b"one less"), "writes go on")
        servers.start(node)
        wait_until(partial(servers.is_whole, 2 if node == 1 else 1), "it is back")
