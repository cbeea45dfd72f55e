"""`penstock serve` with peers: three servers are one cluster, also for `penstock cluster`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from tests.free_ports import free_ports
from tests.meta.raft.cluster_in_process import wait_until
from typer.testing import CliRunner

import penstock
from penstock.api import Store
from penstock.api.requests.groups import CommittedOffsets
from penstock.cli import build
from penstock.errors import BadRequestError, RetryableError, ShardLostError
from penstock.meta.remote.client import RemoteMetaClient
from penstock.record import Offset

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
            "node.secret": "the secret of all servers",
            "kafka.enabled": "false",
            "broker.commit_log_file_size": 16 << 20,
            "server.http_port": 0,
            "engine.compact_interval_ms": 1_000,
            "engine.upkeep_interval_ms": 500,
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

    def kill(self, node: int) -> None:
        process = self.running.pop(node)
        process.kill()
        process.wait()

    def cluster(self, *arguments: str, node: int = 1) -> str:
        result = CliRunner().invoke(build(), ["cluster", *arguments, "-s", self.addresses[node]])
        return result.output if result.exit_code == 0 else ""

    def refusal_of(self, *arguments: str) -> str:
        """Return why a command is refused."""
        result = CliRunner().invoke(build(), ["cluster", *arguments, "-s", self.addresses[1]])
        assert result.exit_code != 0
        return str(result.exception)

    def nodes_that(self, state: str, node: int = 1) -> int:
        """Return how many nodes are in a state, as a node sees them."""
        shown = self.cluster("status", node=node)
        return sum(line.startswith("node ") and state in line for line in shown.splitlines())

    def shard_count(self) -> int:
        """Return how many shards the nodes have together, those of deleted topics included."""
        return sum(int(held) for held in re.findall(r", (\d+) shards", self.cluster("status")))

    def all_vote(self) -> bool:
        shown = self.cluster("status")
        return len(re.findall("voters 1,2,3", shown)) == 2

    def close(self) -> None:
        for node in list(self.running):
            self.kill(node)


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
        _create_on_all(servers, store, "wide", 3)
    with penstock.connect(servers.addresses[2]) as store:
        wait_until(lambda: "orders" in store.topics(), "topics are pushed")
    servers.stop(2)
    servers.start(2)
    wait_until(lambda: "seen from node 2" in servers.cluster("status", node=2), "node 2 is back")
    assert "asked node 3 to lead" in servers.cluster("transfer", "metadata", "3")
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
    refusal = servers.refusal_of("replace", "3", "4")
    assert "only node 3 has the records of 1 shards: wide/" in refusal
    assert len(re.findall("voters 1,2,3,4$", servers.cluster("status"), re.MULTILINE)) == 2
    said = servers.cluster("replace", "3", "4", "--force", node=2)
    assert "replaced node" in said
    assert "1 shards have no leader until node 3 rejoins with its records" in said
    assert len(re.findall("voters 1,2,4$", servers.cluster("status", node=2), re.MULTILINE)) == 2
    assert "removed node 4 from all groups" in servers.cluster("remove", "4", node=2)
    assert len(re.findall("voters 1,2$", servers.cluster("status", node=2), re.MULTILINE)) == 2
    assert servers.cluster("add", "9", "127.0.0.1:1", "--wait", "0.1", node=2) == ""
    # Half of the voters are no majority.
    servers.kill(1)
    wait_until(lambda: _hears_of_no_leader(servers.cluster("status", node=2)), "nobody leads")


def _hears_of_no_leader(status: str) -> bool:
    """Return whether a status says that there is no leader, and how old the rest of it is."""
    return (
        len(re.findall(r"^(metadata|offset-0): leader unknown, ", status, re.MULTILINE)) == 2
        and re.search(
            r"^this node knows no leader; its information about the nodes is up to \d+\.\d s old$",
            status,
            re.MULTILINE,
        )
        is not None
        and "node 1  " in status
    )


def _values(store: Store, topic: str, partition: int) -> list[bytes]:
    return [record.value or b"" for record in store.topic(topic).read(partition)]


def _leaders(store: Store, topic: str) -> dict[int, int | None]:
    return {one.partition: one.leader for one in store.topic(topic).describe().partitions}


def _knows(store: Store, topic: str) -> bool:
    return topic in store.topics()


@pytest.mark.timeout(180)
def test_consumers_of_all_nodes_commit_one_group_and_no_commit_is_lost(servers: Servers) -> None:
    nodes = (1, 2, 3)
    with (
        closing(penstock.connect(servers.addresses[1])) as first,
        closing(penstock.connect(servers.addresses[2])) as second,
        closing(penstock.connect(servers.addresses[3])) as third,
    ):
        stores = dict(zip(nodes, (first, second, third), strict=True))
        _create_on_all(servers, first, "orders", 3)
        for store in stores.values():
            wait_until(partial(_has, store, "orders"), "all nodes know the topic")
        groups = [f"group-{number}" for number in range(4)]
        consumers = {
            (node, group): stores[node].consumer(group, "orders", assign="all")
            for node in nodes
            for group in groups
        }
        for number in range(1, 10):
            for group in groups:
                consumers[nodes[number % 3], group].commit({("orders", 0): number})
                seen = [store.describe_group(group).offsets for store in stores.values()]
                assert [one["orders", 0] for one in seen] == [number] * 3
        servers.kill(3)
        for number in range(10, 13):
            for group in groups:
                consumers[nodes[number % 2], group].commit({("orders", 1): number})
                assert _committed(stores[1], group) == _committed(stores[2], group) == number


def _has(store: Store, topic: str) -> bool:
    return topic in store.topics()


def _committed(store: Store, group: str) -> Offset | None:
    request = CommittedOffsets(group, ["orders"])
    return store._backend.execute(request).get(("orders", 1))


@pytest.mark.timeout(240)
def test_shards_are_spread_over_the_nodes_and_any_node_serves_them(servers: Servers) -> None:
    wait_until(lambda: servers.nodes_that("online") == 3, "all nodes are registered")
    with penstock.connect(servers.addresses[1]) as store:
        _create_on_all(servers, store, "orders", 3)
        with pytest.raises(BadRequestError, match="replication 4 needs 4 nodes; 3 are online"):
            store.create_topic("four", storage="rocksdb", replication=4)
        assert "four" not in store.topics()
    for node in (1, 2, 3):
        with penstock.connect(servers.addresses[node]) as store:
            wait_until(partial(_knows, store, "orders"), "topics are pushed")
            for partition in range(3):
                store.topic("orders").write(f"{node}".encode(), partition=partition)
    for node in (1, 2, 3):
        with penstock.connect(servers.addresses[node]) as store:
            for partition in range(3):
                assert sorted(_values(store, "orders", partition)) == [b"1", b"2", b"3"]
    _lose_and_bring_back(servers)
    # Who drains gets nothing new.
    assert "node 2 is draining" in servers.cluster("drain", "2")
    with penstock.connect(servers.addresses[2]) as store:
        store.create_topic("elsewhere", partitions=4, storage="rocksdb").write(b"one")
        assert set(_leaders(store, "elsewhere").values()) == {1, 3}
        store.topic("orders").delete()
    assert "is online again" in servers.cluster("drain", "2", "--undo")
    wait_until(lambda: servers.nodes_that(", 2 shards,") == 2, "each node deletes its own")
    _use_a_node_without_the_role_meta(servers)


def _create_on_all(servers: Servers, store: Store, name: str, partitions: int) -> None:
    """Create a topic that has a shard on each node, once all have said that they serve requests:
    before that they get none."""
    nodes = set(servers.running)
    with closing(RemoteMetaClient([servers.addresses[1]], node_id=9)) as client:
        wait_until(lambda: _serving(client) == nodes, "all nodes say where they serve")
    held = servers.shard_count()

    def creates() -> bool:
        topic = store.create_topic(name, partitions=partitions, storage="rocksdb")
        if set(_leaders(store, name).values()) == nodes:
            return True
        # A node that keeps no metadata goes by what it heard a moment ago.
        topic.delete()
        wait_until(lambda: servers.shard_count() == held, "each node deletes its own")
        return False

    wait_until(creates, "all nodes get shards")


def _serving(client: RemoteMetaClient) -> set[int]:
    return {node.node_id for node in client.list_nodes() if "storage" in node.listeners}


def _lose_and_bring_back(servers: Servers) -> None:
    with penstock.connect(servers.addresses[1]) as store:
        leaders = _leaders(store, "orders")
        lost = next(partition for partition, leader in leaders.items() if leader == 3)
        servers.kill(3)
        wait_until(lambda: servers.nodes_that("offline, 1 shards, leader of 0") == 1, "a loss")
        with pytest.raises(RetryableError):
            store.topic("orders").write(b"nobody", partition=lost)
        _describe_without(servers, store, lost)
        for partition in leaders.keys() - {lost}:
            store.topic("orders").write(b"more", partition=partition)
        servers.start(3)
        wait_until(lambda: servers.nodes_that("1 shards, leader of 1") == 3, "it leads again")
        wait_until(partial(_writes, store, lost), "it serves again")
        found = _values(store, "orders", lost)
        assert sorted(found[:3]) == [b"1", b"2", b"3"]
        assert set(found[3:]) == {b"again"}


def _describe_without(servers: Servers, store: Store, lost: int) -> None:
    """A topic is described although nobody leads one of its partitions."""
    info = store.topic("orders").describe()
    without = [one.partition for one in info.partitions if one.leader is None or one.problem]
    assert without == [lost]
    assert [one.latest for one in info.partitions if one.partition != lost] == [3, 3]
    with pytest.raises(RetryableError, match=f"partition {lost} of 'orders': this node does not"):
        assert not info.bounded
    shown = CliRunner().invoke(build(), ["topic", "describe", "orders", "-s", servers.addresses[1]])
    assert shown.exit_code == 0
    assert re.search(rf"^ *{lost}( +\?){{4}} +1 *$", shown.output, re.MULTILINE)
    assert f"partition {lost}: this node does not lead" in shown.output


def _writes(store: Store, partition: int) -> bool:
    try:
        store.topic("orders").write(b"again", partition=partition)
    except RetryableError:
        return False
    return True


def _use_a_node_without_the_role_meta(servers: Servers) -> None:
    storage = [f"{node}@{address}" for node, address in servers.addresses.items()]
    servers.addresses[4] = f"127.0.0.1:{free_ports(1)[0]}"
    servers.start(4, "node.roles=[]", f"node.peers={json.dumps(storage)}")
    wait_until(lambda: servers.nodes_that("no metadata replica  online") == 1, "node 4 serves")
    with penstock.connect(servers.addresses[4]) as store:
        assert store.topics() == ["elsewhere"]
        _create_on_all(servers, store, "of-all", 8)
        for partition in range(8):
            store.topic("of-all").write(b"four", partition=partition)
    with penstock.connect(servers.addresses[2]) as store:
        wait_until(partial(_knows, store, "of-all"), "it is pushed")
        assert [_values(store, "of-all", partition) for partition in range(8)] == [[b"four"]] * 8
    _remove_nodes_that_have_records(servers)


def _are_led_by(store: Store, leaders: dict[int, int | None]) -> bool:
    try:
        found = {one.partition: one.leader for one in store.topic("of-all").describe().bounded}
    except RetryableError:
        return False
    return found == leaders


def _remove_nodes_that_have_records(servers: Servers) -> None:
    """Nodes 3, a member of the groups, and 4, which is none, leave and come back."""
    storage = [f"{node}@{address}" for node, address in servers.addresses.items() if node < 4]
    assert "node 4 runs" in servers.refusal_of("remove", "4")
    assert "there is no node 5" in servers.refusal_of("remove", "5")
    with penstock.connect(servers.addresses[1]) as store:
        leaders = _leaders(store, "of-all")
    servers.stop(4)
    servers.stop(3)
    wait_until(lambda: servers.nodes_that("offline") == 2, "it is known that they stopped")
    for node in (3, 4):
        where = [f"of-all/{one}" for one, leader in leaders.items() if leader == node]
        assert where
        refusal = servers.refusal_of("remove", str(node))
        assert f"only node {node} has the records of" in refusal
        assert all(one in refusal for one in where)
        said = servers.cluster("remove", str(node), "--force")
        assert f"removed node {node} from all groups" in said
        assert f"no leader until node {node} rejoins with its records" in said
        assert all(one in said for one in where)
    wait_until(lambda: servers.nodes_that("shards") == 2, "they are forgotten")
    # A member joins anew, for the groups go on without it: without its metadata, with its records.
    shutil.rmtree(servers.directory / "3" / "meta")
    servers.start(3)
    servers.start(4, "node.roles=[]", f"node.peers={json.dumps(storage)}")
    with penstock.connect(servers.addresses[1]) as store:
        wait_until(partial(_are_led_by, store, leaders), "they lead again")
        assert [_values(store, "of-all", partition) for partition in range(8)] == [[b"four"]] * 8
    _replace_the_disks_of_nodes(servers, leaders, storage)


def _replace_the_disks_of_nodes(
    servers: Servers, leaders: dict[int, int | None], storage: list[str]
) -> None:
    """A member of the groups and a node that is none lose everything that they had."""
    kept = [partition for partition, leader in leaders.items() if leader not in {3, 4}]
    lost = sorted(leaders.keys() - kept)
    with penstock.connect(servers.addresses[1]) as store:
        count = len(lost) + list(_leaders(store, "elsewhere").values()).count(3)
    for node in (3, 4):
        servers.kill(node)
        shutil.rmtree(servers.directory / str(node))
    servers.start(3)
    servers.start(4, "node.roles=[]", f"node.peers={json.dumps(storage)}")
    wait_until(lambda: f"\n{count} shards are lost" in servers.cluster("status"), "it is known")
    wait_until(lambda: servers.nodes_that("online") == 4 and servers.all_vote(), "all are back")
    # A topic with lost shards can be deleted.
    with penstock.connect(servers.addresses[1]) as store:
        store.topic("elsewhere").delete()
    names = ", ".join(f"of-all/{partition}" for partition in lost)
    said = f"{len(lost)} shards are lost, their nodes returned without the records: {names}. "
    assert said in servers.cluster("status")
    for node in (1, 3, 4):
        with penstock.connect(servers.addresses[node]) as store:
            wait_until(partial(_knows, store, "of-all"), "topics are pushed")
            for partition in kept:
                assert _values(store, "of-all", partition) == [b"four"]
            for partition in lost:
                with pytest.raises(ShardLostError, match="penstock cluster accept-loss of-all"):
                    store.topic("of-all").write(b"into nothing", partition=partition)
                with pytest.raises(ShardLostError, match="has come back without its data"):
                    _values(store, "of-all", partition)
            described = store.topic("of-all").describe()
            problems = {one.partition for one in described.partitions if "are lost" in one.problem}
            assert problems == set(lost)
    assert "topic 'elsewhere' does not exist" in servers.refusal_of("accept-loss", "elsewhere")
    assert f"restarted {len(lost)} shards of of-all, empty" in servers.cluster(
        "accept-loss", "of-all"
    )
    with penstock.connect(servers.addresses[1]) as store:
        wait_until(partial(_are_led_by, store, leaders), "they lead again")
        for partition in lost:
            store.topic("of-all").write(b"anew", partition=partition)
            assert _values(store, "of-all", partition) == [b"anew"]
    assert "are lost" not in servers.cluster("status")
    assert "topic 'of-all' has no lost shards" in servers.refusal_of("accept-loss", "of-all")
