"""`MetaService` and the client over it: any node answers, offsets have messages of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message
from msgspec.msgpack import Decoder
from tests.meta.raft.cluster_in_process import ClusterInProcess, wait_until
from typer.testing import CliRunner

from penstock.cli import build
from penstock.errors import (
    AlreadyExistsError,
    BadRequestError,
    DeadlineError,
    NotSupportedError,
    StaleReadError,
    UnknownTopicError,
)
from penstock.meta.client import GroupName, NewOffset
from penstock.meta.client_api.local_reads import ANY_AGE
from penstock.meta.events import TopicPut
from penstock.meta.proto import meta_pb2 as pb
from penstock.meta.remote import client as remote_client
from penstock.meta.remote.client import RemoteMetaClient
from penstock.meta.remote.connection import MetaConnection
from penstock.meta.remote.groups import RemoteRows
from penstock.meta.service import MetaService, meta_handlers
from penstock.meta.standalone.client import StandaloneMetaClient
from penstock.meta.state.keys import encode_key
from penstock.meta.state.metadata.rows import SHARDS, TOPICS, read_beats
from penstock.meta.state.model import Topic
from penstock.meta.watch import Update
from penstock.platform.clock import SystemClock


def serve(service: MetaService) -> tuple[grpc.Server, str]:
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((meta_handlers(service),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"127.0.0.1:{port}"


@pytest.fixture
def standalone_address(tmp_path: Path) -> Iterator[str]:
    with StandaloneMetaClient.open(str(tmp_path / "meta")) as solo:
        server, address = serve(solo.service())
        yield address
        server.stop(None).wait()


@pytest.fixture
def client(standalone_address: str) -> Iterator[RemoteMetaClient]:
    made = RemoteMetaClient([standalone_address], node_id=9)
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
        client.claim_groups([GroupName("default", f"g-{number}")])
    assert len(client.list_groups()) == 3


def test_a_scan_goes_over_several_pages(client: RemoteMetaClient) -> None:
    topic = client.create_topic("wide", partitions=1_000)
    client.alter_topic(topic.topic_id, partitions=1_500)
    assert len(client.list_shards(topic.topic_id)) == 1_500


def test_offsets_are_saved_by_the_messages_of_the_service(
    client: RemoteMetaClient, standalone_address: str
) -> None:
    connection = connect(standalone_address)
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
    for name, reason in (("other", "not 'other'"), ("", "cluster_name is empty")):
        with pytest.raises(BadRequestError, match=reason):
            connection.call(
                "SaveOffsetData",
                pb.SaveOffsetDataRequest(cluster_name=name, offsets=request.offsets),
                pb.SaveOffsetDataReply,
            )
    connection.close()


def test_a_save_is_stored_whatever_happened_to_the_group_since_the_last_one(
    client: RemoteMetaClient, standalone_address: str
) -> None:
    connection = connect(standalone_address)

    def save(offset: int) -> int | None:
        one = pb.SaveOffsetDataRequestOffset(namespace="", shard_name="t_0", offset=offset)
        request = pb.SaveOffsetDataRequest(
            cluster_name=client.cluster_id, offsets=[pb.SaveOffsetData(group="g", offsets=[one])]
        )
        assert connection.call("SaveOffsetData", request, pb.SaveOffsetDataReply).stale == 0
        found = client.get_offset("default", "g", "t_0")
        return None if found is None else found.offset

    assert save(5) == 5
    client.reset_offsets("default", "g", [NewOffset("t_0", 2)])
    assert save(3) == 3
    client.claim_groups([GroupName("default", "g")])
    assert save(4) == 4
    client.delete_group("default", "g")
    assert save(1) == 1
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
    for number in range(100):
        client.create_topic(f"before-{number}")
    seen: list[Update] = []

    def note(update: Update) -> None:
        time.sleep(0.001)  # so that the past is not there by chance
        seen.append(update)

    watch = client.watch(0, note)
    past: list[str] = []
    for update in seen:
        _note_topics(past, update)
    assert past == [f"before-{number}" for number in range(100)], "all of it, before watch returns"
    client.create_topic("after")
    wait_until(lambda: seen[-1].revision == client.revision(), "the change is pushed")
    revisions = [update.revision for update in seen]
    assert revisions == sorted(set(revisions))
    watch.close()


@pytest.mark.parametrize(
    "request_", [pb.ProposeRequest(group=9), pb.ProposeRequest(group=0, request=b"\xc1")]
)
def test_what_is_no_request_is_refused(
    standalone_address: str, request_: pb.ProposeRequest
) -> None:
    connection = connect(standalone_address)
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


def _served(cluster: ClusterInProcess, closing: ExitStack) -> dict[int, str]:
    """Serve the nodes of a cluster; return their addresses."""
    addresses: dict[int, str] = {}
    for node, one in cluster.clients.items():
        server, addresses[node] = serve(one.service())
        closing.callback(partial(server.stop, None))
    return addresses


def _ask_once(
    address: str, topic: Topic, bound_ms: int | None, *, is_local: bool = True
) -> tuple[int, int | None]:
    """Return how many partitions of a topic an address knows of, and how old that is."""
    connection = MetaConnection([address], deadline_s=60, clock=SystemClock())
    key = encode_key(TOPICS.number, topic.topic_id)
    request = pb.GetRequest(key=key, is_local=is_local, max_staleness_ms=bound_ms)
    try:
        reply = connection._call(address, "Get", request, pb.GetReply)
    finally:
        connection.close()
    age_ms = reply.age_ms if reply.HasField("age_ms") else None
    return Decoder(Topic).decode(reply.row).partitions, age_ms


def test_a_local_read_is_as_new_as_the_request_asks_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("penstock._native", reason="a cluster needs the extension")
    with ClusterInProcess(tmp_path) as cluster, ExitStack() as closing:
        cluster.start_all()
        leader = cluster.leader()
        away = next(node for node in cluster.clients if node != leader)
        writer, lonely = cluster.clients[leader], cluster.clients[away]
        addresses = _served(cluster, closing)
        topic = writer.create_topic("orders")
        assert lonely.get_topic("orders") == topic
        ask = partial(_ask_once, addresses[away], topic)

        with monkeypatch.context() as cut:
            cut.setattr(lonely.node, "receive", lambda _sender, _data: None)
            writer.alter_topic(topic.topic_id, partitions=2)
            altered_at = time.monotonic()
            wait_until(lambda: not lonely.metadata_group.knows_leader, "it knows no leader")
            lacking_ms = (time.monotonic() - altered_at) * 1_000
            partitions, age_ms = ask(3_600_000)
            assert partitions == 1, "old, but not older than was asked for"
            assert (age_ms or 0) >= lacking_ms, "it says how old that may be"
            with pytest.raises(StaleReadError, match="knows no leader; ask another node"):
                ask(1)
            # Without a bound it is two seconds; with the greatest there is, anything goes.
            lonely._metadata._current_at = time.monotonic() - 2.1
            with pytest.raises(StaleReadError, match="metadata"):
                ask(None)
            assert ask(ANY_AGE)[0] == 1
            lonely._metadata._current_at = None
            with pytest.raises(StaleReadError, match="of unknown age"):
                ask(3_600_000)
            assert ask(ANY_AGE) == (1, None)
            _read_past_one_that_cannot_tell([addresses[away], addresses[leader]], topic)
        # The first answer after that comes with the leader's word; then it knows by itself.
        wait_until(lambda: lonely.metadata_group.knows_leader, "it hears of a leader again")
        assert ask(None, is_local=False) == (2, 0)
        assert ask(3_600_000)[0] == 2


def _read_past_one_that_cannot_tell(addresses: list[str], topic: Topic) -> None:
    connection = MetaConnection(addresses, deadline_s=60, clock=SystemClock())
    rows = RemoteRows(connection, 0, 1)
    found = TOPICS.get(rows, topic.topic_id)
    connection.close()
    assert found is not None
    assert (found.partitions, rows.age_ms) == (2, 0)


def test_a_node_that_passes_reads_on_passes_on_how_old_they_may_be(tmp_path: Path) -> None:
    pytest.importorskip("penstock._native", reason="a cluster needs the extension")
    with ClusterInProcess(tmp_path, nodes=1) as cluster, ExitStack() as closing:
        cluster.start_all()
        addresses = _served(cluster, closing)
        topic = cluster.clients[1].create_topic("orders", partitions=3)
        between = RemoteMetaClient(list(addresses.values()), node_id=9)
        closing.callback(between.close)
        server, address = serve(between.service())
        closing.callback(partial(server.stop, None))
        handle = cluster.clients[1]._metadata
        handle._current_at = time.monotonic() - 100
        partitions, age_ms = _ask_once(address, topic, 3_600_000)
        assert partitions == 3
        assert (age_ms or 0) >= 100_000
        assert _ask_once(address, topic, 50_000) == (3, 0), "the leader was asked"
        handle._current_at = None
        assert _ask_once(address, topic, ANY_AGE) == (3, None)
        shards = list(SHARDS.scan(RemoteRows(between.connection, 0, ANY_AGE), topic.topic_id))
        assert len(shards) == 3


def test_a_node_outside_of_the_groups_leads_its_shards_while_its_heart_beats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("penstock._native", reason="a cluster needs the extension")
    monkeypatch.setattr(remote_client, "CHECK_BEATS", 1)
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
        # A registration that comes late, behind the last announcement, is noticed.
        client.announce("kafka", "host-9:9092")
        client.register_node("", listeners={}, boot_id=client._nonce)
        said = {"kafka": "host-9:9092"}
        wait_until(lambda: client.list_nodes()[-1].listeners == said, "it says it again")
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


def test_a_watch_whose_client_does_not_read_ends_with_its_queue_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.meta.topology_calls._WATCH_QUEUE_MAX", 3)
    with StandaloneMetaClient.open(str(tmp_path / "meta")) as solo:
        steps = solo.service().watch(pb.WatchRequest(after=0))
        for step in steps:
            assert isinstance(step, pb.WatchReply)
            if step.is_level:
                break
        for number in range(5):
            solo.create_topic(f"t-{number}")
        assert list(steps) == [], "it goes on from its revision with another watch"


def test_the_command_remove_succeeds_when_the_first_answer_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("penstock._native", reason="a cluster needs the extension")
    original = MetaConnection._call
    lost: list[str] = []

    def lose_the_first_answer(
        self: MetaConnection, address: str, method: str, request: Message, reply_type: type[Message]
    ) -> Message:
        reply = original(self, address, method, request, reply_type)
        if method == "RemoveNode" and not lost:
            lost.append(address)
            raise DeadlineError("the answer is lost")
        return reply

    monkeypatch.setattr(MetaConnection, "_call", lose_the_first_answer)
    with ClusterInProcess(tmp_path) as cluster, ExitStack() as closing:
        cluster.start_all()
        leader = cluster.leader()
        gone = next(node for node in cluster.clients if node != leader)
        addresses = ",".join(
            address for node, address in _served(cluster, closing).items() if node != gone
        )
        cluster.stop(gone)
        remove = ["cluster", "remove", str(gone), "--server", addresses]
        outcome = CliRunner().invoke(build(), remove)
        assert f"removed node {gone} from all groups" in outcome.output, outcome.exception
        assert len(lost) == 1
        again = CliRunner().invoke(build(), remove)
        assert f"there is no node {gone}" in str(again.exception)
        assert gone not in cluster.clients[leader].metadata_group.configuration.voters
