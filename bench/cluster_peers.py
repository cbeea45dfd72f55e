"""Clusters of three processes for `bench.cluster`: Penstock's, and Kafka's from its jars."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from random import SystemRandom

from bench.kafka import TICKS, environment_with_bytecode
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata
from confluent_kafka.cimpl import NewTopic

NODES = (1, 2, 3)
WAIT_S = 120.0
STOP_S = 60.0


def free_ports(count: int) -> list[int]:
    """Return ports below those of outgoing connections: a node can be started on them again."""
    found: set[int] = set()
    while len(found) < count:
        port = SystemRandom().randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            found.add(port)
    return sorted(found)


class Cluster(ABC):
    """Three nodes on loopback. `close` ends them."""

    name: str

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        ports = free_ports(4 * len(NODES))
        self.ports = {node: ports[4 * node - 4 : 4 * node] for node in NODES}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    @abstractmethod
    def command(self, node: int) -> list[str]:
        """Return what starts a node."""

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def kafka_address(self, node: int) -> str:
        return f"127.0.0.1:{self.ports[node][0]}"

    @property
    def bootstrap(self) -> str:
        return ",".join(self.kafka_address(node) for node in NODES)

    def start(self, node: int) -> None:
        with (self.directory / f"{node}.log").open("ab") as log:
            self.processes[node] = subprocess.Popen(
                self.command(node), stdout=log, stderr=log, env=self.environment()
            )

    def start_all(self) -> None:
        for node in NODES:
            self.start(node)
        self.wait_for(set(NODES))

    def stop_all(self) -> None:
        """Stop all nodes in order, one after the other; `start_all` continues with their data."""
        for node in reversed(NODES):
            if self.processes[node].poll() is None:
                self.stop(node)

    def metadata(self) -> ClusterMetadata | None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        with contextlib.suppress(KafkaException):
            return admin.list_topics(timeout=5)
        return None

    def wait_for(self, nodes: set[int]) -> None:
        """Wait until clients see these nodes."""
        deadline = time.monotonic() + WAIT_S
        while True:
            found = self.metadata()
            if found is not None and nodes <= set(found.brokers):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: nodes {nodes} are not up; see {self.directory}")
            time.sleep(0.1)

    def create_topic(self, topic: str, partitions: int, replication: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        made = admin.create_topics([NewTopic(topic, partitions, replication)], request_timeout=30)
        made[topic].result(WAIT_S)
        deadline = time.monotonic() + WAIT_S
        while len(self.leaders(topic)) < partitions:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: {topic} has partitions without a leader")
            time.sleep(0.1)

    def leaders(self, topic: str) -> dict[int, int]:
        """Return the leader of each partition that has one."""
        found = self.metadata()
        if found is None or topic not in found.topics:
            return {}
        parts = found.topics[topic].partitions
        return {number: one.leader for number, one in parts.items() if one.leader in NODES}

    def in_sync(self, topic: str) -> int:
        """Return the size of the smallest in-sync set."""
        found = self.metadata()
        if found is None or topic not in found.topics:
            return 0
        return min(len(one.isrs) for one in found.topics[topic].partitions.values())

    def kill(self, node: int) -> None:
        self.processes[node].kill()
        self.processes[node].wait(WAIT_S)

    def stop(self, node: int) -> None:
        self.processes[node].terminate()
        try:
            self.processes[node].wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill(node)

    def pause(self, node: int) -> None:
        self.processes[node].send_signal(signal.SIGSTOP)

    def resume(self, node: int) -> None:
        self.processes[node].send_signal(signal.SIGCONT)

    def cpu_s(self) -> float:
        """Return the processor time of all nodes."""
        total = 0.0
        for process in self.processes.values():
            with contextlib.suppress(FileNotFoundError):
                stat = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
                total += (int(stat[11]) + int(stat[12])) / TICKS
        return total

    def anonymous_mb(self) -> float:
        """Return the memory of all nodes that no file backs."""
        total = 0
        for process in self.processes.values():
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
                if line.startswith("RssAnon"):
                    total += int(line.split()[1])
        return total / 1024

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait(WAIT_S)


class PenstockCluster(Cluster):
    name = "penstock"

    def storage_address(self, node: int) -> str:
        return f"127.0.0.1:{self.ports[node][1]}"

    def environment(self) -> dict[str, str]:
        return environment_with_bytecode(self.directory.parent / "bytecode")

    def command(self, node: int) -> list[str]:
        kafka, storage, internal, _ = self.ports[node]
        peers = [f"{one}@127.0.0.1:{self.ports[one][2]}" for one in NODES]
        settings = {
            "node.id": node,
            "node.peers": json.dumps(peers),
            "node.secret": "the secret of the benchmark",
            "log.level": "warning",
        }
        assert peers[node - 1].endswith(str(internal))
        return [
            *(sys.executable, "-c", "from penstock.cli import main; main()", "serve"),
            *("--data", str(self.directory / str(node)), "--port", str(storage)),
            *("--kafka-port", str(kafka), "--http-port", "0"),
            *(word for name, value in settings.items() for word in ("--set", f"{name}={value}")),
        ]


class KafkaCluster(Cluster):
    """Brokers that are controllers as well, with the defaults of Kafka."""

    name = "kafka"

    def __init__(self, directory: Path, peer: Path) -> None:
        """`peer` holds a `pom.xml` that depends on Kafka."""
        super().__init__(directory)
        self._class_path = _class_path(peer, directory)
        cluster_id = self._tool("random-uuid").strip()
        for node in NODES:
            config = self._write_config(node)
            self._tool("format", "-t", cluster_id, "-c", str(config))

    def _tool(self, *words: str) -> str:
        command = ["java", "-Xmx256m", "-cp", self._class_path, "kafka.tools.StorageTool", *words]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=WAIT_S)
        return done.stdout.splitlines()[-1] if done.stdout else ""

    def _write_config(self, node: int) -> Path:
        kafka, controller, _, _ = self.ports[node]
        voters = ",".join(f"{one}@127.0.0.1:{self.ports[one][1]}" for one in NODES)
        settings = {
            "process.roles": "broker,controller",
            "node.id": node,
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{kafka},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": self.directory / str(node),
            "min.insync.replicas": 2,
            "group.initial.rebalance.delay.ms": 0,
        }
        path = self.directory / f"{node}.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return path

    def command(self, node: int) -> list[str]:
        heap = os.environ.get("KHEAP", "512m")
        config = str(self.directory / f"{node}.properties")
        options = [f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
        return ["java", *options, "-cp", self._class_path, "kafka.Kafka", config]


def _class_path(peer: Path, directory: Path) -> str:
    """Return the jars of Kafka; Maven finds or downloads them."""
    target = directory / "class-path"
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={target}"]
    subprocess.run(["mvn", "-q", "-B", "-f", str(peer / "pom.xml"), *goal], check=True, timeout=600)
    return target.read_text().strip()
