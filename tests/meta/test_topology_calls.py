"""The typed methods of the meta service, called by a client that has only the `.proto` file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import Message
from tests.meta.raft.cluster_in_process import ClusterInProcess
from tests.meta.raft.test_service import serve

import penstock
from penstock.meta import events as cmd
from penstock.meta.client import MetaClient
from penstock.meta.standalone.client import StandaloneMetaClient
from penstock.meta.state.model import Node, TieringPolicy, TopicConfig
from penstock.meta.topology_messages import (
    REPLY_SIZE_MAX,
    config_from_wire,
    config_to_wire,
    update_to_wire,
)
from penstock.meta.watch import Update
from penstock.record import ShardId
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, merge_settings

SOURCE = Path(__file__).parents[2] / "src"
FILE = "penstock/meta/proto/meta.proto"
SERVICE = "penstock.meta.v1.MetaService"


class ProtoClient:
    """Generic stubs over a descriptor compiled from the `.proto` file, none of this project's code.
    Requests and replies are the JSON form of the messages."""

    def __init__(self, address: str, tmp_path: Path) -> None:
        protoc = pytest.importorskip("grpc_tools.protoc")
        compiled = tmp_path / "meta.descriptors"
        if not compiled.exists():
            assert protoc.main(["protoc", f"-I{SOURCE}", f"-o{compiled}", FILE]) == 0
        pool = descriptor_pool.DescriptorPool()
        for file in FileDescriptorSet.FromString(compiled.read_bytes()).file:
            pool.Add(file)
        self._methods = pool.FindServiceByName(SERVICE).methods_by_name
        self.channel = grpc.insecure_channel(address)

    def call(self, method: str, **fields: object) -> dict[str, object]:
        request_type, reply_type = self._types(method)
        call = self.channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=_serialize,
            response_deserializer=reply_type.FromString,
        )
        return _as_json(call(json_format.ParseDict(fields, request_type()), timeout=30))

    def stream(self, method: str, **fields: object) -> Iterator[dict[str, object]]:
        request_type, reply_type = self._types(method)
        call = self.channel.unary_stream(
            f"/{SERVICE}/{method}",
            request_serializer=_serialize,
            response_deserializer=reply_type.FromString,
        )
        for reply in call(json_format.ParseDict(fields, request_type()), timeout=30):
            yield _as_json(reply)

    def _types(self, method: str) -> tuple[type[Message], type[Message]]:
        descriptor = self._methods[method]
        return (
            message_factory.GetMessageClass(descriptor.input_type),
            message_factory.GetMessageClass(descriptor.output_type),
        )


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _as_json(message: Message) -> dict[str, object]:
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def part(reply: object, *path: str) -> object:
    for name in path:
        assert isinstance(reply, Mapping)
        reply = reply[name]
    return reply


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    quiet = {"kafka": {"port": 0}, "server": {"port": 0, "http_port": 0}}
    with Server(str(tmp_path / "data"), merge_settings(EMBEDDED, quiet)) as running:
        yield running


@pytest.fixture
def client(server: Server, tmp_path: Path) -> Iterator[ProtoClient]:
    made = ProtoClient(f"127.0.0.1:{server.port}", tmp_path)
    yield made
    made.channel.close()


def create_topic(client: ProtoClient, name: str, partitions: int = 2) -> str:
    reply = client.call("PlacementCreateTopic", topic_name=name, partitions=partitions)
    return str(part(reply, "topic", "topic_id"))


def test_a_topic_with_shards_and_segments_is_made_by_typed_calls(client: ProtoClient) -> None:
    config = {"storage_type": "memory", "retention_ms": "-1", "kafka_settings": {"a": "b"}}
    fields = {"topic_name": "orders", "partitions": 2, "config": config, "request_id": "once"}
    topic = client.call("PlacementCreateTopic", **fields)["topic"]
    assert client.call("PlacementCreateTopic", **fields)["topic"] == topic
    assert part(topic, "topic_name") == "orders"
    assert part(topic, "namespace") == "default"
    assert part(topic, "config", "storage_type") == "EngineMemory"
    assert part(topic, "config", "retention_ms") == "-1"
    assert part(topic, "config", "kafka_settings") == {"a": "b"}
    shard = f"{part(topic, 'topic_id')}_1"
    created = client.call("CreateShard", shard_name=shard)
    assert part(created, "shard", "shard_name") == shard
    assert part(created, "shard", "leader") == "1"
    assert client.call("CreateShard", shard_name=shard) == created
    fields = {"shard_name": shard, "segment": 0, "end_offset": 7, "leader_epoch": 0}
    opened = client.call("CreateNextSegment", **fields)
    assert part(opened, "segment", "number") == "1"
    assert part(opened, "segment", "start_offset") == "7"
    segment = opened["segment"]
    assert isinstance(segment, dict)
    assert "end_offset" not in segment
    assert client.call("CreateNextSegment", **fields) == opened
    sealed = client.call("SealUpSegment", shard_name=shard, segment=1, end_offset=9)
    assert part(sealed, "segment", "status") == "sealed"
    assert part(sealed, "segment", "end_offset") == "9"
    assert client.call("DeleteShard", shard_name=shard) == {}


@pytest.mark.parametrize(
    ("method", "fields", "code", "name"),
    [
        ("PlacementCreateTopic", {"topic_name": "taken"}, "ALREADY_EXISTS", "AlreadyExistsError"),
        ("PlacementCreateTopic", {"topic_name": ""}, "INVALID_ARGUMENT", "BadRequestError"),
        (
            "PlacementCreateTopic",
            {"topic_name": "t", "partitions": 10_001},
            "INVALID_ARGUMENT",
            "BadRequestError",
        ),
        (
            "PlacementCreateTopic",
            {"topic_name": "t", "config": {"storage_type": "tape"}},
            "INVALID_ARGUMENT",
            "BadRequestError",
        ),
        (
            "PlacementCreateTopic",
            {"topic_name": "t", "config": {"replication": 3}},
            "INVALID_ARGUMENT",
            "BadRequestError",
        ),
        ("CreateShard", {"shard_name": "absent_0"}, "NOT_FOUND", "UnknownTopicError"),
        ("CreateShard", {"shard_name": "absent"}, "INVALID_ARGUMENT", "BadRequestError"),
        ("CreateShard", {"shard_name": "{}_9"}, "INVALID_ARGUMENT", "BadRequestError"),
        ("DeleteShard", {"shard_name": "absent_0"}, "NOT_FOUND", "UnknownShardError"),
        ("DeleteShard", {"shard_name": "{}_1"}, "NOT_FOUND", "UnknownShardError"),
        (
            "CreateNextSegment",
            {"shard_name": "absent_0", "end_offset": 1},
            "NOT_FOUND",
            "UnknownShardError",
        ),
        (
            "CreateNextSegment",
            {"shard_name": "{}_0", "segment": 5, "end_offset": 1},
            "FAILED_PRECONDITION",
            "StaleWriteError",
        ),
        (
            "CreateNextSegment",
            {"shard_name": "{}_0", "end_offset": 1, "leader_epoch": 4},
            "FAILED_PRECONDITION",
            "StaleWriteError",
        ),
        (
            "CreateNextSegment",
            {"shard_name": "{}_0", "end_offset": (1 << 64) - 1},
            "INVALID_ARGUMENT",
            "BadRequestError",
        ),
        ("SealUpSegment", {"shard_name": "absent_0"}, "NOT_FOUND", "UnknownShardError"),
        (
            "SealUpSegment",
            {"shard_name": "{}_0", "segment": 3},
            "INVALID_ARGUMENT",
            "BadRequestError",
        ),
        (
            "CreateShard",
            {"shard_name": "{}_0", "cluster_name": "other"},
            "INVALID_ARGUMENT",
            "BadRequestError",
        ),
    ],
)
def test_a_rejected_call_has_a_status_and_the_name_of_the_error(
    client: ProtoClient, method: str, fields: dict[str, object], code: str, name: str
) -> None:
    topic_id = create_topic(client, "taken")
    client.call("CreateShard", shard_name=f"{topic_id}_0")
    fields = {
        key: value.format(topic_id) if isinstance(value, str) else value
        for key, value in fields.items()
    }
    with pytest.raises(grpc.RpcError) as raised:
        client.call(method, **fields)
    error: object = raised.value
    assert isinstance(error, grpc.Call)
    assert error.code().name == code
    assert ("penstock-meta-error-bin", name.encode()) in [*(error.trailing_metadata() or ())]
    assert error.details()


def test_a_topic_of_typed_calls_takes_records_once_its_storage_is_created(
    server: Server, client: ProtoClient
) -> None:
    topic_id = create_topic(client, "orders", partitions=1)
    client.call("CreateShard", shard_name=f"{topic_id}_0")
    with penstock.connect(f"127.0.0.1:{server.port}") as store:
        topic = store.topic("orders")
        topic.alter(partitions=1)
        topic.write(b"one")
        assert [record.value for record in topic.read()] == [b"one"]


def test_update_cache_pushes_each_change_once_and_in_order(client: ProtoClient) -> None:
    pushed = client.stream("UpdateCache")
    before = _until_level(pushed)
    topic_id = create_topic(client, "orders")
    shard = f"{topic_id}_0"
    client.call("CreateShard", shard_name=shard)
    client.call("CreateNextSegment", shard_name=shard, end_offset=5)
    client.call("DeleteShard", shard_name=shard)
    changes: list[tuple[str, object]] = []
    revisions: list[int] = []
    for reply in pushed:
        updates = part(reply, "updates")
        assert isinstance(updates, list)
        if updates:
            revisions.append(int(str(reply["revision"])))
        changes += [next(iter(update.items())) for update in updates]
        if ("shard_deleted", shard) in changes:
            break
    assert revisions == sorted(set(revisions))
    assert revisions[0] > before
    kinds = [kind for kind, _ in changes]
    assert kinds == [
        "topic_put",
        "shard_put",
        "segment_put",
        "segment_put",
        "segment_put",
        "shard_put",
        "shard_deleted",
    ]
    later = client.stream("UpdateCache", after_revision=revisions[0])
    assert int(str(next(later)["revision"])) == revisions[1]


def test_update_cache_refuses_the_name_of_another_cluster(client: ProtoClient) -> None:
    with pytest.raises(grpc.RpcError, match="not 'other'"):
        next(client.stream("UpdateCache", cluster_name="other"))


def _until_level(pushed: Iterator[dict[str, object]]) -> int:
    """Read what existed before the call; return its revision."""
    revision = 0
    for reply in pushed:
        if reply["is_level"]:
            return revision
        revision = int(str(reply["revision"]))
    raise AssertionError("the stream ended")


def test_a_node_that_does_not_lead_passes_typed_calls_to_the_leader(tmp_path: Path) -> None:
    pytest.importorskip("penstock._native", reason="a cluster needs the extension")
    with ExitStack() as closing, ClusterInProcess(tmp_path) as cluster:
        cluster.start_all()
        leader = cluster.leader()
        follower = next(node for node in cluster.clients if node != leader)
        server, address = serve(cluster.clients[follower].service())
        closing.callback(partial(server.stop, None))
        client = ProtoClient(address, tmp_path)
        closing.callback(client.channel.close)
        topic_id = create_topic(client, "orders", partitions=1)
        shard = f"{topic_id}_0"
        client.call("CreateShard", shard_name=shard)
        client.call("CreateNextSegment", shard_name=shard, end_offset=3)
        sealed = client.call("SealUpSegment", shard_name=shard, segment=1, end_offset=4)
        assert part(sealed, "segment", "status") == "sealed"
        found = cluster.clients[leader].list_segments(ShardId(topic_id, 0))
        assert [(one.start_offset, one.end_offset) for one in found] == [(0, 3), (3, 4)]
        client.call("DeleteShard", shard_name=shard)
        assert cluster.clients[leader].get_shard(ShardId(topic_id, 0)) is None
        with pytest.raises(grpc.RpcError, match="does not exist"):
            client.call("CreateShard", shard_name="absent_0")


def test_typed_calls_propose_the_commands_of_a_local_client(tmp_path: Path) -> None:
    """A local client and a typed one leave the same rows behind."""
    with StandaloneMetaClient.open(str(tmp_path / "meta")) as solo:
        server, address = serve(solo.service())
        client = ProtoClient(address, tmp_path)
        ids = [create_topic(client, "a", 1), solo.placement_create_topic("b").topic_id]
        client.call("CreateShard", shard_name=f"{ids[0]}_0")
        solo.create_shard(ShardId(ids[1], 0))
        client.call("CreateNextSegment", shard_name=f"{ids[0]}_0", end_offset=3)
        solo.next_segment(ShardId(ids[1], 0), 0, 3)
        rows = [_rows(solo, topic_id) for topic_id in ids]
        assert rows[0] == rows[1]
        client.channel.close()
        server.stop(None).wait()


def _rows(client: MetaClient, topic_id: str) -> list[tuple[object, ...]]:
    (shard,) = client.list_shards(topic_id)
    topic = client.get_topic_by_id(topic_id)
    assert topic is not None
    return [
        (topic.config, topic.partitions, topic.status),
        (shard.replicas, shard.leader, shard.active_segment, shard.status),
        *[(one.start_offset, one.end_offset, one.status) for one in client.list_segments(shard.id)],
    ]


def test_every_field_of_a_configuration_survives_the_wire() -> None:
    policy = TieringPolicy(
        provider="s3://b/p",
        storage_level="FORCE",
        uploader="spark",
        local_retention_ms=1,
        local_retention_bytes=-1,
        tier_retention_ms=0,
        upload_interval_ms=4,
        upload_bytes=5,
    )
    config = TopicConfig(
        storage_type="EngineRocksDB",
        replication=2,
        min_insync=1,
        retention_ms=0,
        retention_bytes=-1,
        retention_records=3,
        flush="SYNC_FLUSH",
        cleanup="compact",
        partitioner="key",
        record_size_max=7,
        queue_kind="BatchCQ",
        tiering=policy,
        memory_records_max=8,
        memory_bytes_max=9,
        segment_size=10,
        segment_age_ms=11,
        tombstone_retention_ms=0,
        compaction_lag_ms=13,
        tag_header="",
        kafka_settings=(("a", "1"), ("b", "2")),
    )
    for sent in (config, TopicConfig(), TopicConfig(tiering=TieringPolicy())):
        assert config_from_wire(config_to_wire(sent)) == sent


def test_a_large_update_is_pushed_in_several_replies() -> None:
    node = Node(
        node_id=1,
        address="a" * 1_000,
        listeners={},
        roles=(),
        boot_id="",
        epoch=1,
        status="online",
        registered_at_ms=0,
    )
    events = tuple(cmd.NodePut(node) for _ in range(3_000))
    replies = list(update_to_wire(Update(7, events, is_reset=True)))
    assert len(replies) > 2
    assert all(reply.ByteSize() < 2 * REPLY_SIZE_MAX for reply in replies)
    assert [reply.is_reset for reply in replies] == [True] + [False] * (len(replies) - 1)
    assert [reply.has_more for reply in replies] == [True] * (len(replies) - 1) + [False]
    assert {reply.revision for reply in replies} == {7}
    assert sum(len(reply.updates) for reply in replies) == 3_000
