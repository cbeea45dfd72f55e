"""What an operator does to a real cluster while clients write to it and read from it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pytest
from tests.cluster.nodes import Nodes, nodes, wait_until
from tests.cluster.traffic import PARTITIONS, create_topic, read_all, traffic
from tests.cluster.workloads import decode

import penstock
from penstock.engine.rocksdb import RocksDBStorageEngine
from penstock.errors import RetryableError
from penstock.meta import RemoteMetaClient, ReplicaMove, Shard
from penstock.platform.clock import SystemClock

pytest.importorskip("penstock._native", reason="a cluster needs the extension")
pytestmark = pytest.mark.timeout(900)

STORAGES: Final = ("segment", "rocksdb", "memory")
COPIED: Final = tuple(f"{storage}-3" for storage in STORAGES)
SINGLE: Final = tuple(f"{storage}-1" for storage in STORAGES)


@contextmanager
def running(directory: Path, count: int, topics: tuple[str, ...]) -> Iterator[Nodes]:
    """Run a cluster with topics whose names say engine and copies."""
    with nodes(directory, count=count) as cluster:
        cluster.start_all()
        cluster.wait_ready()
        for name in topics:
            storage, _, copies = name.partition("-")
            create_topic(cluster, name, storage, int(copies))
        yield cluster
        assert not cluster.dead()


@contextmanager
def metadata(cluster: Nodes) -> Iterator[RemoteMetaClient]:
    addresses = [cluster.storage[node] for node in cluster.numbers]
    with closing(RemoteMetaClient(addresses, node_id=9, deadline_s=60)) as client:
        yield client


def shards_of(client: RemoteMetaClient, *names: str) -> list[Shard]:
    known = {topic.topic_id for topic in client.list_topics() if not names or topic.name in names}
    return [shard for shard in client.list_shards() if shard.topic_id in known]


def are_settled(client: RemoteMetaClient, copies: int, *names: str) -> bool:
    """Return whether all shards have so many replicas, all in sync."""
    return all(
        len(shard.in_sync) == len(shard.replicas) == copies
        and not shard.is_moving
        and shard.leader is not None
        for shard in shards_of(client, *names)
    )


def leads_nothing(client: RemoteMetaClient, node: int) -> bool:
    return all(shard.leader != node for shard in shards_of(client))


def cut_logs(cluster: Nodes, node: int) -> None:
    """Let a node that comes back get a snapshot of the metadata, not their changes one by one."""
    run_at(cluster, node, "cluster", "snapshot")


def kill_metadata_leader(cluster: Nodes) -> int:
    """Kill the node whose controller decides; return which."""
    shown = cluster.run_command("cluster", "status")
    leader = re.search(r"metadata: leader (\d+)", shown)
    assert leader is not None, shown
    cluster.kill(int(leader[1]))
    return int(leader[1])


BULK: Final = "bulk"
BULK_SIZE: Final = 8 << 20
RATE: Final = 256 << 10


def fill(cluster: Nodes, client: RemoteMetaClient, storage: str) -> None:
    """Create a topic with so many bytes that a move of it with a throttle lasts, and place all
    topics on other nodes than the last one."""
    *others, last = cluster.numbers
    cluster.run_command("cluster", "drain", str(last))
    create_topic(cluster, BULK, storage, 3)
    move(client, tuple(others), 0)
    wait_until(lambda: not client.list_reassignments(), f"the shards are on {others}")
    cluster.run_command("cluster", "drain", str(last), "--undo")
    values = [b"%d:" % number + bytes(64 << 10) for number in range(BULK_SIZE >> 16)]
    with penstock.connect(list(cluster.storage.values()), deadline_s=60) as store:
        for partition in range(PARTITIONS):
            for start in range(0, len(values), 16):
                store.topic(BULK).write_many(values[start : start + 16], partition=partition)


def bulk_count(cluster: Nodes) -> int:
    addresses = [cluster.storage[node] for node in cluster.running if node in cluster.storage]
    found: list[int] = []

    def reads() -> bool:
        try:
            with penstock.connect(addresses, deadline_s=30) as store:
                found[:] = [decode(one.value) for one in store.topic(BULK).records()]
        except RetryableError:
            return False
        return True

    wait_until(reads, "all of the bulk is read")
    assert len(found) == PARTITIONS * len(set(found))
    return len(found)


def copied_bytes(cluster: Nodes, node: int) -> float:
    host, _, _ = cluster.storage[node].partition(":")
    address = f"http://{host}:{cluster.http[node]}/metrics"
    with urlopen(address, timeout=60) as answer:
        shown = answer.read().decode()
    found = re.search(r"^penstock_replica_copied_bytes_total (\S+)$", shown, re.MULTILINE)
    assert found is not None
    return float(found[1])


def move(client: RemoteMetaClient, targets: tuple[int, ...], throttle: int, *names: str) -> None:
    moves = [ReplicaMove(shard.id, targets, throttle) for shard in shards_of(client, *names)]
    for outcome in client.start_reassignments(moves):
        assert isinstance(outcome, Shard), outcome


def begin_move(cluster: Nodes, client: RemoteMetaClient, *names: str) -> None:
    """Move shards to the last three of four nodes, slowly; return when the last one copies."""
    before = copied_bytes(cluster, 4)
    move(client, (2, 3, 4), RATE, *names)
    wait_until(lambda: copied_bytes(cluster, 4) > before, "node 4 copies")
    assert any(shard.adding for shard in shards_of(client, BULK))


@pytest.mark.parametrize(
    ("count", "topics"),
    [(3, ("rocksdb-1",)), pytest.param(4, COPIED + SINGLE, marks=pytest.mark.soak)],
    ids=["one copy", "all engines"],
)
def test_a_drained_node_has_no_replica_and_leads_nothing(
    tmp_path: Path, count: int, topics: tuple[str, ...]
) -> None:
    with (
        running(tmp_path, count, topics) as cluster,
        metadata(cluster) as client,
        traffic(cluster, topics, has_kafka=count > 3) as clients,
    ):
        clients.wait_for_writes()
        drained = cluster.numbers if count > 3 else [shards_of(client)[0].leader]
        for node in drained:
            shown = cluster.run_command("cluster", "drain", str(node), "--wait", "120")
            for shard in shards_of(client):
                assert node not in shard.replicas, shown
                assert shard.leader not in {None, node}, shown
            clients.wait_for_writes()
            cluster.run_command("cluster", "drain", str(node), "--undo")
        clients.stop()
        assert not clients.check()


@pytest.mark.soak
@pytest.mark.parametrize("storage", STORAGES)
def test_a_node_that_was_down_while_copies_went_and_came_copies_anew(
    tmp_path: Path, storage: str
) -> None:
    topic = f"{storage}-3"
    with (
        running(tmp_path, 3, (topic,)) as cluster,
        metadata(cluster) as client,
        traffic(cluster, (topic,)) as clients,
    ):
        clients.wait_for_writes()
        wait_until(lambda: are_settled(client, 3), "all are in sync")
        down = 3
        cluster.kill(down)
        clients.wait_for_writes()
        cluster.run_command("topic", "alter", topic, "--replication", "1")
        wait_until(lambda: are_settled(client, 1), "one copy is left")
        clients.wait_for_writes()
        cluster.start(down)
        cluster.wait_ready()
        cluster.run_command("topic", "alter", topic, "--replication", "3")
        wait_until(lambda: are_settled(client, 3), "all are in sync again")
        clients.wait_for_writes()
        clients.stop()
        assert not clients.check()


@pytest.mark.soak
@pytest.mark.parametrize("storage", STORAGES)
def test_a_node_that_is_down_when_its_copy_goes_and_comes_copies_anew(
    tmp_path: Path, storage: str
) -> None:
    topic = f"{storage}-3"
    with (
        running(tmp_path, 3, (topic,)) as cluster,
        metadata(cluster) as client,
        traffic(cluster, (topic,)) as clients,
    ):
        clients.wait_for_writes()
        wait_until(lambda: are_settled(client, 3), "all are in sync")
        down = 3
        for node in (1, 2):  # others lead, under new epochs
            cluster.run_command("cluster", "drain", str(node))
            wait_until(partial(leads_nothing, client, node), f"node {node} leads nothing")
            clients.wait_for_writes()
            cluster.run_command("cluster", "drain", str(node), "--undo")
        cluster.kill(down)
        clients.wait_for_writes()
        cluster.run_command("topic", "alter", topic, "--replication", "1")
        wait_until(lambda: are_settled(client, 1), "one copy is left")
        clients.wait_for_writes()
        cluster.run_command("topic", "alter", topic, "--replication", "2")
        wait_until(lambda: are_settled(client, 2), "two copies are there")
        clients.wait_for_writes()
        moves = [ReplicaMove(shard.id, (shard.leader or 0, down)) for shard in shards_of(client)]
        for outcome in client.start_reassignments(moves):
            assert isinstance(outcome, Shard), outcome
        clients.wait_for_writes()
        for node in cluster.running:
            cut_logs(cluster, node)
        cluster.start(down)
        cluster.wait_ready()
        wait_until(lambda: not client.list_reassignments(), "the moves end")
        wait_until(lambda: are_settled(client, 2), "all are in sync again")
        clients.wait_for_writes()
        clients.stop()
        assert not clients.check()


@pytest.mark.soak
@pytest.mark.parametrize("storage", STORAGES)
def test_a_throttled_move_copies_no_faster_and_can_be_cancelled(
    tmp_path: Path, storage: str
) -> None:
    topic = f"{storage}-3"
    with running(tmp_path, 4, (topic,)) as cluster, metadata(cluster) as client:
        fill(cluster, client, storage)
        wait_until(lambda: are_settled(client, 3), "all are in sync")
        with traffic(cluster, (topic,)) as clients:
            clients.wait_for_writes()
            before, began = copied_bytes(cluster, 4), time.monotonic()
            options = ("--topics", BULK, "--to", "2,3,4", "--yes", "--wait", "0")
            cluster.run_command("cluster", "reassign", *options, "--throttle", "256KiB")
            for _ in range(3):
                clients.wait_for_writes()
            wait_until(lambda: copied_bytes(cluster, 4) - before > 2 * RATE, "it copies")
            assert "256" in cluster.run_command("cluster", "reassign", "--status")
            copied, seconds = copied_bytes(cluster, 4) - before, time.monotonic() - began
            # What may come in one go, and one reply for each shard.
            assert copied <= RATE * (seconds + 1) + PARTITIONS * (1 << 20), (copied, seconds)
            assert copied < PARTITIONS * BULK_SIZE, "it was over too soon to be cancelled"
            cluster.run_command("cluster", "reassign", "--cancel")
            assert not client.list_reassignments()
            assert {frozenset(one.replicas) for one in shards_of(client, BULK)} == {
                frozenset({1, 2, 3})
            }
            assert are_settled(client, 3, BULK)
            # The same move again, as fast as it can.
            cluster.run_command("cluster", "reassign", *options[:-1], "120")
            assert all(4 in shard.replicas for shard in shards_of(client, BULK))
            clients.wait_for_writes()
            clients.stop()
            assert not clients.check()
        assert bulk_count(cluster) == PARTITIONS * (BULK_SIZE >> 16)


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["controller", "receiver", "giver"])
@pytest.mark.parametrize("storage", ["segment", "rocksdb"])
def test_a_move_ends_although_a_node_is_killed(tmp_path: Path, storage: str, victim: str) -> None:
    topic = f"{storage}-3"
    with running(tmp_path, 4, (topic,)) as cluster, metadata(cluster) as client:
        fill(cluster, client, storage)
        with traffic(cluster, (topic,)) as clients:
            clients.wait_for_writes()
            begin_move(cluster, client)
            if victim == "controller":
                killed = kill_metadata_leader(cluster)
            else:
                led = next(one for one in shards_of(client, BULK) if one.leader)
                killed = 4 if victim == "receiver" else led.leader or 0
                cluster.kill(killed)
            clients.wait_for_writes()
            if killed == 4:
                assert client.list_reassignments(), "the target is down"
                cluster.start(killed)
            move(client, (2, 3, 4), 0)
            if killed in {2, 3}:
                cluster.start(killed)
            wait_until(lambda: not client.list_reassignments(), "the move ends")
            assert {shard.replicas for shard in shards_of(client)} == {(2, 3, 4)}
            if killed not in cluster.running:
                cluster.start(killed)
            cluster.wait_ready()
            wait_until(lambda: are_settled(client, 3), "all are in sync")
            clients.wait_for_writes()
            clients.stop()
            assert not clients.check()
        assert bulk_count(cluster) == PARTITIONS * (BULK_SIZE >> 16)


@pytest.mark.soak
@pytest.mark.parametrize("is_created_again", [False, True])
@pytest.mark.parametrize("storage", STORAGES)
def test_nothing_is_left_of_a_topic_that_was_deleted_during_its_move(
    tmp_path: Path, storage: str, is_created_again: bool
) -> None:
    with running(tmp_path, 4, ()) as cluster, metadata(cluster) as client:
        fill(cluster, client, storage)
        begin_move(cluster, client)
        old = {shard.topic_id for shard in shards_of(client)}
        cluster.run_command("topic", "delete", BULK, "--yes")
        if is_created_again:
            create_topic(cluster, BULK, storage, 3)
            with traffic(cluster, (BULK,)) as clients:
                clients.wait_for_writes()
                clients.stop()
                assert not clients.check(), "records of the topic before would be there, too"
        wait_until(
            lambda: not any(shard.topic_id in old for shard in client.list_shards()),
            "the metadata name no shard of the deleted topic",
        )
        assert not any(shard.topic_id in old for shard in client.list_reassignments())
        for node in cluster.numbers:
            cluster.stop(node)
        for node in cluster.numbers:
            assert not held_shards(cluster, node, old)


def held_shards(cluster: Nodes, node: int, topics: set[str]) -> list[str]:
    """Return which shards of topics the engines of a node have that does not run."""
    found = [
        str(path)
        for path in cluster.data(node).glob("segment/consumequeue/*")
        if any(topic in path.name for topic in topics)
    ]
    for path in cluster.data(node).glob("engines/*/CURRENT"):
        with closing(RocksDBStorageEngine.open(str(path.parent), SystemClock())) as engine:
            found += [shard.name for shard in engine.list_shard() if shard.topic in topics]
    return found


@pytest.mark.soak
def test_a_node_replaces_another_one(tmp_path: Path) -> None:
    topics = COPIED + SINGLE
    with (
        running(tmp_path, 4, topics) as cluster,
        metadata(cluster) as client,
        traffic(cluster, topics) as clients,
    ):
        clients.wait_for_writes()
        spare = cluster.spare
        cluster.start(spare)
        cluster.run_command("cluster", "add", str(spare), cluster.internal[spare], "--wait", "120")
        cluster.run_command("cluster", "replace", "1", str(spare), "--wait", "120")
        assert all(1 not in shard.replicas for shard in shards_of(client))
        assert any(spare in shard.replicas for shard in shards_of(client))
        cluster.kill(1)  # it is not a member any more
        clients.wait_for_writes()
        clients.stop()
        assert not clients.check()


@pytest.mark.soak
def test_a_survivor_recovers_when_the_other_nodes_are_lost_for_ever(tmp_path: Path) -> None:
    topics = ("segment-3", "rocksdb-3")
    with (
        running(tmp_path, 3, topics) as cluster,
        metadata(cluster) as client,
        traffic(cluster, topics, has_kafka=False) as clients,
    ):
        clients.wait_for_writes()
        wait_until(lambda: are_settled(client, 3), "all are in sync")
        for node in (2, 3):
            cluster.kill(node)
        for node in (2, 3):
            cluster.wipe(node)
        cluster.kill(1)
        command = ["cluster", "recover", "--data", str(cluster.data(1))]
        run_cli(*command, "--force-new-cluster", "--yes")
        cluster.start(1)
        cluster.wait_ready()
        for node in (2, 3):
            cluster.start(node)
            run_at(cluster, 1, "cluster", "add", str(node), cluster.internal[node], "--wait", "120")
        cluster.wait_ready()
        # The lost nodes may have acknowledged records without the survivor, as far as it knows.
        assert all(shard.leader is None for shard in shards_of(client))
        for topic in topics:
            cluster.run_command("cluster", "elect", topic, "--unclean")
        wait_until(lambda: are_settled(client, 3), "all are in sync again")
        clients.wait_for_writes()
        clients.stop()
        assert not clients.check()


def run_cli(*words: str) -> str:
    command = [sys.executable, "-m", "penstock", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_at(cluster: Nodes, node: int, *words: str) -> str:
    return run_cli(*words, "--server", cluster.storage[node])


@pytest.mark.soak
@pytest.mark.parametrize("is_oldest_elected", [False, True])
@pytest.mark.parametrize("storage", ["segment", "rocksdb"])
def test_after_a_power_cut_of_all_nodes_an_operator_elects_what_is_left(
    tmp_path: Path, storage: str, is_oldest_elected: bool
) -> None:
    topic = f"{storage}-3"
    with nodes(tmp_path, count=3) as cluster:
        reason = cluster.mount_devices()
        if reason:
            pytest.skip(reason)
        cluster.start_all()
        cluster.wait_ready()
        create_topic(cluster, topic, storage, 3)
        with metadata(cluster) as client:
            with traffic(cluster, (topic,), has_kafka=False) as clients:
                clients.wait_for_writes()
                wait_until(lambda: are_settled(client, 3), "all are in sync")
                cluster.kill(3)  # the others go on
                for _ in range(5):
                    clients.wait_for_writes()
                clients.stop()
            for node in (1, 2):
                cluster.kill(node)
            for node in cluster.numbers:
                cluster.lose_unsynced(node)
            cluster.start_all()
            cluster.wait_ready()
            wait_until(
                lambda: all(one.leader is None for one in shards_of(client)), "none may lead"
            )
            elect = ["cluster", "elect", topic, "--unclean", *["--node=3"] * is_oldest_elected]
            dry = cluster.run_command(*elect, "--dry-run")
            assert all(shard.leader is None for shard in shards_of(client)), dry
            ends = ends_of(dry)
            done = cluster.run_command(*elect)
            assert "would lead" not in done
            elected = [int(node) for node in re.findall(r"/\d: node (\d+) leads", done)]
            told = [int(count) for count in re.findall(r"with node \d+, (\d+) records", done)]
            given_up = [
                max(ends[number].values()) - ends[number][node]
                for number, node in enumerate(elected)
            ]
            assert told == given_up, done
            assert is_oldest_elected or given_up == [0] * PARTITIONS, done
            wait_until(lambda: are_settled(client, 3), "all replicas have copied")
            for partition in range(PARTITIONS):
                found = read_all(cluster.storage[1], topic, partition)
                assert len(found) == ends[partition][elected[partition]], done
            with traffic(cluster, (topic,)) as clients:
                clients.wait_for_writes()
                clients.stop()
        assert not cluster.dead()


def ends_of(shown: str) -> dict[int, dict[int, int]]:
    """Return the end offsets that `elect` shows, by partition and node."""
    ends: dict[int, dict[int, int]] = {}
    partition = -1
    for line in shown.splitlines():
        named = re.match(r"\S+/(\d+): replicas", line)
        partition = int(named[1]) if named else partition
        known = re.match(r"\s+node (\d+): end offset (\d+)", line)
        if known:
            ends.setdefault(partition, {})[int(known[1])] = int(known[2])
    assert all(len(known) == 3 for known in ends.values()), shown
    return ends
