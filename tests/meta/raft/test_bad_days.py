"""Clocks that jump and disks that are full: a node may be of no use, the cluster goes on."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.meta.raft.cluster_in_process import TIMING, ClusterInProcess, wait_until

from penstock.errors import DiskFullError
from penstock.meta.client import GroupName, GroupOffsets, OffsetEntry
from penstock.meta.raft.client import RaftMetaClient
from penstock.meta.raft.members.bootstrap import Place
from penstock.meta.storage.database import Batch
from penstock.platform.clock import SystemClock
from penstock.record import ShardId

pytest.importorskip("penstock._native", reason="a cluster needs the extension")

DAY_MS = 86_400_000


class JumpingClock(SystemClock):
    """The time of day jumps by days, both ways, at every look."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = Random(seed)

    def now_ms(self) -> int:
        return super().now_ms() + self._random.randint(-100, 100) * DAY_MS


class ClusterOfJumpingClocks(ClusterInProcess):
    def start(
        self, node: int, peers: tuple[str, ...] | None = None, token: str = ""
    ) -> RaftMetaClient:
        place = Place(node_id=node, peers=peers or self.peers, join_token=token)
        path = str(self.directory / f"node-{node}")
        self.clients[node] = RaftMetaClient.open(
            path, place, timing=TIMING, clock=JumpingClock(node)
        )
        return self.clients[node]


def test_a_cluster_does_not_care_what_day_its_nodes_think_it_is(tmp_path: Path) -> None:
    with ClusterOfJumpingClocks(tmp_path) as cluster:
        cluster.start_all()
        names = [f"topic-{number}" for number in range(30)]
        for number, name in enumerate(names):
            client = cluster.clients[1 + number % 3]
            client.create_topic(name)
            epoch = client.claim_groups([GroupName("default", "readers")])[0].epoch
            entry = OffsetEntry("shard_0", number, epoch, 1, client._clock.now_ms())
            assert client.save_offsets([GroupOffsets("default", "readers", (entry,))]) == []
        leader = cluster.leader()
        cluster.stop(leader)
        for client in cluster.clients.values():
            assert sorted(topic.name for topic in client.list_topics()) == sorted(names)
            found = client.get_offset("default", "readers", "shard_0")
            assert found is not None
            assert found.offset == 29
        # A lease passes from one to the other, always under a new epoch.
        one, other = cluster.clients.values()
        topic = one.list_topics()[0]
        shard = ShardId(topic.topic_id, 0)
        epochs: list[int] = []
        for client in (one, other) * 10:
            lease = client.acquire_lease(shard, f"holder-{client.node_id}", DAY_MS)
            if lease is not None:
                epochs.append(lease.epoch)
        assert epochs == sorted(set(epochs))


def test_a_full_disk_stops_its_node_which_catches_up_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ClusterInProcess(tmp_path) as cluster:
        cluster.start_all()
        cluster.clients[1].create_topic("before")
        full = next(node for node in cluster.clients if node != cluster.leader())
        stopped = cluster.clients[full]
        write = stopped._database.write

        def fail(batch: Batch) -> None:
            if any(kind == "put" for kind, *_ in batch.operations):
                raise DiskFullError("No space left on device")
            write(batch)

        monkeypatch.setattr(stopped._database, "write", fail)
        other = next(client for node, client in cluster.clients.items() if node != full)
        other.create_topic("meanwhile")
        wait_until(lambda: stopped.failure is not None, "the node has noticed")
        with pytest.raises(DiskFullError):
            stopped.create_topic("refused")
        other.create_topic("later")
        cluster.stop(full)
        back = cluster.start(full)
        names = [topic.name for topic in back.list_topics()]
        assert sorted(names) == ["before", "later", "meanwhile"]
