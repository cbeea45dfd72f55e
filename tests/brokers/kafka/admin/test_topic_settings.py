"""Every setting of a topic that Kafka 4.3 has: accepted, checked, shown again, and its effect."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaException
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewTopic
from tests.brokers.kafka.admin.test_admin_clients import TIMEOUT, configs_of, create
from tests.brokers.kafka.running import Running, WireClient, running
from tests.brokers.kafka.wire.test_data_requests import batch, make, read, write
from tests.kafka_clients import AdminClient, Consumer, Producer

from penstock.brokers.kafka.admin.stored_settings import STORED
from penstock.brokers.kafka.admin.topic_configs import KEYS
from penstock.brokers.kafka.admin.topic_settings import settings_of
from penstock.brokers.kafka.wire.batch_header import CODEC_MASK, HEAD, LOG_APPEND_TIME
from penstock.codec.kafka_interface import BatchFlaw
from penstock.codec.select import native_only
from penstock.record import Offset

INVALID_CONFIG, INVALID_TIMESTAMP = 40, 32
NAMES = {
    "cleanup.policy": "compact",
    "compression.type": "zstd",
    "compression.gzip.level": "9",
    "compression.lz4.level": "12",
    "compression.zstd.level": "-5",
    "delete.retention.ms": "5000",
    "file.delete.delay.ms": "1",
    "flush.messages": "1",
    "flush.ms": "100",
    "follower.replication.throttled.replicas": "0:1,1:1",
    "index.interval.bytes": "100",
    "leader.replication.throttled.replicas": "*",
    "local.retention.bytes": "-1",
    "local.retention.ms": "7",
    "max.compaction.lag.ms": "9",
    "max.message.bytes": "90000",
    "message.timestamp.after.max.ms": "1000",
    "message.timestamp.before.max.ms": "2000",
    "message.timestamp.type": "LogAppendTime",
    "min.cleanable.dirty.ratio": "0.25",
    "min.compaction.lag.ms": "8",
    "min.insync.replicas": "1",
    "preallocate": "true",
    "remote.log.copy.disable": "true",
    "remote.log.delete.on.disable": "true",
    "remote.storage.enable": "true",
    "retention.bytes": "123456",
    "retention.ms": "654321",
    "segment.bytes": "1048576",
    "segment.index.bytes": "99",
    "segment.jitter.ms": "6",
    "segment.ms": "77",
    "unclean.leader.election.enable": "true",
}
"""All that Kafka 4.3's `LogConfig` names, but `internal.segment.bytes`; none has its default."""
BAD = {
    "cleanup.policy": "keep",
    "compression.type": "rar",
    "compression.gzip.level": "10",
    "compression.lz4.level": "0",
    "compression.zstd.level": "23",
    "flush.ms": "-1",
    "follower.replication.throttled.replicas": "0-1",
    "local.retention.ms": "-3",
    "max.compaction.lag.ms": "0",
    "message.timestamp.type": "EventTime",
    "message.timestamp.after.max.ms": "soon",
    "min.cleanable.dirty.ratio": "1.5",
    "preallocate": "maybe",
    "segment.index.bytes": "3",
    "remote.storage.enable": "1",
}


@pytest.fixture
def server(data_path: Path) -> Iterator[Running]:
    with running(data_path) as started:
        yield started


@pytest.fixture
def admin(server: Running) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.address})


def alter(admin: AdminClient, topic: str, *entries: ConfigEntry) -> None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=list(entries))
    (future,) = admin.incremental_alter_configs([resource]).values()
    future.result(TIMEOUT)


def test_every_setting_of_kafka_is_taken_and_shown_again(
    server: Running, admin: AdminClient, data_path: Path
) -> None:
    assert NAMES.keys() <= KEYS.keys() | STORED.keys()
    assert create(admin, NewTopic("all", 2, 1, config=NAMES)) == [0]
    shown = configs_of(admin, "all")
    assert {name: shown[name].value for name in NAMES} == NAMES
    assert not any(shown[name].is_default for name in NAMES if name != "min.insync.replicas")
    assert create(admin, NewTopic("none", 2, 1)) == [0]
    plain = configs_of(admin, "none")
    assert all(plain[name].is_default for name in STORED)
    assert plain["compression.type"].value == "producer"
    assert not any(plain[name].is_read_only for name in NAMES)


def test_settings_outlive_a_restart(data_path: Path) -> None:
    config = {"compression.type": "gzip", "max.compaction.lag.ms": "9"}
    with running(data_path) as first:
        admin = AdminClient({"bootstrap.servers": first.address})
        assert create(admin, NewTopic("kept", 1, 1, config=config)) == [0]
    with running(data_path) as second:
        shown = configs_of(AdminClient({"bootstrap.servers": second.address}), "kept")
        assert {name: shown[name].value for name in config} == config


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_refused_with_what_is_allowed(admin: AdminClient, name: str) -> None:
    (future,) = admin.create_topics([NewTopic("bad", 1, 1, config={name: BAD[name]})]).values()
    with pytest.raises(KafkaException) as rejection:
        future.result(TIMEOUT)
    assert rejection.value.args[0].code() == INVALID_CONFIG
    assert rejection.value.args[0].str().startswith(f"{name}: ")


