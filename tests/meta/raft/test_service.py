"""`MetaService` and the client over it: any node answers, offsets have messages of their own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import grpc
import pytest
from tests.meta.raft.cluster_in_process import ClusterInProcess, wait_until

from penstock.clock import SystemClock
from penstock.errors import (
    AlreadyExistsError,
    BadRequestError,
    DeadlineError,
    NotSupportedError,
    UnknownTopicError,
)
from penstock.meta.client import GroupName
from penstock.meta.proto import meta_pb2 as pb
from penstock.meta.remote_client import MetaConnection, RemoteMetaClient
from penstock.meta.service import MetaService, meta_handlers
from penstock.meta.solo_client import SoloMetaClient
from penstock.meta.state.metadata_commands import TopicPut
from penstock.meta.state.metadata_rows import read_beats
from penstock.meta.watch import Update


def serve(service: MetaService) -> tuple[grpc.Server, str]:
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((meta_handlers(service),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"127.0.0.1:{port}"


@pytest.fixture
def solo_address(tmp_path: Path) -> Iterator[str]:
    with SoloMetaClient.open(str(tmp_path / "meta")) as solo:
        server, address = serve(solo.service())
        yield address
        server.stop(None).wait()


@pytest.fixture
def client(solo_address: str) -> Iterator[RemoteMetaClient]:
    made = RemoteMetaClient([solo_address], node_id=9)
    yield made
    made.close()


def connect(address: str) -> MetaConnection:
    return MetaConnection([address], deadline_s=10, clock=SystemClock())


def test_the_remote_client_does_what_the_local_one_does(client: RemoteMetaClient) -> None:
    topic = client.create_topic("orders", partitions=3)
    assert client.get_topic("orders") == topic
    assert [shard.partition for shard in client.list_shards(topic.topic_id)] == [0, 1, 2]
    with pytest.raises(AlreadyExistsError, match="orders"):
        client.create_topic("orders")
    with pytest.raises(UnknownTopicError):
        client.alter_topic("nobody", partitions=2)
    first = client.allocate_producer_ids(10, request_id="same")
    assert client.allocate_producer_ids(10, request_id="same") == first
    for number in range(3):
        client.take_coordinator_epochs([GroupName("default", f"g-{number}")])
    assert len(client.list_groups()) == 3


def test_a_scan_goes_over_several_pages(client: RemoteMetaClient) -> None:
    topic = client.create_topic("wide", partitions=1_000)
    client.alter_topic(topic.topic_id, partitions=1_500)
    assert len(client.list_shards(topic.topic_id)) == 1_500


def test_offsets_are_saved_by_the_messages_of_the_service(
    client: RemoteMetaClient, solo_address: str
) -> None:
    connection = connect(solo_address)
    one = pb.SaveOffsetDataRequestOffset(namespace="default", shard_name="t_0", offset=42)
    two = pb.SaveOffsetDataRequestOffset(
        namespace="default", shard_name="t_1", offset=7, metadata="m", leader_epoch=3
    )
    request = pb.SaveOffsetDataRequest(
        cluster_name=client.cluster_id, offsets=[pb.SaveOffsetData(group="g", offsets=[one, two])]
    )
    assert connection.call("SaveOffsetData", request, pb.SaveOffsetDataReply).stale == 0
    found = client.get_offsets("default", "g")
    assert {shard: offset.offset for shard, offset in found.items()} == {"t_0": 42, "t_1": 7}
    assert (found["t_1"].metadata, found["t_1"].leader_epoch) == ("m", 3)
    assert found["t_0"].leader_epoch == -1
    with pytest.raises(BadRequestError, match="not 'other'"):
        connection.call(
            "SaveOffsetData", pb.SaveOffsetDataRequest(cluster_name="other"), pb.SaveOffsetDataReply
        )
    connection.close()


def test_the_numbers_of_the_offset_messages_never_change() -> None:
    fields = {
        name: [(one.name, one.number) for one in pb.DESCRIPTOR.message_types_by_name[name].fields][
            :3
        ]
        for name in ("SaveOffsetDataRequest", "SaveOffsetData", "SaveOffsetDataRequestOffset")
    }
    assert fields == {
        "SaveOffsetDataRequest": [("cluster_name", 1), ("offsets", 2)],
        "SaveOffsetData": [("group", 1), ("offsets", 2)],
        "SaveOffsetDataRequestOffset": [("namespace", 1), ("shard_name", 2), ("offset", 3)],
    }


def test_a_watch_delivers_the_past_first_and_each_change_once(client: RemoteMetaClient) -> None:
    client.create_topic("before")
    seen: list[Update] = []
    watch = client.watch(0, seen.append)
    assert seen, "the past comes before watch returns"
    client.create_topic("after")
    wait_until(lambda: seen[-1].revision == client.revision(), "the change is pushed")
    revisions = [update.revision for update in seen]
    assert revisions == sorted(set(revisions))
    watch.close()


@pytest.mark.parametrize(
    "request_", [pb.ProposeRequest(group=9), pb.ProposeRequest(group=0, request=b"\xc1")]
)
def test_what_is_no_request_is_refused(solo_address: str, request_: pb.ProposeRequest) -> None:
    connection = connect(solo_address)
    with pytest.raises(BadRequestError):
        connection.call("Propose", request_, pb.ProposeReply)
    with pytest.raises(NotSupportedError, match="single node"):
        connection.call("RemoveNode", pb.RemoveNodeRequest(node_id=2), pb.Nothing)
    connection.close()


def test_nobody_answers_at_an_address_where_nobody_is() -> None:
    connection = MetaConnection(["127.0.0.1:1"], deadline_s=0.3, clock=SystemClock())
    with pytest.raises(DeadlineError, match=r"127\.0\.0\.1:1"):
        connection.call("ClusterStatus", pb.ClusterStatusRequest(), pb.ClusterStatusReply)
    connection.close()


def _note_topics(names: list[str], update: Update) -> None:
    names += [event.topic.name for event in update.events if isinstance(event, TopicPut)]


def test_clients_go_on_at_another_node_when_theirs_is_gone(tmp_path: Path) -> None:
    pytest.importorskip("penstock._native", reason="a cluster needs the extension")
    with ClusterInProcess(tmp_path) as cluster:
        cluster.start_all()
        served = {node: serve(one.service()) for node, one in cluster.clients.items()}
        leader = cluster.leader()
        addresses = [served[leader][1], *[one[1] for node, one in served.items() if node != leader]]
        client = RemoteMetaClient(addresses, node_id=9)
        # One that only watches, and never learns by a call of its own that a node is gone.
        watcher = RemoteMetaClient(addresses, node_id=8)
        pushed: list[str] = []
        watch = watcher.watch(watcher.revision(), partial(_note_topics, pushed))
        client.create_topic("one")
        wait_until(lambda: pushed == ["one"], "a change is pushed")
        served[leader][0].stop(None).wait()
        cluster.stop(leader)
        client.create_topic("two")
        client.create_topic("three")
        wait_until(lambda: pushed == ["one", "two", "three"], "the watch goes on without a gap")
        watch.close()
        watcher.close()
        assert [topic.name for topic in client.list_topics()] == ["one", "three", "two"]
        status = client.connection.call(
            "ClusterStatus", pb.ClusterStatusRequest(), pb.ClusterStatusReply
        )
        assert len(status.groups) == 2
        assert {member.node_id for member in status.members} == {1, 2, 3}
        client.close()
        for server, _ in served.values():
            server.stop(None).wait()


def test_a_node_outside_of_the_groups_leads_its_shards_while_its_heart_beats(
    tmp_path: Path,
) -> None:
    pytest.importorskip("penstock._native", reason="a cluster needs the extension")
    with ClusterInProcess(tmp_path) as cluster:
        cluster.start_all()
        served = [serve(one.service()) for one in cluster.clients.values()]
        addresses = [address for _, address in served]
        seen_from = cluster.clients[cluster.leader()]
        client = RemoteMetaClient(addresses, node_id=9)
        client.start_heartbeats()
        topic = client.create_topic("orders")
        epoch = client.list_nodes()[-1].epoch
        beats = read_beats(seen_from._metadata.local).get(9, 0)
        wait_until(
            lambda: read_beats(seen_from._metadata.local).get(9, 0) > beats + 1, "hearts beat"
        )
        client.close()

        def leader() -> int | None:
            return seen_from.list_shards(topic.topic_id)[0].leader

        wait_until(lambda: leader() is None, "the loss is noticed")
        again = RemoteMetaClient(addresses, node_id=9)
        again.start_heartbeats()
        assert again.list_nodes()[-1].epoch > epoch
        wait_until(lambda: leader() == 9, "it leads again")
        again.close()
        for server, _ in served:
            server.stop(None).wait()
