"""Nodes that talk to each other move the metrics of their internal ports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from tests.free_ports import free_ports
from tests.meta.raft.cluster_in_process import wait_until
from tests.remote.monitoring.test_metrics import CLUSTER, SETTINGS, scrape

import penstock
from penstock.errors import BadRequestError
from penstock.meta import PeerNetwork
from penstock.remote.peers.replica_positions import ask_positions
from penstock.remote.server.node_server import Server
from penstock.settings import merge_settings

RATE: Final = 100_000
CHANNELS: Final = {name for name in CLUSTER if name.startswith("penstock_peer_")}

pytest.importorskip("penstock._native", reason="a cluster needs the extension")


def start_one(directory: Path, node: int, peers: Sequence[str], catch_up_rate: int = 0) -> Server:
    place = {
        "id": node,
        "peers": tuple(peers),
        "secret": "the secret of all nodes",
        "catch_up_rate": catch_up_rate,
    }
    settings = merge_settings(SETTINGS, {"node": place, "kafka": {"enabled": False}})
    return Server(str(directory / str(node)), settings)


def start_three(directory: Path) -> dict[int, Server]:
    numbered = enumerate(free_ports(3), start=1)
    peers = [f"{node}@127.0.0.1:{port}" for node, port in numbered]
    found: dict[int, Server] = {}

    def start(node: int) -> None:
        found[node] = start_one(directory, node, peers)

    threads = [threading.Thread(target=start, args=(node,)) for node in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.timeout(200)
def test_nodes_of_a_cluster_move_the_metrics_of_each_channel(tmp_path: Path) -> None:
    servers = start_three(tmp_path)
    assert set(servers) == {1, 2, 3}
    try:
        received: list[bytes] = []
        for server in servers.values():
            meta = server.node.meta
            assert isinstance(meta, PeerNetwork)
            meta.channel("replicate").on_receive = lambda _node, data: received.append(data)
        first = servers[1].node.meta
        assert isinstance(first, PeerNetwork)
        channel = first.channel("replicate")
        wait_until(lambda: channel.send(2, b"hello"), "the channel stands")
        wait_until(lambda: received == [b"hello"], "the message arrives")
        servers[2].close()
        wait_until(lambda: not channel.send(2, bytes(1000)), "the channel is lost")
        value = servers[1].node.registry.get_sample_value
        dropped = ("penstock_peer_dropped_bytes_total", {"channel": "raft"})
        wait_until(lambda: bool(value(*dropped)), "Raft has a frame for the lost node")
        found = scrape(servers[1])
        for name in CHANNELS:
            channels = {dict(key)["channel"] for key in found[name]}
            assert channels == {"forward", "heartbeat", "mqtt", "raft", "replicate"}
        moved = {
            (name, dict(key)["channel"])
            for name in CHANNELS
            for key, count in found[name].items()
            if count
        }
        assert moved >= {
            ("penstock_peer_sent_bytes", "raft"),
            ("penstock_peer_received_bytes", "raft"),
            ("penstock_peer_dropped_bytes", "raft"),
            ("penstock_peer_sent_bytes", "replicate"),
            ("penstock_peer_dropped_bytes", "replicate"),
        }
    finally:
        for server in servers.values():
            server.close()


@pytest.mark.timeout(200)
def test_nodes_of_a_cluster_move_the_metrics_of_replication(tmp_path: Path) -> None:
    servers = start_three(tmp_path)
    value = {node: server.node.registry.get_sample_value for node, server in servers.items()}

    def total(name: str, node: int) -> float:
        return value[node](name) or 0.0

    def has_copied(node: int) -> bool:
        return total("penstock_replica_copied_records_total", node) >= 20

    def lag_of(node: int, leader: int) -> float | None:
        labels = {"namespace": "default", "topic": "t", "node": str(node)}
        return value[leader]("penstock_replica_lag_records", labels)

    try:
        with penstock.connect([f"127.0.0.1:{server.port}" for server in servers.values()]) as store:
            wait_until(lambda: create_topic(store), "three nodes can have replicas")
            topic = store.topic("t")
            for number in range(20):
                topic.write(b"%d" % number)
            leader = topic.describe().partitions[0].leader
            assert leader is not None
            first, second = (node for node in servers if node != leader)
            assert total("penstock_replica_elections_total", leader) >= 1
            for node in (first, second):
                wait_until(partial(has_copied, node), "the followers copy")
                assert total("penstock_replica_copied_bytes_total", node) >= 20 * 91
                wait_until(partial(is_zero, partial(lag_of, node, leader)), "no lag")
            topic_id = servers[1].node.broker_cache.get_topic("t").topic_id
            for server in servers.values():
                (position,) = ask_positions(f"127.0.0.1:{server.port}", topic_id, [0]).values()
                assert (position.start, position.end) == (0, 20)
            servers[first].close()
            topic.write(b"one node is gone")
            assert total("penstock_in_sync_shrinks_total", leader) == 1
            assert total("penstock_shards_under_replicated", leader) == 1
            assert total("penstock_shards_at_risk", leader) == 1
            assert lag_of(first, leader) == 1
            for _ in range(5):
                topic.write(bytes(RATE // 2))
            peers = servers[leader].node.settings.node.peers
            servers[first] = start_one(tmp_path, first, peers, RATE)
            value[first] = servers[first].node.registry.get_sample_value
            for name in (
                "penstock_replica_catch_up_limit_bytes",
                "penstock_replica_catch_up_bytes_total",
                "penstock_replica_throttled_seconds_total",
            ):
                wait_until(partial(is_positive, partial(total, name, first)), f"{name} moves")
            assert total("penstock_replica_catch_up_limit_bytes", first) == RATE
            servers[leader].close()
            wait_until(
                lambda: total("penstock_replica_elections_total", second) >= 1, "another one leads"
            )
    finally:
        for server in servers.values():
            server.close()


def is_zero(value: Callable[[], float | None]) -> bool:
    return value() == 0


def is_positive(value: Callable[[], float]) -> bool:
    return value() > 0


def create_topic(store: penstock.Store) -> bool:
    try:
        store.create_topic("t", replication=3)
    except BadRequestError:
        return False
    return True
