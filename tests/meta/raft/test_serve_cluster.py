"""`penstock serve` with peers: three servers are one cluster, also for `penstock cluster`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.meta.raft.cluster_in_process import free_ports, wait_until
from typer.testing import CliRunner

import penstock
from penstock.cli import build

pytest.importorskip("penstock._native", reason="a cluster needs the extension")

COMMAND = [sys.executable, "-c", "from penstock.cli import main; main()"]


class Servers:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        ports = free_ports(6)
        self.peers = [f"{node}@127.0.0.1:{ports[node - 1]}" for node in (1, 2, 3)]
        self.addresses = {node: f"127.0.0.1:{ports[node + 2]}" for node in (1, 2, 3)}
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, node: int, *extra: str) -> None:
        port = self.addresses[node].rpartition(":")[2]
        arguments = ["serve", "--data", str(self.directory / str(node)), "--port", port]
        settings = {
            "node.id": node,
            "node.peers": json.dumps(self.peers),
            "kafka.enabled": "false",
            "server.http_port": 0,
        }
        pairs = [f"{name}={value}" for name, value in settings.items()]
        for pair in [*pairs, *extra]:
            arguments += ["--set", pair]
        with (self.directory / f"{node}.log").open("ab") as log:
            self.running[node] = subprocess.Popen([*COMMAND, *arguments], stderr=log, stdout=log)

    def stop(self, node: int) -> None:
        process = self.running.pop(node)
        process.terminate()
        assert process.wait(60) == 0

    def cluster(self, *arguments: str, node: int = 1) -> str:
        result = CliRunner().invoke(build(), ["cluster", *arguments, "-s", self.addresses[node]])
        return result.output if result.exit_code == 0 else ""

    def all_vote(self) -> bool:
        shown = self.cluster("status")
        return len(re.findall("voters 1,2,3", shown)) == 2

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    made = Servers(tmp_path)
    try:
        for node in (1, 2, 3):
            made.start(node)
        wait_until(made.all_vote, "three servers vote")
        yield made
    finally:
        made.close()


@pytest.mark.timeout(180)
def test_three_servers_share_topics_and_offsets(servers: Servers) -> None:
    shown = servers.cluster("status", node=2)
    assert re.search(r"^cluster \S+, seen from node 2$", shown, re.MULTILINE)
    assert re.search(r"^metadata: leader \d, term \d+, ", shown, re.MULTILINE)
    with penstock.connect(servers.addresses[1]) as store:
        topic = store.create_topic("orders", storage="rocksdb")
        topic.write(b"one")
    with penstock.connect(servers.addresses[2]) as store:
        wait_until(lambda: "orders" in store.topics(), "topics are pushed")
    servers.stop(2)
    servers.start(2)
    wait_until(lambda: "seen from node 2" in servers.cluster("status", node=2), "node 2 is back")
    assert "was asked to lead" in servers.cluster("transfer", "metadata", "3")
    wait_until(lambda: "metadata: leader 3" in servers.cluster("status", node=2), "node 3 leads")
    servers.stop(3)
    with penstock.connect(servers.addresses[2]) as store:
        store.create_topic("later", storage="rocksdb").write(b"two")
    # Another node takes the place of the one that is gone, on its port.
    internal = servers.peers[2].partition("@")[2]
    servers.peers = [*servers.peers[:2], f"4@{internal}"]
    servers.addresses[4] = servers.addresses.pop(3)
    servers.start(4)
    assert "node 4 votes in all groups" in servers.cluster("add", "4", internal, node=2)
    assert "has taken the place" in servers.cluster("replace", "3", "4", node=2)
    assert len(re.findall("voters 1,2,4$", servers.cluster("status", node=2), re.MULTILINE)) == 2
    assert "belongs to no group" in servers.cluster("remove", "4", node=2)
    assert len(re.findall("voters 1,2$", servers.cluster("status", node=2), re.MULTILINE)) == 2
    assert servers.cluster("add", "9", "127.0.0.1:1", "--wait", "0.1", node=2) == ""


@pytest.mark.timeout(180)
def test_a_node_without_the_role_meta_uses_the_cluster(servers: Servers) -> None:
    with penstock.connect(servers.addresses[1]) as store:
        store.create_topic("orders", storage="rocksdb")
    storage = [f"{node}@{address}" for node, address in servers.addresses.items()]
    servers.addresses[4] = f"127.0.0.1:{free_ports(1)[0]}"
    servers.start(4, "node.roles=[]", f"node.peers={json.dumps(storage)}")
    wait_until(lambda: "seen from node 4" in servers.cluster("status", node=4), "node 4 serves")
    with penstock.connect(servers.addresses[4]) as store:
        assert store.topics() == ["orders"]
        topic = store.create_topic("of-four", storage="rocksdb")
        topic.write(b"four")
        assert [record.value for record in topic.read(0)] == [b"four"]
    with penstock.connect(servers.addresses[2]) as store:
        wait_until(lambda: "of-four" in store.topics(), "it is pushed")