def test_settings_change_one_by_one_and_go_back_to_their_defaults(admin: AdminClient) -> None:
    first = {"compression.type": "lz4", "flush.ms": "5", "retention.ms": "60000"}
    assert create(admin, NewTopic("changed", 1, 1, config=first)) == [0]
    replicas = "leader.replication.throttled.replicas"
    change, take_away = AlterConfigOpType.SET, AlterConfigOpType.DELETE
    alter(
        admin,
        "changed",
        ConfigEntry("compression.type", "zstd", incremental_operation=change),
        ConfigEntry("segment.jitter.ms", "4", incremental_operation=change),
        ConfigEntry("flush.ms", None, incremental_operation=take_away),
        ConfigEntry(replicas, "0:1", incremental_operation=AlterConfigOpType.APPEND),
    )
    shown = configs_of(admin, "changed")
    assert shown["compression.type"].value == "zstd"
    assert shown["segment.jitter.ms"].value == "4"
    assert shown["flush.ms"].is_default
    assert shown[replicas].value == "0:1"
    assert shown["retention.ms"].value == "60000"
    alter(
        admin,
        "changed",
        ConfigEntry(replicas, "1:1", incremental_operation=AlterConfigOpType.APPEND),
        ConfigEntry("compression.type", None, incremental_operation=take_away),
    )
    shown = configs_of(admin, "changed")
    assert shown[replicas].value == "0:1,1:1"
    assert shown["compression.type"].value == "producer"
    resource = ConfigResource(ConfigResource.Type.TOPIC, "changed", set_config={"flush.ms": "9"})
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        (future,) = admin.alter_configs([resource]).values()
    future.result(TIMEOUT)
    shown = configs_of(admin, "changed")
    assert shown["flush.ms"].value == "9"
    assert shown["segment.jitter.ms"].is_default


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("sent", ["none", "gzip", "zstd"])
def test_batches_are_kept_with_the_compression_of_their_topic(
    server: Running, admin: AdminClient, codec: str, sent: str
) -> None:
    topic = f"packed-{codec}-{sent}"
    assert create(admin, NewTopic(topic, 1, 1, config={"compression.type": codec})) == [0]
    producer = Producer(
        {"bootstrap.servers": server.address, "compression.type": sent, "linger.ms": 50}
    )
    values = [b"%d" % n * 50 for n in range(100)]
    for value in values:
        producer.produce(topic, value, key=b"k", headers={"h": b"1"})
    assert producer.flush(TIMEOUT) == 0
    with WireClient(server.server.port) as client:
        data = read(client, topic, 0).blob("records")
    number = ["uncompressed", "gzip", "snappy", "lz4", "zstd"].index(codec)
    assert HEAD.unpack_from(data)[5] & CODEC_MASK == number
    size = HEAD.unpack_from(data)[1] + 12
    assert native_only().check_batch(data[:size], 1 << 20, False)[0] == BatchFlaw.NONE
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": "g"})
    consumer.assign([Place(topic, 0, 0)])
    found: list[bytes | None] = []
    end = time.monotonic() + TIMEOUT
    while len(found) < len(values) and time.monotonic() < end:
        found += [message.value() for message in consumer.consume(100, 0.5)]
    consumer.close()
    assert found == values


@pytest.mark.parametrize("queue", ["batch", "simple"])
def test_a_topic_can_keep_the_time_of_the_storing(server: Running, queue: str) -> None:
    settings = (("message.timestamp.type", "LogAppendTime"),)
    topic = make(server, "append-time", queue=queue, kafka_settings=settings)
    before = server.node.clock.now_ms()
    with WireClient(server.server.port) as client:
        for version in (3, 9):
            response = write(client, topic, batch(b"a", b"b", time_ms=5), version=version)
            assert response.number("error_code") == 0
            appended = response.number("log_append_time")
            assert before <= appended <= server.node.clock.now_ms()
        if queue == "batch":
            data = read(client, topic, 0).blob("records")
            assert HEAD.unpack_from(data)[5] & LOG_APPEND_TIME
    records = server.node.driver_manager.read_by_offset(topic, 0, Offset(0))
    assert len(records) == 4
    assert all(one.timestamp_ms >= before for one in records)
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": "g"})
    consumer.assign([Place(topic, 0, 0)])
    message = consumer.poll(TIMEOUT)
    consumer.close()
    assert message is not None
    kind, moment = message.timestamp()
    assert moment >= before
    assert kind == TIMESTAMP_LOG_APPEND_TIME or queue == "simple"


def test_timestamps_too_far_from_the_clock_are_refused(server: Running) -> None:
    settings = (
        ("message.timestamp.after.max.ms", "60000"),
        ("message.timestamp.before.max.ms", "60000"),
    )
    topic = make(server, "timely", kafka_settings=settings)
    now_ms = server.node.clock.now_ms()
    with WireClient(server.server.port) as client:
        assert write(client, topic, batch(b"v", time_ms=now_ms)).number("error_code") == 0
        old = write(client, topic, batch(b"a", b"b", time_ms=now_ms - 600_000))
        assert old.number("error_code") == INVALID_TIMESTAMP
        assert [one.number("batch_index") for one in old.items_of("record_errors")] == [0, 1]
        late = write(client, topic, batch(b"a", time_ms=now_ms + 600_000))
        assert late.number("error_code") == INVALID_TIMESTAMP
        unset = write(client, topic, batch(b"a", time_ms=-1))
        assert unset.number("error_code") == 0


def test_stored_values_that_cannot_be_read_count_as_not_set() -> None:
    assert settings_of((("compression.type", "rar"), ("other", "x"))) == settings_of(())


def test_a_node_shows_where_it_listens(server: Running, admin: AdminClient) -> None:
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    (future,) = admin.describe_configs([resource]).values()
    shown = future.result(TIMEOUT)
    port = server.server.port
    assert shown["listeners"].value == f"PLAINTEXT://127.0.0.1:{port}"
    assert shown["advertised.listeners"].value == f"PLAINTEXT://127.0.0.1:{port}"
    assert shown["node.id"].value == "1"
    assert all(one.is_read_only for one in shown.values())
