"""A real node moves every metric that it exports, and names topics by their names."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.cimpl import NewTopic
from prometheus_client.parser import text_string_to_metric_families
from tests.brokers.mqtt.raw_client import RawClient
from tests.brokers.mqtt.serving import port_of
from tests.kafka_clients import AdminClient, Consumer, Producer

import penstock
from penstock.brokers.mqtt.wire.packets import (
    MQTT_5,
    Ack,
    Connect,
    Properties,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.meta.state.model import TieringPolicy
from penstock.remote.monitoring.metrics_document import as_markdown
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, merge_settings

WAIT_S: Final = 60.0
ROOT: Final = next(path for path in Path(__file__).parents if (path / "pyproject.toml").exists())
DOCUMENT: Final = ROOT / "docs" / "metrics.md"
WRITE: Final = "PENSTOCK_WRITE_DOCUMENTS"
"""In the environment, it has the page written before it is compared."""
SETTINGS = merge_settings(
    EMBEDDED,
    {
        "server": {"port": 0, "http_port": 0},
        "kafka": {"port": 0},
        "mqtt": {"port": 0, "websocket": False},
        "broker": {"commit_log_file_size": 1 << 20, "file_reserved_time": 0.0001},
        "tiering": {
            "upload_interval_ms": 50,
            "upkeep_interval_ms": 50,
            "garbage_interval_ms": 50,
            "grace_ms": 0,
            "chunk_size": 1 << 16,
            "segment_size": 1 << 18,
        },
    },
)
FAULTS: Final = {
    # What only damage, a full or failing disk, a failing tier or a wrong clock moves:
    # test_metrics_of_faults.py does.
    "penstock_segment_damaged_reads",
    "penstock_scrub_damage_found",
    "penstock_scrub_damaged_shards",
    "penstock_segment_recovery_cut_bytes",
    "penstock_segment_rebuilt_files",
    "penstock_segment_writes_refused",
    "penstock_segment_dispatch_failures",
    "penstock_tier_upload_failures",
    "penstock_tier_failing_shards",
    "penstock_tier_damaged_chunks",
    "penstock_tier_damaged_reads",
    "penstock_clock_held",
    "penstock_clock_offset_seconds",
    "penstock_kafka_connections_refused",
    "penstock_shard_errors",
    # Moved, and 0 again when all is done; or 0 after a clean start.
    "penstock_segment_dispatch_lag_records",
    "penstock_segment_recovery_records",
    # Of Python.
    "python_gc_objects_uncollectable",
}
MQTT: Final = {
    # What only slow clients, limits and lost connections of MQTT clients move:
    # tests/brokers/mqtt/protocol/test_fault_metrics.py does.
    "penstock_mqtt_connections_refused",
    "penstock_mqtt_messages_dropped",
    "penstock_mqtt_messages_resent",
    "penstock_mqtt_slow_subscribers",
    # What only access rules, a blacklist, delayed messages and bridges move:
    # tests/brokers/mqtt/admin/test_feature_metrics.py does.
    "penstock_mqtt_blacklist_entries",
    "penstock_mqtt_delayed_messages",
    "penstock_mqtt_delayed_published",
    "penstock_mqtt_access_denials",
    "penstock_mqtt_bridge_connected",
    "penstock_mqtt_bridge_messages",
}
CLUSTER: Final = {
    # What only a node with other nodes moves: test_metrics_of_a_cluster.py does.
    "penstock_peer_sent_bytes",
    "penstock_peer_received_bytes",
    "penstock_peer_dropped_bytes",
    # Of Kafka: tests/brokers/kafka/replicas does.
    "penstock_kafka_follower_reads",
}
REPLICAS: Final = {
    # What only a node with replicated shards moves: test_metrics_of_a_cluster.py does.
    "penstock_replica_copied_bytes",
    "penstock_replica_copied_records",
    "penstock_replica_catch_up_bytes",
    "penstock_replica_catch_up_limit_bytes",
    "penstock_replica_throttled_seconds",
    "penstock_replica_throttled_shards",
    "penstock_replica_elections",
    "penstock_replica_lag_records",
    "penstock_in_sync_shrinks",
    "penstock_in_sync_expands",
    "penstock_shards_under_replicated",
    "penstock_shards_at_risk",
    "penstock_shards_offline",
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(str(tmp_path / "data"), SETTINGS) as running:
        yield running


def read_exposition(server: Server) -> str:
    with urlopen(f"http://127.0.0.1:{server.http_port}/metrics", timeout=WAIT_S) as answer:
        text: str = answer.read().decode()
    return text


def scrape(server: Server) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return the samples of each family."""
    return parse(read_exposition(server))


