"""Administration through real clients: librdkafka's, and kafka-python's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewPartitions, NewTopic
from kio.schema.errors import ErrorCode
from tests.brokers.kafka.running import Running, WireClient, running
from tests.kafka_clients import AdminClient, Producer

from penstock.adapter.requests import Compact
from penstock.record import Offset, Record

TIMEOUT = 20.0


@pytest.fixture
def server(data_path: Path) -> Iterator[Running]:
    with running(data_path) as started:
        yield started


@pytest.fixture
def admin(server: Running) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.address})


def create(admin: AdminClient, *topics: NewTopic, validate_only: bool = False) -> list[int]:
    """Return the error code of each."""
    futures = admin.create_topics(list(topics), validate_only=validate_only)
    codes = []
    for future in futures.values():
        try:
            future.result(TIMEOUT)
        except KafkaException as error:
            codes.append(int(error.args[0].code()))
        else:
            codes.append(0)
    return codes


def configs_of(admin: AdminClient, name: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    (future,) = admin.describe_configs([resource]).values()
    found: dict[str, ConfigEntry] = future.result(TIMEOUT)
    return found


def test_a_topic_is_created_with_its_configuration(server: Running, admin: AdminClient) -> None:
    config = {
        "retention.ms": "60000",
        "cleanup.policy": "compact",
        "segment.bytes": "1048576",
        "flush.messages": "1",
        "penstock.storage": "rocksdb",
        "compression.type": "producer",
    }
    assert create(admin, NewTopic("orders", 3, 1, config=config)) == [0]
    topic = server.node.broker_cache.get_topic("orders")
    assert topic.partitions == 3
    assert topic.config.retention_ms == 60_000
    assert topic.config.cleanup == "compact"
    assert topic.config.segment_size == 1 << 20
    assert topic.config.flush == "SYNC_FLUSH"
    assert topic.config.storage_type == "EngineRocksDB"
    shown = configs_of(admin, "orders")
    assert {name: shown[name].value for name in config} == config
    assert shown["penstock.storage"].is_read_only
    assert not shown["retention.ms"].is_default
    assert shown["retention.bytes"].is_default


def test_what_cannot_be_created_is_refused_with_its_reason(
    server: Running, admin: AdminClient
) -> None:
    assert create(admin, NewTopic("there", 1, 1)) == [0]
    placed = NewTopic("placed", num_partitions=1, replica_assignment=[[1, 2]])
    rejection = {
        NewTopic("there", 1, 1): ErrorCode.topic_already_exists,
        NewTopic("bad name", 1, 1): ErrorCode.invalid_topic_exception,
        NewTopic("three", 1, 3): ErrorCode.invalid_replication_factor,
        NewTopic("many", 10_001, 1): ErrorCode.invalid_partitions,
        NewTopic("odd", 1, 1, config={"retention.ms": "soon"}): ErrorCode.invalid_config,
        NewTopic("odd", 1, 1, config={"retention.msec": "1"}): ErrorCode.invalid_config,
        NewTopic("odd", 1, 1, config={"compression.type": "rar"}): ErrorCode.invalid_config,
        NewTopic("odd", 1, 1, config={"penstock.tag.header": "a\nb"}): ErrorCode.invalid_config,
        placed: ErrorCode.invalid_replica_assignment,
    }
    for topic, code in rejection.items():
        assert create(admin, topic) == [code], topic
    assert [one.name for one in server.node.broker_cache.list_topics()] == ["there"]


def test_a_topic_is_compacted_and_deleted_from_as_its_settings_say(
    server: Running, admin: AdminClient
) -> None:
    config = {
        "cleanup.policy": "delete, compact",
        "delete.retention.ms": "0",
        "min.compaction.lag.ms": "0",
        "penstock.retention.records": "3",
    }
    assert create(admin, NewTopic("table", 1, 1, config=config)) == [0]
    shown = configs_of(admin, "table")
    assert shown["cleanup.policy"].value == "compact,delete"
    assert (shown["delete.retention.ms"].value, shown["min.compaction.lag.ms"].value) == ("0", "0")
    producer = Producer({"bootstrap.servers": server.address})
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", None)):
        producer.produce("table", value, key=key)
        assert producer.flush(TIMEOUT) == 0
    topics = server.node.driver_manager
    assert [topics.execute(Compact("table")).records for _ in range(3)] == [1, 1, 0]
    assert [one.key for one in topics.read_by_offset("table", 0, Offset(0))] == [b"b"]
    for number in range(3):
        producer.produce("table", b"2", key=b"%d" % number)
    assert producer.flush(TIMEOUT) == 0
    server.node.run_upkeep()
    assert topics.shard_info("table", 0).earliest == 3


def test_one_request_creates_many_topics_and_refuses_others(
    server: Running, admin: AdminClient
) -> None:
    assert create(admin, NewTopic("there", 1, 1)) == [0]
    topics = [NewTopic(f"t{number}", 1 + number % 2, 1) for number in range(30)]
    topics[3] = NewTopic("there", 1, 1)
    topics[5] = NewTopic("odd", 1, 1, config={"retention.ms": "soon"})
    codes = create(admin, *topics)
    assert {at: code for at, code in enumerate(codes) if code} == {3: 36, 5: 40}
    known = {one.name: one.partitions for one in server.node.broker_cache.list_topics()}
    assert known == {"there": 1} | {
        one.topic: one.num_partitions for at, one in enumerate(topics) if at not in (3, 5)
    }
    producer = Producer({"bootstrap.servers": server.address})
    for name in known:
        producer.produce(name, b"v")
    assert producer.flush(TIMEOUT) == 0


def test_a_dry_run_creates_nothing(server: Running, admin: AdminClient) -> None:
    assert create(admin, NewTopic("dry", 1, 1), validate_only=True) == [0]
    assert create(admin, NewTopic("dry", 1, 2), validate_only=True) == [38]
    assert server.node.broker_cache.list_topics() == []


def test_configurations_are_altered_one_by_one(server: Running, admin: AdminClient) -> None:
    assert create(admin, NewTopic("orders", 1, 1, config={"retention.bytes": "5000"})) == [0]

    def alter(name: str, value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ConfigResource.Type.TOPIC, "orders", incremental_configs=[entry])
        (future,) = admin.incremental_alter_configs([resource]).values()
        future.result(TIMEOUT)

    alter("retention.ms", "7000", AlterConfigOpType.SET)
    config = server.node.broker_cache.get_topic("orders").config
    assert (config.retention_ms, config.retention_bytes) == (7_000, 5_000)
    alter("retention.bytes", None, AlterConfigOpType.DELETE)
    config = server.node.broker_cache.get_topic("orders").config
    assert (config.retention_ms, config.retention_bytes) == (7_000, None)
    alter("cleanup.policy", "delete", AlterConfigOpType.SET)
    with pytest.raises(KafkaException, match=r"penstock\.storage|storage"):
        alter("penstock.storage", "memory", AlterConfigOpType.SET)
    alter("cleanup.policy", "compact", AlterConfigOpType.APPEND)
    assert server.node.broker_cache.get_topic("orders").config.cleanup == "compact,delete"
    alter("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT)
    assert server.node.broker_cache.get_topic("orders").config.cleanup == "compact"
    with pytest.raises(KafkaException, match="not compact, delete"):
        alter("cleanup.policy", "shrink", AlterConfigOpType.APPEND)


def test_the_old_way_to_alter_takes_everything_else_back(
    server: Running, admin: AdminClient
) -> None:
    created = {"retention.bytes": "5000", "retention.ms": "9000"}
    assert create(admin, NewTopic("orders", 1, 1, config=created)) == [0]
    with WireClient(server.server.port) as client:
        configs = [{"name": "retention.ms", "value": "8000"}]
        resource = {"resource_type": 2, "resource_name": "orders", "configs": configs}
        node = {"resource_type": 4, "resource_name": "1", "configs": configs}
        dry = client.ask(33, 2, resources=[resource], validate_only=True)
        assert dry.items_of("responses")[0]["error_code"] == 0
        assert server.node.broker_cache.get_topic("orders").config.retention_ms == 9_000
        response = client.ask(33, 2, resources=[resource, node])
    codes = [one["error_code"] for one in response.items_of("responses")]
    assert codes == [0, ErrorCode.invalid_config]
    config = server.node.broker_cache.get_topic("orders").config
    assert (config.retention_ms, config.retention_bytes) == (8_000, None)


def test_a_nodes_settings_are_shown_and_fixed(admin: AdminClient) -> None:
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    (future,) = admin.describe_configs([resource]).values()
    shown = future.result(TIMEOUT)
    assert shown["num.partitions"].value == "1"
    assert shown["penstock.offsets.enable_cache"].value == "true"
    assert all(entry.is_read_only for entry in shown.values())


def test_a_topic_grows_and_goes(server: Running, admin: AdminClient) -> None:
    assert create(admin, NewTopic("orders", 1, 1)) == [0]
    (future,) = admin.create_partitions([NewPartitions("orders", 4)]).values()
    future.result(TIMEOUT)
    assert server.node.broker_cache.get_topic("orders").partitions == 4
    (future,) = admin.create_partitions([NewPartitions("orders", 2)]).values()
    with pytest.raises(KafkaException, match="has 4 partitions"):
        future.result(TIMEOUT)
    (future,) = admin.delete_topics(["orders"]).values()
    future.result(TIMEOUT)
    (future,) = admin.delete_topics(["orders"]).values()
    with pytest.raises(KafkaException, match=r"(?i)unknown"):
        future.result(TIMEOUT)
    assert server.node.broker_cache.list_topics() == []


def test_a_topic_is_deleted_by_its_id(server: Running) -> None:
    with WireClient(server.server.port) as client:
        response = client.ask(
            19, 7, topics=[{"name": "orders", "num_partitions": 2, "replication_factor": 1}]
        )
        (created,) = response.items_of("topics")
        assert (created["error_code"], created["num_partitions"]) == (0, 2)
        requested = [{"name": None, "topic_id": created["topic_id"]}]
        deleted = client.ask(20, 6, topics=requested).items_of("responses")[0]
        assert (deleted["error_code"], deleted["name"]) == (0, "orders")
        again = client.ask(20, 6, topics=requested).items_of("responses")[0]
        assert again["error_code"] == ErrorCode.unknown_topic_id


def test_records_before_an_offset_are_deleted(server: Running, admin: AdminClient) -> None:
    server.node.admin.create_topic_full("plain", 1)
    for number in range(5):
        server.node.driver_manager.write("plain", Record(value=b"%d" % number))
    (future,) = admin.delete_records([TopicPartition("plain", 0, 3)]).values()
    assert future.result(TIMEOUT).low_watermark == 3
    (future,) = admin.delete_records([TopicPartition("plain", 0, 9)]).values()
    with pytest.raises(KafkaException, match=r"(?i)offset out of range"):
        future.result(TIMEOUT)
    (future,) = admin.delete_records([TopicPartition("plain", 0, -1)]).values()
    assert future.result(TIMEOUT).low_watermark == 5


def test_no_limit_and_the_nodes_default_are_two_retentions(
    server: Running, admin: AdminClient
) -> None:
    none = {"retention.ms": "-1", "retention.bytes": "-1", "penstock.retention.records": "-1"}
    assert create(admin, NewTopic("forever", 1, 1, config=none), NewTopic("default", 1, 1)) == [
        0,
        0,
    ]
    assert server.node.broker_cache.get_topic("default").config.retention_ms is None
    config = server.node.broker_cache.get_topic("forever").config
    assert (config.retention_ms, config.retention_bytes, config.retention_records) == (-1, -1, -1)
    shown = configs_of(admin, "forever")
    assert {name: shown[name].value for name in none} == none
    assert not any(shown[name].is_default for name in none)
    hours = server.node.settings.broker.file_reserved_time
    reserved = str(round(hours * 3_600_000))
    shown = configs_of(admin, "default")
    assert [shown[name].value for name in none] == [reserved, "-1", "-1"]
    assert all(shown[name].is_default for name in none)

    def alter(value: str | None, way: AlterConfigOpType) -> int | None:
        entry = ConfigEntry("retention.ms", value, incremental_operation=way)
        resource = ConfigResource(ConfigResource.Type.TOPIC, "default", incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(TIMEOUT)
        return server.node.broker_cache.get_topic("default").config.retention_ms

    assert alter("-1", AlterConfigOpType.SET) == -1
    assert alter(None, AlterConfigOpType.DELETE) is None
    assert alter(reserved, AlterConfigOpType.SET) == int(reserved)
    assert not configs_of(admin, "default")["retention.ms"].is_default
    whole = ConfigResource(ConfigResource.Type.TOPIC, "forever", set_config={"retention.ms": "-1"})
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        admin.alter_configs([whole])[whole].result(TIMEOUT)
    config = server.node.broker_cache.get_topic("forever").config
    assert (config.retention_ms, config.retention_bytes) == (-1, None)


def test_the_default_that_is_shown_is_that_of_the_topics_engine(
    server: Running, admin: AdminClient
) -> None:
    kinds = ("memory", "rocksdb")
    topics = [NewTopic(kind, 1, 1, config={"penstock.storage": kind}) for kind in kinds]
    assert create(admin, *topics) == [0, 0]
    for kind in kinds:
        assert configs_of(admin, kind)["retention.ms"].value == "-1"
        assert configs_of(admin, kind)["retention.ms"].is_default
