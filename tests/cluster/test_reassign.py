"""Replicas move between the nodes of a real cluster while records are written."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from tests.cluster.nodes import Nodes, nodes, wait_until

import penstock
from penstock.errors import StoreError
from penstock.meta import RemoteMetaClient, ReplicaMove, Shard

pytest.importorskip("penstock._native", reason="a cluster needs the extension")
pytestmark = pytest.mark.timeout(900)

TOPICS = {"segments": "segment", "rows": "rocksdb"}


class Writer:
    """Writes numbered records to a topic until it is stopped."""

    def __init__(self, addresses: str, topic: str) -> None:
        self._addresses = addresses
        self._topic = topic
        self._stopping = threading.Event()
        self.acknowledged: list[bytes] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            try:
                with penstock.connect(self._addresses, deadline_s=10) as store:
                    topic = store.topic(self._topic)
                    while not self._stopping.is_set():
                        number += 1
                        value = b"%d" % number
                        topic.write(value)
                        self.acknowledged.append(value)
                        self._stopping.wait(0.002)
            except StoreError:
                self._stopping.wait(0.1)  # an unknown outcome, or no leader: with the next one

    def wait_for_more(self, count: int = 50) -> None:
        target = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= target, f"writes to {self._topic} continue")

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)


def run_cli(cluster: Nodes, *arguments: str) -> str:
    addresses = ",".join(cluster.storage[node] for node in cluster.running)
    command = [sys.executable, "-m", "penstock", *arguments, "--server", addresses]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def shards_of(client: RemoteMetaClient) -> list[Shard]:
    known = {topic.topic_id for topic in client.list_topics()}
    return [shard for shard in client.list_shards() if shard.topic_id in known]


def read_all(addresses: str, name: str) -> list[bytes]:
    with penstock.connect(addresses, deadline_s=30) as store:
        return [record.value for record in store.topic(name).records() if record.value is not None]


def move(client: RemoteMetaClient, *targets: int) -> None:
    moves = [ReplicaMove(shard.id, targets) for shard in shards_of(client)]
    for outcome in client.start_reassignments(moves):
        assert isinstance(outcome, Shard), outcome


@pytest.mark.parametrize(
    "with_kill", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["quiet", "target killed"]
)
def test_replicas_move_to_other_nodes_during_writes(tmp_path: Path, with_kill: bool) -> None:
    with nodes(tmp_path, count=4) as cluster:
        cluster.start_all()
        cluster.wait_ready()
        addresses = ",".join(cluster.storage.values())
        with closing(RemoteMetaClient(list(cluster.storage.values()), node_id=9)) as client:
            with penstock.connect(addresses) as store:
                for name, storage in TOPICS.items():
                    store.create_topic(name, partitions=2, storage=storage)
            run_cli(cluster, "cluster", "reassign", "--to", "1", "--yes")
            writers = {name: Writer(addresses, name) for name in TOPICS}
            for name, writer in writers.items():
                writer.wait_for_more()
                run_cli(cluster, "topic", "alter", name, "--replication", "3")

            def are_copied() -> bool:
                return all(
                    len(shard.in_sync) == len(shard.replicas) == 3 and not shard.is_moving
                    for shard in shards_of(client)
                )

            wait_until(are_copied, "all shards have three replicas")
            move(client, 1, 2, 3)
            wait_until(lambda: not client.list_reassignments(), "the shards are on 1, 2 and 3")
            for writer in writers.values():
                writer.wait_for_more()
            move(client, 2, 3, 4)
            if with_kill:
                cluster.kill(4)
                for writer in writers.values():
                    writer.wait_for_more()
                cluster.start(4)
            wait_until(lambda: not client.list_reassignments(), "the shards are on 2, 3 and 4")
            for writer in writers.values():
                writer.wait_for_more()
            assert {shard.replicas for shard in shards_of(client)} == {(2, 3, 4)}
            wait_until(are_copied, "all are in sync")
            shown = run_cli(cluster, "cluster", "status")
            assert "node 1" in shown
            assert "online, 0 shards, leader of 0" in shown
            assert shown.count("all in sync") == len(TOPICS)

            for name in TOPICS:
                run_cli(cluster, "topic", "alter", name, "--replication", "1")
            wait_until(
                lambda: all(len(shard.replicas) == 1 for shard in shards_of(client)),
                "all shards have one copy again",
            )
            for name, writer in writers.items():
                writer.wait_for_more()
                writer.stop()
                seen = read_all(addresses, name)
                assert not set(writer.acknowledged) - set(seen), "an acknowledged record is lost"
                assert len(seen) == len(set(seen))
        assert not cluster.dead()