def parse(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        if family.name.endswith("_created"):
            continue
        samples = found.setdefault(family.name, {})
        for sample in family.samples:
            samples[(("", sample.name), *sorted(sample.labels.items()))] = sample.value
    return found


def use_python(server: Server) -> None:
    with penstock.connect(f"127.0.0.1:{server.port}") as store:
        for kind in ("memory", "rocksdb", "segment"):
            topic = store.create_topic(kind, storage=kind)
            topic.write_many([b"v" * 1000] * 100)
            topic.read(partition=0, offset=0, max_records=10)
        tiering = TieringPolicy(local_retention_ms=1)
        cold = store.create_topic("cold", tiering=tiering, retention_records=3_000)
        for _ in range(10):
            cold.write_many([b"v" * 1000] * 400)
        with store.consumer("readers", ["segment"]) as consumer:
            consumer.poll(1)
            consumer.commit()
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            store.run_upkeep()
            cold.read(partition=0, offset=1_500, max_records=1)
            info = cold.describe().partitions[0]
            if info.log_start is not None and info.log_start > 1_500:
                break
        cold.read(partition=0, offset=int(cold.describe().partitions[0].earliest), max_records=10)
        deleted = ("penstock_tier_deleted_objects_total", "penstock_segment_deleted_files_total")
        value = server.node.registry.get_sample_value
        while not all(map(value, deleted)) and time.monotonic() < deadline:
            store.run_upkeep()


def use_kafka(server: Server) -> list[object]:
    """Return clients that are still connected."""
    assert server.kafka is not None
    host, port = server.kafka.advertised
    address = f"{host}:{port}"
    # Without their log: a client that a failed test keeps would write into those of others.
    quiet: dict[str, str | int | float | bool] = {"bootstrap.servers": address, "log_level": 0}
    admin = AdminClient(quiet)
    admin.create_topics([NewTopic("orders", 2)])["orders"].result(WAIT_S)
    with pytest.raises(KafkaException):
        admin.create_topics([NewTopic("orders", 2)])["orders"].result(WAIT_S)
    producer = Producer({**quiet, "linger.ms": 0})
    for _ in range(50):
        producer.produce("orders", b"v" * 100)
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer({**quiet, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    try:
        assert consumer.poll(WAIT_S) is not None
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return [admin, producer]


@contextmanager
def use_mqtt(server: Server) -> Iterator[None]:
    """Have clients that are connected meanwhile."""
    port = port_of(server)
    for connect in (Connect(MQTT_5, "refused", will=Will("$SYS/x", b"")), Connect(MQTT_5, "away")):
        with RawClient(port) as client:
            connect.clean_start = False
            connect.properties = Properties(session_expiry_interval=60)
            client.connect(connect)
            if connect.will is None:
                client.send(Subscribe(1, [SubscriptionRequest("mqtt/#", 1)]))
                client.receive(Suback)
    with RawClient(port) as client, RawClient(port) as resumed, RawClient(port) as broken:
        client.connect(Connect(MQTT_5, "stays"))
        client.send(Publish("$SYS/x", b"", 1, packet_id=1))
        client.receive(Ack)
        for _ in range(2):
            client.send(Publish("mqtt/topic", b"v", 2, retain=True, packet_id=2))
            client.receive(Ack)
        # Messages that wait are read from the log.
        resumed.connect(Connect(MQTT_5, "away", clean_start=False))
        resumed.receive(Publish)
        broken.connect(Connect(MQTT_5, "broken"))
        broken.send_bytes(b"\xf0\0")
        broken.expect_end(ReasonCode.PROTOCOL_ERROR)
        yield


@pytest.mark.timeout(200)
def test_a_node_in_use_moves_every_metric_it_exports_and_the_page_names_them(
    server: Server,
) -> None:
    use_python(server)
    clients = use_kafka(server)
    server.node.scrubber.run_once()
    with use_mqtt(server):
        text = read_exposition(server)
    found = parse(text)
    assert clients, "connected until here"
    page = as_markdown(text)
    if os.environ.get(WRITE):
        DOCUMENT.write_text(page, "utf-8")
    assert DOCUMENT.read_text("utf-8") == page, "make docs writes it again"
    still = {
        name
        for name, samples in found.items()
        if not any(value and not math.isnan(value) for value in samples.values())
    }
    assert still - FAULTS - MQTT - CLUSTER - REPLICAS == set()
    names = set(found)
    assert {
        "penstock_kafka_requests",
        "penstock_kafka_request_seconds",
        "penstock_kafka_errors",
        "penstock_kafka_connections_opened",
        "penstock_kafka_received_bytes",
        "penstock_kafka_sent_bytes",
        "penstock_mqtt_messages_sent",
        "process_resident_memory_bytes",
        "process_open_fds",
        "penstock_segment_appended_bytes",
        "penstock_segment_flushed_bytes",
        "penstock_segment_log_bytes",
    } <= names


@pytest.mark.timeout(200)
def test_labels_name_topics_apis_and_errors(server: Server) -> None:
    use_kafka(server)
    with penstock.connect(f"127.0.0.1:{server.port}") as store:
        assert store.groups() == ["g"]
    found = scrape(server)

    def labels(family: str, label: str) -> set[str]:
        return {dict(sample).get(label, "") for sample in found[family]}

    for family in ("penstock_shard_records_written", "penstock_group_lag_records"):
        assert labels(family, "topic") == {"orders"}
        assert labels(family, "namespace") == {"default"}
    apis = labels("penstock_kafka_requests", "api")
    assert {"Produce", "Fetch", "Metadata", "JoinGroup", "OffsetCommit", "CreateTopics"} <= apis
    assert "unknown" not in apis
    assert "topic_already_exists" in labels("penstock_kafka_errors", "error")
    requests = found["penstock_kafka_requests"]
    produced = sum(value for key, value in requests.items() if dict(key).get("api") == "Produce")
    counted = sum(
        value
        for key, value in found["penstock_kafka_request_seconds"].items()
        if dict(key)[""].endswith("_count") and dict(key).get("api") == "Produce"
    )
    assert produced == counted > 0
