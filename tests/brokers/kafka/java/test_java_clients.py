"""Kafka's own tools, and Spark's own connector, against our server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers.kafka.running import Running, running
from tests.brokers.kafka.transactions.test_transactions import in_transaction, transactional

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
BUILD_TIMEOUT_S = 900
TOOL_TIMEOUT_S = 180
TOOLS = "org.apache.kafka.tools"

pytestmark = [
    pytest.mark.java,
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(
        shutil.which("java") is None or shutil.which("mvn") is None, reason="needs java and mvn"
    ),
]


def class_path(pom: str, directory: Path) -> str:
    """Let Maven fetch what a pom names; return where it lies."""
    target = directory / "classpath"
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={target}"]
    subprocess.run(
        ["mvn", "-q", "-B", "-f", str(HERE / pom), *goal],
        check=True,
        timeout=BUILD_TIMEOUT_S,
    )
    return target.read_text().strip()


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> str:
    return class_path("tools-pom.xml", tmp_path_factory.mktemp("tools"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("java") / "data") as started:
        yield started


class Tools:
    def __init__(self, class_path: str, address: str) -> None:
        self._class_path = class_path
        self._address = address

    def run(self, name: str, *arguments: str, given: str = "") -> str:
        done = subprocess.run(
            [
                *("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", self._class_path, name),
                *("--bootstrap-server", self._address, *arguments),
            ],
            check=False,
            input=given,
            capture_output=True,
            text=True,
            timeout=TOOL_TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def topics(self, *arguments: str) -> str:
        return self.run(f"{TOOLS}.TopicCommand", *arguments)

    def configs(self, *arguments: str) -> str:
        named = ("--entity-type", "topics", "--entity-name", "java")
        return self.run("kafka.admin.ConfigCommand", *named, *arguments)

    def groups(self, *arguments: str) -> str:
        return self.run(f"{TOOLS}.consumer.group.ConsumerGroupCommand", *arguments)


def test_kafkas_own_tools_go_round(tools: str, server: Running, tmp_path: Path) -> None:
    kafka = Tools(tools, server.address)
    assert "Created topic java" in kafka.topics(
        "--create", "--topic", "java", "--partitions", "2", "--config", "retention.ms=3600000"
    )
    described = kafka.topics("--describe", "--topic", "java")
    assert "PartitionCount: 2" in described
    assert "retention.ms=3600000" in described
    kafka.configs("--alter", "--add-config", "retention.bytes=1000000000")
    assert "retention.bytes=1000000000" in kafka.configs("--describe")

    lines = "".join(f"k{number}:v{number}\n" for number in range(50))
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    kafka.run(f"{TOOLS}.ConsoleProducer", "--topic", "java", *keyed, given=lines)
    shown = kafka.run(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *("--topic", "java", "--from-beginning", "--group", "g", "--max-messages", "50"),
        *("--formatter-property", "print.key=true"),
    )
    expected = {f"k{number}\tv{number}" for number in range(50)}
    assert {line for line in shown.splitlines() if line.startswith("k")} == expected

    assert "g" in kafka.groups("--list").split()
    lags = [line.split() for line in kafka.groups("--describe", "--group", "g").splitlines()]
    assert [one[5] for one in lags if one[:2] == ["g", "java"]] == ["0", "0"]
    reset = ("--group", "g", "--topic", "java", "--reset-offsets", "--to-earliest", "--execute")
    assert "NEW-OFFSET" in kafka.groups(*reset)

    requested = {"version": 1, "partitions": [{"topic": "java", "partition": 0, "offset": 1}]}
    (tmp_path / "before.json").write_text(json.dumps(requested))
    deleted = kafka.run(
        f"{TOOLS}.DeleteRecordsCommand", "--offset-json-file", str(tmp_path / "before.json")
    )
    assert "low_watermark: 1" in deleted
    kafka.topics("--alter", "--topic", "java", "--partitions", "3")
    assert "java:2:0" in kafka.run(f"{TOOLS}.GetOffsetShell", "--topic", "java")
    kafka.groups("--group", "g", "--delete")
    kafka.topics("--delete", "--topic", "java")
    assert "java" not in kafka.topics("--list").split()


def test_the_tools_for_replicas_go_round(tools: str, server: Running, tmp_path: Path) -> None:
    kafka = Tools(tools, server.address)
    kafka.topics("--create", "--topic", "placed", "--replica-assignment", "1,1")
    assert "Replicas: 1\tIsr: 1\tElr:" in kafka.topics("--describe", "--topic", "placed")
    target = {"topic": "placed", "partition": 1, "replicas": [1]}
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [target]}))
    named = ("--reassignment-json-file", str(plan))
    move = f"{TOOLS}.reassign.ReassignPartitionsCommand"
    assert "Successfully started" in kafka.run(move, *named, "--execute")
    assert "is completed" in kafka.run(move, *named, "--verify")
    assert "No partition reassignments" in kafka.run(move, "--list")
    assert "None of the specified" in kafka.run(move, *named, "--cancel")
    elect = f"{TOOLS}.LeaderElectionCommand"
    kind = ("--election-type", "PREFERRED")
    one = ("--topic", "placed", "--partition", "0")
    assert "Valid replica already elected" in kafka.run(elect, *kind, *one)
    kafka.run(elect, *kind, "--all-topic-partitions")
    kafka.topics("--delete", "--topic", "placed")


@pytest.mark.parametrize("storage", ["segment", "rocksdb", "memory"])
def test_javas_transactions_on_topics_that_hold_no_batches(
    tools: str, server: Running, storage: str
) -> None:
    kafka, topic = Tools(tools, server.address), f"made-{storage}"
    server.node.admin.create_topic_full(topic, 1, {"storage": storage})
    kafka.run(
        f"{TOOLS}.ProducerPerformance",
        *("--topic", topic, "--num-records", "1000", "--record-size", "20"),
        *("--throughput", "-1", "--transactional-id", f"java-{storage}"),
        *("--transaction-duration-ms", "50"),
    )
    producer = transactional(server.address, storage)
    in_transaction(producer, topic, b"dropped", commit=False)
    shown = kafka.run(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *("--topic", topic, "--from-beginning", "--group", topic, "--timeout-ms", "10000"),
        *("--isolation-level", "read_committed"),
    )
    assert len(shown.split()) == 1_000
    lags = [line.split() for line in kafka.groups("--describe", "--group", topic).splitlines()]
    assert [one[3:6] for one in lags if one[:1] == [topic]] == [["1001", "1001", "0"]]


def test_sparks_own_connector_writes_and_reads(server: Running, tmp_path: Path) -> None:
    pyspark = pytest.importorskip("pyspark")
    jars = class_path("spark-pom.xml", tmp_path)
    # Spark's own jars come with it; a second copy of them would be in the way.
    own = {one.name for one in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    added = ",".join(one for one in jars.split(":") if Path(one).name not in own)
    done = subprocess.run(
        [sys.executable, str(HERE / "spark_round.py"), server.address, added],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
    )
    assert done.stdout.split()[-2:] == ["1000", "1000"], done.stdout + done.stderr
