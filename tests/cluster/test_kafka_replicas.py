"""What Kafka clients see of replicas that leave, in a real cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import KafkaError, Message
from tests.brokers.kafka.java.test_java_clients import class_path
from tests.cluster.nodes import Nodes, nodes, wait_until
from tests.cluster.traffic import PARTITIONS, create_topic, traffic
from tests.kafka_clients import AdminClient, Producer

pytest.importorskip("penstock._native", reason="a cluster needs the extension")
pytestmark = [pytest.mark.timeout(900), pytest.mark.soak]

TOPIC: Final = "segment-3"
TOOL: Final = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"


@contextmanager
def running(directory: Path, count: int) -> Iterator[Nodes]:
    with nodes(directory, count=count) as cluster:
        cluster.start_all()
        cluster.wait_ready()
        create_topic(cluster, TOPIC, "segment", 3)
        wait_until(cluster.are_in_sync, "all are in sync")
        yield cluster
        assert not cluster.dead()


def produce(cluster: Nodes, value: bytes, **options: str | int | bool) -> tuple[int, int | None]:
    """Produce one record; return the error code and the offset."""
    settings = {"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0}
    settings |= {key.replace("_", "."): given for key, given in options.items()}
    outcomes: list[tuple[int, int | None]] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        outcomes.append((0 if error is None else error.code(), message.offset()))

    producer = Producer(settings)
    producer.produce(TOPIC, value, partition=0, on_delivery=delivered)
    assert producer.flush(120) == 0
    return outcomes[0]


def test_a_replica_that_stops_after_the_append_is_told_from_one_that_was_missing(
    tmp_path: Path,
) -> None:
    with running(tmp_path, 3) as cluster:
        cluster.run_command("topic", "alter", TOPIC, "--min-insync", "3")
        assert produce(cluster, b"before")[0] == 0
        leader = cluster.leader(TOPIC, 0)
        follower = next(node for node in cluster.numbers if node != leader)
        cluster.pause(follower)
        first, _ = produce(cluster, b"during", retries=0, request_timeout_ms=60_000)
        assert first == KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        later, _ = produce(cluster, b"after", retries=0, request_timeout_ms=60_000)
        assert later == KafkaError.NOT_ENOUGH_REPLICAS
        cluster.resume(follower)
        code, offset = produce(cluster, b"repeated", enable_idempotence=True)
        assert code == 0
        assert offset == 2, "the record that was appended is there, the refused one is not"


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of Kafka's tools."""
    if shutil.which("mvn") is None:
        pytest.skip("Kafka's tools need Maven")
    return class_path("tools-pom.xml", tmp_path_factory.mktemp("tools"))


def run_tool(tools: str, cluster: Nodes, *words: str) -> str:
    server = ["--bootstrap-server", cluster.bootstrap]
    done = subprocess.run(
        ["java", "-Xmx256m", "-cp", tools, TOOL, *server, *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def is_completed(tools: str, cluster: Nodes, plan: Path) -> bool:
    shown = run_tool(tools, cluster, "--reassignment-json-file", str(plan), "--verify")
    return shown.count("is completed") == PARTITIONS


def test_kafkas_tool_changes_the_number_of_replicas_during_writes(
    tmp_path: Path, tools: str
) -> None:
    with running(tmp_path, 4) as cluster, traffic(cluster, (TOPIC,)) as clients:
        clients.wait_for_writes()
        for replicas in ([1, 2], [2, 3, 4], [4], [1, 3, 4]):
            plan = {
                "version": 1,
                "partitions": [
                    {"topic": TOPIC, "partition": partition, "replicas": replicas}
                    for partition in range(PARTITIONS)
                ],
            }
            file = tmp_path / "plan.json"
            file.write_text(json.dumps(plan))
            run_tool(tools, cluster, "--reassignment-json-file", str(file), "--execute")
            wait_until(
                partial(is_completed, tools, cluster, file), f"the partitions are on {replicas}"
            )
            clients.wait_for_writes()
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
            shown = admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions.values()
            assert {tuple(one.replicas) for one in shown} == {tuple(replicas)}
        clients.stop()
        assert not clients.check()
