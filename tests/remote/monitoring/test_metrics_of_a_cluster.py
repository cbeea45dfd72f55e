"""Nodes that talk to each other move the metrics of their internal ports."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.meta.raft.cluster_in_process import free_ports, wait_until
from tests.remote.monitoring.test_metrics import CLUSTER, SETTINGS, scrape

from penstock.meta import PeerNetwork
from penstock.remote.server.node_server import Server
from penstock.settings import merge_settings

pytest.importorskip("penstock._native", reason="a cluster needs the extension")


def start_three(directory: Path) -> dict[int, Server]:
    numbered = enumerate(free_ports(3), start=1)
    peers = [f"{node}@127.0.0.1:{port}" for node, port in numbered]
    found: dict[int, Server] = {}

    def start(node: int) -> None:
        place = {"id": node, "peers": tuple(peers), "secret": "the secret of all nodes"}
        settings = merge_settings(SETTINGS, {"node": place, "kafka": {"enabled": False}})
        found[node] = Server(str(directory / str(node)), settings)

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
        for name in CLUSTER:
            assert {dict(key)["channel"] for key in found[name]} == {"forward", "raft", "replicate"}
        moved = {
            (name, dict(key)["channel"])
            for name in CLUSTER
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
