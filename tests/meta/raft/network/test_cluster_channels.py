"""Data channels between the nodes of a real cluster: who may connect, and what its end shows."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.free_ports import free_ports
from tests.meta.raft.cluster_in_process import ClusterInProcess, wait_until
from tests.meta.raft.network.two_nodes import Inbox

from penstock.meta import PeerNetwork
from penstock.meta.admin import meta_pb2 as pb
from penstock.meta.raft.client import RaftMetaClient
from penstock.meta.raft.members.bootstrap import Place
from penstock.meta.raft.network.handshake import Opener, cluster_tag
from penstock.meta.raft.network.messages import (
    FRAME_VERSION,
    NONCE_SIZE,
    PROTOCOL,
    Answer,
    ConnectRequest,
    HandshakeAccepted,
    HandshakeRejected,
)
from penstock.meta.raft.network.transport import call_node

pytest.importorskip("penstock._native", reason="a cluster needs the extension")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterInProcess]:
    with ClusterInProcess(tmp_path) as made:
        made.start_all()
        yield made


def registered(cluster: ClusterInProcess) -> None:
    def all_know_all() -> bool:
        return all(
            client.broker_epoch_of(node) > 0
            for client in cluster.clients.values()
            for node in cluster.clients
        )

    wait_until(all_know_all, "all nodes are registered")


def test_every_pair_of_nodes_has_a_channel(cluster: ClusterInProcess) -> None:
    for client in cluster.clients.values():
        assert isinstance(client, PeerNetwork)
    inboxes = {node: Inbox(client.channel("replicate")) for node, client in cluster.clients.items()}
    for node, inbox in inboxes.items():
        for other in inboxes:
            if other != node:
                inbox.connect(other)
                assert inbox.channel.send(other, b"from %d" % node)

    def all_heard() -> bool:
        return all(
            (other, b"from %d" % other) in inbox.received
            for node, inbox in inboxes.items()
            for other in inboxes
            if other != node
        )

    wait_until(all_heard, "all messages arrive")
    assert cluster.clients[1].channel("replicate") is inboxes[1].channel
    assert cluster.clients[1].probe(2) == "up"


def test_a_stale_epoch_another_cluster_or_another_node_is_refused_on_every_channel(
    cluster: ClusterInProcess,
) -> None:
    registered(cluster)
    first, second = cluster.clients[1], cluster.clients[2]
    Inbox(first.channel("replicate"))
    mine, sender = first.node.identity, second.node.identity
    good = ConnectRequest(
        PROTOCOL,
        cluster_tag(mine.cluster_id),
        2,
        sender.incarnation,
        1,
        mine.incarnation,
        os.urandom(NONCE_SIZE),
        "replicate",
        first.broker_epoch_of(2),
        FRAME_VERSION,
    )

    def answer(hello: ConnectRequest) -> Answer:
        return call_node(cluster.addresses[1], Opener(hello, first._credentials.hello_key))

    assert isinstance(answer(good), HandshakeAccepted)
    for changed, sentence in (
        (replace(good, cluster=cluster_tag("another")), "another cluster is meant"),
        (replace(good, node_id=1), "this is node 1 itself: two nodes have one number"),
        (replace(good, to_node=3), "node 3 is meant; this is node 1"),
        (replace(good, to_incarnation="A"), "an earlier life of node 1 is meant"),
        (replace(good, incarnation="0"), "has taken its place in the cluster"),
        (replace(good, incarnation=sender.incarnation + "A"), "does not know this directory of"),
        (replace(good, node_id=9), "node 1 does not know this directory of node 9 as a member"),
        (replace(good, broker_epoch=0), "connects with the broker epoch 0; its last registration"),
        (
            replace(good, broker_epoch=good.broker_epoch - 1),
            f"its last registration has {good.broker_epoch}",
        ),
        (replace(good, channel="forward"), "does not serve the channel 'forward' yet"),
        (replace(good, channel="gossip"), "does not know the channel 'gossip'"),
    ):
        refused = answer(changed)
        assert isinstance(refused, HandshakeRejected), sentence
        assert sentence in refused.reason
        assert "(unauthenticated)" not in refused.reason
        is_shown = any(sentence in problem for problem in first.problems())
        assert is_shown is not refused.reason.endswith(" yet"), "a start is not a problem"
    stranger = call_node(cluster.addresses[1], Opener(good, b"another key"))
    assert isinstance(stranger, HandshakeRejected)
    assert "does not know this cluster's key" in stranger.reason
    assert any("does not know this cluster's key" in problem for problem in first.problems())
    old = call_node(
        cluster.addresses[1], Opener(replace(good, protocol=1), first._credentials.hello_key)
    )
    assert isinstance(old, HandshakeRejected)
    sentence = f"the other side speaks protocol 1; this node speaks {PROTOCOL}"
    assert any(sentence in problem for problem in first.problems())


def test_garbage_on_the_internal_port_is_named_in_the_status(cluster: ClusterInProcess) -> None:
    first = cluster.clients[1]
    host, _, port = cluster.addresses[1].rpartition(":")
    with socket.create_connection((host, int(port)), 10) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 9)
        stranger.settimeout(10)
        while stranger.recv(1_000):
            pass
    reply = first.service().cluster_status(pb.ClusterStatusRequest())
    (problem,) = reply.problems
    assert re.fullmatch(
        r"this node refuses a connection from \('127.0.0.1', \d+\): a frame of \d+ bytes; at most "
        r"\d+",
        problem,
    )


def test_a_killed_process_is_noticed_and_its_port_refuses(tmp_path: Path) -> None:
    ports = free_ports(3)
    peers = tuple(f"{node}@127.0.0.1:{port}" for node, port in zip((1, 2), ports, strict=False))
    program = [sys.executable, "-m", "tests.meta.raft.meta_process", str(tmp_path / "2"), "2"]
    program += [",".join(peers), str(ports[2])]
    root = next(path for path in Path(__file__).parents if (path / "pyproject.toml").exists())
    process = subprocess.Popen(program, cwd=root, stderr=subprocess.DEVNULL)
    try:
        place = Place(
            node_id=1, peers=peers, offset_groups=2, secrets=("the secret of all processes",)
        )
        with closing(RaftMetaClient.open(str(tmp_path / "1"), place)) as client:
            lost: list[tuple[int, float]] = []
            client.watch_connections(lambda node: lost.append((node, time.monotonic())))
            wait_until(lambda: client.probe(2) == "up", "the node is there")
            wait_until(lambda: not client._transport.absent(client.members), "it is connected")
            lost.clear()
            killed = time.monotonic()
            process.send_signal(signal.SIGKILL)
            process.wait()
            wait_until(lambda: bool(lost), "the loss is reported", 10)
            assert lost[0][0] == 2
            assert lost[0][1] - killed < 5, "no timeout of Raft, and none of TCP"
            wait_until(lambda: client.probe(2) == "refused", "its port refuses", 5)
    finally:
        process.kill()
        process.wait()
