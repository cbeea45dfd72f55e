"""A cluster of three nodes: bootstrapped once, joined, wiped, left by its leader."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.free_ports import free_ports
from tests.meta.raft.cluster_in_process import DEADLINE_S, ClusterInProcess, wait_until

from penstock.errors import ClosedError, DiskFailedError, SettingsError, SetupError
from penstock.meta.client import GroupName, GroupOffsets, OffsetEntry, TopicConfig
from penstock.meta.client_api.transaction_client import TransactionClient
from penstock.meta.events import TopicPut
from penstock.meta.raft.client import RaftMetaClient
from penstock.meta.raft.group import load as loading
from penstock.meta.raft.group.load import RaftTiming
from penstock.meta.raft.members.bootstrap import Place
from penstock.meta.raft.node import NodeTiming
from penstock.meta.standalone.client import StandaloneMetaClient
from penstock.meta.state.metadata import commands as cmd
from penstock.meta.state.model import Topic
from penstock.meta.state.transactions.commands import (
    BeginProducer,
    Decide,
    Enlist,
    Finish,
    TransactionPartition,
)
from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.groups import LogLimits
from penstock.meta.watch import Update
from penstock.offsets.manager import OffsetManager
from penstock.offsets.strategy import OffsetCommit
from penstock.record import Offset, ShardId

pytest.importorskip("penstock._native", reason="a cluster needs the extension")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterInProcess]:
    limits = LogLimits(entries_max=40, entries_kept=10)
    with ClusterInProcess(tmp_path, limits=limits) as made:
        made.start_all()
        yield made


def save(client: RaftMetaClient, group: str, offset: int) -> None:
    epoch = client.claim_groups([GroupName("default", group)])[0].epoch
    entry = OffsetEntry("shard_0", offset, epoch, 1, 1_000)
    assert client.save_offsets([GroupOffsets("default", group, (entry,))]) == []


def test_fresh_nodes_form_one_cluster_that_outlives_its_leader(cluster: ClusterInProcess) -> None:
    assert len({client.cluster_id for client in cluster.clients.values()}) == 1
    for number in range(60):
        cluster.clients[1 + number % 3].create_topic(f"topic-{number}")
    save(cluster.clients[2], "readers", 17)
    for client in cluster.clients.values():
        assert len(client.list_topics()) == 60
        found = client.get_offset("default", "readers", "shard_0")
        assert found is not None
        assert found.offset == 17
    leader = cluster.leader()
    cluster.stop(leader)
    survivor = next(iter(cluster.clients.values()))
    survivor.create_topic("after")
    for client in cluster.clients.values():
        assert client.get_topic("after") is not None
    # The old leader comes back behind a log that was cut meanwhile.
    for number in range(100):
        survivor.create_topic(f"later-{number}")
    back = cluster.start(leader)
    assert len(back.list_topics()) == 161


def test_a_wiped_node_that_comes_back_is_complete_again(cluster: ClusterInProcess) -> None:
    for number in range(50):
        cluster.clients[1].create_topic(f"topic-{number}")
    save(cluster.clients[1], "readers", 23)
    cluster.stop(2)
    shutil.rmtree(cluster.directory / "node-2")
    seen: list[Update] = []
    back = cluster.start(2)
    back.watch(0, seen.append)
    cluster.wait_for_voters({1, 2, 3})
    assert len(back.list_topics()) == 50
    found = back.get_offset("default", "readers", "shard_0")
    assert found is not None
    assert found.offset == 23
    # It counts again: with another node gone it is half of the majority.
    cluster.stop(3)
    back.create_topic("with-two")
    assert cluster.clients[1].get_topic("with-two") is not None
    wait_until(lambda: bool(seen) and seen[-1].revision == back.revision(), "the watch is level")


def test_a_node_is_removed_and_another_takes_its_place(cluster: ClusterInProcess) -> None:
    cluster.clients[1].create_topic("orders")
    cluster.stop(3)
    cluster.clients[1].remove_member(3)
    cluster.wait_for_voters({1, 2})
    cluster.addresses[4] = cluster.addresses.pop(3)
    fourth = cluster.start(4)
    cluster.wait_for_voters({1, 2, 4})
    assert fourth.get_topic("orders") is not None
    assert {member.node_id for member in cluster.clients[1].members} == {1, 2, 4}


def test_changes_are_pushed_to_every_node_in_order(cluster: ClusterInProcess) -> None:
    seen: dict[int, list[int]] = {node: [] for node in cluster.clients}

    def note(node: int, update: Update) -> None:
        if any(isinstance(event, TopicPut) for event in update.events):
            seen[node].append(update.revision)

    def create(node: int) -> None:
        for number in range(20):
            cluster.clients[node].create_topic(f"{node}-{number}")

    for node, client in cluster.clients.items():
        client.watch(client.revision(), partial(note, node))
    threads = [threading.Thread(target=create, args=(node,)) for node in cluster.clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: all(len(found) == 60 for found in seen.values()), "all pushes came")
    assert seen[1] == seen[2] == seen[3] == sorted(seen[1])


def test_leaders_of_offsets_move_away_from_the_leader_of_metadata(
    cluster: ClusterInProcess,
) -> None:
    wait_until(lambda: cluster.leader("offset-0") != cluster.leader(), "leaders are apart")


def test_a_disk_that_fails_stops_its_node_and_the_others_go_on(
    cluster: ClusterInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = cluster.leader()
    broken = cluster.clients[leader]

    def fail() -> None:
        raise DiskFailedError("disk", "the device failed")

    monkeypatch.setattr(broken._database, "sync", fail)
    with pytest.raises(DiskFailedError):
        broken.create_topic("never")
    assert isinstance(broken.failure, DiskFailedError)
    with pytest.raises(DiskFailedError):
        broken.list_topics()
    others = [client for node, client in cluster.clients.items() if node != leader]
    others[0].create_topic("goes-on")
    assert others[1].get_topic("goes-on") is not None


def test_nobody_waits_for_ever_for_a_node_that_stops_just_then(
    cluster: ClusterInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = cluster.clients[cluster.leader()]

    def fail() -> None:
        raise DiskFailedError("disk", "the device failed")

    outcomes: list[BaseException] = []

    def ask(number: int) -> None:
        try:
            for count in range(1_000_000):
                stopped.create_topic(f"{number}-{count}")
        except DiskFailedError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(stopped.list_topics()) > 20, "all are busy")
    monkeypatch.setattr(stopped._database, "sync", fail)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(outcomes) == 8


def test_a_mistake_of_ours_stops_the_node_and_refuses_who_waits(
    cluster: ClusterInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = cluster.clients[1]
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def fail() -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(stopped.node._multi, "turn", fail)
    with pytest.raises(ClosedError, match="planted"):
        stopped.create_topic("never")
    cluster.clients[2].create_topic("goes-on")


def test_a_lost_node_is_noticed_and_its_shards_get_another_leader_if_they_can(
    cluster: ClusterInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = next(node for node in cluster.clients if node != cluster.leader())
    wait_until(lambda: len(cluster.clients[lost].list_nodes()) == 3, "all have registered")
    topic = cluster.clients[lost].create_topic("orders")
    other, third = [node for node in cluster.clients if node != lost]
    cluster.clients[third].announce("storage", "host:1")
    placement = cmd.Placement(0, (lost, other), lost)
    monkeypatch.setattr(cluster.clients[lost], "_place", lambda *_: (placement,))
    for node in (lost, other):
        cluster.clients[node].announce("storage", f"host:{node}")
    twice = cluster.clients[lost].create_topic("two-replicas", config=TopicConfig(replication=2))
    cluster.stop(lost)
    client = cluster.clients[other]

    def is_offline() -> bool:
        return {node.node_id: node.status for node in client.list_nodes()}[lost] == "offline"

    wait_until(is_offline, "the controller has noticed")
    (shard,) = client.list_shards(topic.topic_id)
    wait_until(lambda: client.list_shards(topic.topic_id)[0].leader is None, "it has no leader")
    cluster.start(lost)
    wait_until(lambda: client.list_shards(topic.topic_id)[0].leader == lost, "it leads again")
    (later,) = client.list_shards(topic.topic_id)
    assert later.leader_epoch == shard.leader_epoch + (2 if shard.leader == lost else 1)
    # Of the shard with two replicas the other one leads, and who was away is out of sync.
    wait_until(lambda: client.list_shards(twice.topic_id)[0].leader == other, "another leads it")
    (led,) = client.list_shards(twice.topic_id)
    assert (led.in_sync, led.replicas) == ((other,), (lost, other))
    assert led.leader_epoch > 0
    # Its replica goes to a node that takes requests when its own leaves for good.
    cluster.stop(lost)
    client.remove_member(lost, is_forced=True)
    wait_until(
        lambda: client.list_shards(twice.topic_id)[0].adding == (third,), "another node copies it"
    )
    (replaced,) = client.list_shards(twice.topic_id)
    assert (replaced.leader, replaced.in_sync) == (other, (other,))
    assert (replaced.replicas, replaced.removing) == ((other, third, lost), (lost,))
    (kept,) = client.list_shards(topic.topic_id)
    assert kept.replicas == (lost,), "nobody else has it: it may come back"


def test_offsets_are_committed_at_one_node_and_read_at_another(
    cluster: ClusterInProcess, tmp_path: Path
) -> None:
    shard = ShardId("orders-01JCQ0000000000000000000", 0)
    managers = {
        node: OffsetManager.open(str(tmp_path / f"offsets-{node}"), client)
        for node, client in cluster.clients.items()
    }
    managers[1].commit_offsets("readers", {shard: OffsetCommit(Offset(42))})
    managers[1].stop()
    found = managers[2].get_offsets("readers")
    managers[2].stop()
    managers[3].stop()
    assert found[shard].offset == 42


def test_a_transaction_begun_at_one_node_is_ended_at_another_after_its_leader_is_gone(
    cluster: ClusterInProcess,
) -> None:
    first = cluster.clients[cluster.leader("offset-0")]
    assert isinstance(first, TransactionClient)
    begun = first.change_transaction(BeginProducer("default", "payments", 60_000, 7))
    assert begun is not None
    who = ("default", "payments", begun.producer_id, begun.epoch)
    assert first.change_transaction(Enlist(*who, partitions=(TransactionPartition("orders_0", 5),)))
    cluster.stop(cluster.leader("offset-0"))
    other = next(iter(cluster.clients.values()))
    (found,) = other.list_transactions()
    assert (found.status, found.epoch) == ("ongoing", begun.epoch)
    decided = other.change_transaction(Decide(*who, commit=True))
    assert decided is not None
    assert decided.status == "prepare-commit"
    for client in cluster.clients.values():
        assert [one.status for one in client.list_transactions()] == ["prepare-commit"]
    ended = other.change_transaction(Finish(*who))
    assert ended is not None
    assert ended.status == "complete-commit"
    assert other.list_aborted() == []


def test_logs_are_cut_by_hand(cluster: ClusterInProcess) -> None:
    client = cluster.clients[1]
    for number in range(5):
        client.create_topic(f"topic-{number}")
    before = client.raft_status[0].first
    client.create_topic("covers-those-before")
    client.cut_logs()
    wait_until(lambda: client.raft_status[0].first > before, "the log is cut")
    assert len(client.list_topics()) == 6


def test_a_single_node_becomes_the_first_of_a_cluster(tmp_path: Path) -> None:
    with StandaloneMetaClient.open(str(tmp_path / "node-1")) as solo:
        for number in range(30):
            solo.create_topic(f"topic-{number}")
        cluster_id = solo.cluster_id
    with ClusterInProcess(tmp_path) as cluster:
        cluster.start_all()
        assert {client.cluster_id for client in cluster.clients.values()} == {cluster_id}
        assert len(cluster.clients[3].list_topics()) == 30
        cluster.clients[3].create_topic("from-three")
    # A group that others vote in is no single node's any more.
    with pytest.raises(SetupError, match="voters 1, 2, 3"):
        StandaloneMetaClient.open(str(tmp_path / "node-1"))


def test_a_group_of_one_opens_as_a_single_node_and_back(tmp_path: Path) -> None:
    with ClusterInProcess(tmp_path, nodes=1) as alone:
        alone.start_all()
        alone.clients[1].create_topic("raft")
    with StandaloneMetaClient.open(str(tmp_path / "node-1")) as solo:
        assert solo.get_topic("raft") is not None
        solo.create_topic("solo")
    with ClusterInProcess(tmp_path, nodes=1) as alone:
        alone.start_all()
        assert [topic.name for topic in alone.clients[1].list_topics()] == ["raft", "solo"]


def test_a_node_alone_waits_for_no_election(tmp_path: Path) -> None:
    place = Place(node_id=1, peers=(f"1@127.0.0.1:{free_ports(1)[0]}",))
    an_hour = RaftTiming(election_ticks=72_000, heartbeat_ticks=3, deadline_ticks=1_500)
    path, timing = str(tmp_path / "meta"), NodeTiming(raft=an_hour)
    for name in ("bootstrapped", "opened-again"):
        with RaftMetaClient.open(path, place, timing=timing) as alone:
            alone.create_topic(name)
            assert alone.leads_metadata()


def test_without_the_extension_a_cluster_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_core_class", None)
    with pytest.raises(SetupError, match="install Rust"):
        RaftMetaClient.open(str(tmp_path), Place(node_id=1, peers=("1@127.0.0.1:0",)))


@pytest.mark.parametrize("peers", [("127.0.0.1:1",), ("x@h:1",), ("1@h",), ("1@h:1", "1@h:2")])
def test_peers_that_make_no_sense_are_refused(tmp_path: Path, peers: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError, match=r"node\.peers"):
        RaftMetaClient.open(str(tmp_path), Place(node_id=1, peers=peers))


def test_a_node_that_waits_for_its_peers_can_be_stopped(tmp_path: Path) -> None:
    stopping = threading.Event()
    stopping.set()
    place = Place(node_id=1, peers=("1@127.0.0.1:0", "2@127.0.0.1:1"))
    with pytest.raises(TimeoutError):
        RaftMetaClient.open(str(tmp_path / "1"), place, stopping=stopping)
    assert fmt.VERSION == 1


def test_nodes_tell_each_other_where_they_serve_clients(cluster: ClusterInProcess) -> None:
    expected = {node: {"kafka": f"host-{node}:9092"} for node in cluster.clients}
    for node, client in cluster.clients.items():
        client.announce("kafka", f"host-{node}:9092")

    def all_know_of_all() -> bool:
        seen = [client.list_nodes() for client in cluster.clients.values()]
        return all({one.node_id: one.listeners for one in nodes} == expected for nodes in seen)

    wait_until(all_know_of_all, "all know of all")


def test_nodes_of_this_release_accept_plugin_storage(cluster: ClusterInProcess) -> None:
    client = cluster.clients[2]
    wait_until(lambda: len(client.list_nodes()) == len(cluster.clients), "all have registered")
    topic = client.create_topic("orders", config=TopicConfig(storage_type="plugin:sqlite"))
    assert cluster.clients[3].get_topic("orders") == topic


def test_an_announcement_that_an_older_registration_replaced_is_made_again(
    cluster: ClusterInProcess,
) -> None:
    client = cluster.clients[2]
    client.announce("kafka", "host-2:9092")

    def is_announced() -> bool:
        nodes = {node.node_id: node for node in cluster.clients[1].list_nodes()}
        return nodes[2].listeners == {"kafka": "host-2:9092"}

    wait_until(is_announced, "node 2 is announced")
    late = {node.node_id: node for node in client.list_nodes()}[2]
    for _ in range(3):  # the node's own first registration may mend one
        # As one that was under way when the listener was announced, and comes behind it.
        client.register_node(late.address, listeners={}, roles=("meta",), boot_id=late.boot_id)
        wait_until(is_announced, "node 2 says it again", seconds=60)


def test_local_reads_are_never_older_than_is_said(
    cluster: ClusterInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = cluster.leader()
    away = next(node for node in cluster.clients if node != leader)
    reader, writer = cluster.clients[away], cluster.clients[leader]
    topic = writer.create_topic("orders")
    assert reader.staleness_s == 0
    assert reader.get_topic("orders") == topic
    reader.local_reads(are_local=True)
    assert reader.staleness_s == 2.0
    handle = reader._metadata

    with monkeypatch.context() as cut:
        # It hears nothing any more; the others go on.
        cut.setattr(reader.node, "receive", lambda _sender, _data: None)
        reader.local_reads(are_local=True, staleness_s=3_600)
        assert reader.get_topic("orders") == topic, "what it has is new enough, and nobody is asked"
        altered = writer.alter_topic(topic.topic_id, partitions=2)
        altered_at = time.monotonic()
        assert reader.get_topic("orders") == topic
        lacking_ms = (time.monotonic() - altered_at) * 1_000
        assert (handle.age_ms or 0) >= lacking_ms, "it lacks what was altered"
        reader.local_reads(are_local=True, staleness_s=0.001)
        found: list[Topic | None] = []
        reading = threading.Thread(target=lambda: found.append(reader.get_topic("orders")))
        reading.start()
        # Whoever asks now gets no answer from before; that of later comes with a leader.
        wait_until(lambda: bool(reader.metadata_group._reads._rounds), "the question waits")
        asked_at = time.monotonic()
    reading.join(DEADLINE_S)
    assert found == [altered]
    # An answer that took long is as old as its question.
    assert handle._current_at is not None
    assert handle._current_at <= asked_at
