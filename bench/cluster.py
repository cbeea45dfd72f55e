"""How fast is a cluster of three nodes on one machine, and how soon does it go on without one?

    python -m bench.cluster --replication 1            # one copy of a record
    python -m bench.cluster                            # three copies, acks=all
    python -m bench.cluster --kafka-peer DIRECTORY     # also three nodes of Kafka

All nodes and the clients share this machine: the figures compare two clusters in one run, not a
cluster with a single node. DIRECTORY (or PENSTOCK_BENCH_KAFKA_PEER) has a `pom.xml` that depends on
Kafka; its nodes have Kafka's defaults and min.insync.replicas=2. A row without a figure for a peer
does not apply to it. Failover is the time from the fault of a partition's leader to the first
acknowledgement of a message that was produced after the fault; for a leader that stops in order it
is the longest time that a message waited for its acknowledgement. The client refreshes its metadata
every 50 ms. With one copy the time includes the start of the node.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bench.cluster_peers import NODES, WAIT_S, Cluster, KafkaCluster, PenstockCluster
from bench.kafka import Bar, Row, produce, table_of
from confluent_kafka import Consumer, Producer, TopicPartition

import penstock
from penstock.errors import StoreError

PARTITIONS = 3
SETTLE_S = 3.0
PAUSED_S = 8.0
"""Longer than a session of Penstock lasts; Kafka's default of 9 s may still run."""
CATCH_UP_MB = 256
QUICK_CLIENT = {
    "linger.ms": 0,
    "acks": "all",
    "topic.metadata.refresh.fast.interval.ms": 50,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    # A paused leader keeps its connections: the client gives up after this.
    "socket.timeout.ms": 1_000,
    "request.timeout.ms": 1_000,
    "log_level": 0,
}


class ClusterBench:
    """Measures both clusters in turn, round by round."""

    def __init__(self, clusters: list[Cluster], given: argparse.Namespace, bar: Bar) -> None:
        self._clusters = clusters
        self._messages: int = given.messages
        self._rounds: int = given.rounds
        self._failovers: int = given.failovers
        self._replication: int = given.replication
        self._bar = bar
        self._run = f"{time.time_ns():x}"
        self._topics = 0
        self.rows: list[Row] = []

    def _topic(self, cluster: Cluster, partitions: int = PARTITIONS) -> str:
        self._topics += 1
        name = f"bench-{self._run}-{self._topics}"
        cluster.create_topic(name, partitions, self._replication)
        return name

    def produce(self, size: int, share: float) -> None:
        row = Row(f"produce {size} B, {self._replication} copies, acks=all", "msg/s")
        count = max(1_000, int(self._messages * share))
        for number in range(self._rounds):
            self._bar.show(f"{row.name}, round {number + 1}")
            for cluster in self._clusters if number % 2 == 0 else self._clusters[::-1]:
                topic, cpu = self._topic(cluster), cluster.cpu_s()
                took = produce(cluster.bootstrap, topic, count, size, {"acks": "all"})
                row.results.setdefault(cluster.name, []).append(count / took)
                used = (cluster.cpu_s() - cpu) / count * 1e6
                row.cpu_us.setdefault(cluster.name, []).append(used)
            self._bar.step()
        self.rows.append(row)

    def latency(self) -> None:
        half, late = Row("end to end p50, 1 k msg/s", "ms", False), Row("… p99", "ms", False)
        for number in range(self._rounds):
            self._bar.show(f"{half.name}, round {number + 1}")
            for cluster in self._clusters if number % 2 == 0 else self._clusters[::-1]:
                times = latencies_ms(cluster.bootstrap, self._topic(cluster, 1), 1_000, 4)
                if times:
                    half.results.setdefault(cluster.name, []).append(times[len(times) // 2])
                    late.results.setdefault(cluster.name, []).append(times[len(times) * 99 // 100])
            self._bar.step()
        self.rows += [half, late]

    def failover(self, how: str) -> None:
        row = Row(f"failover, leader {how}", "s", False)
        for cluster in self._clusters:
            topic = self._topic(cluster, 1)
            for number in range(self._failovers):
                self._bar.show(f"{cluster.name}: {row.name}, {number + 1} of {self._failovers}")
                took = fail_over(cluster, topic, how, self._replication)
                row.results.setdefault(cluster.name, []).append(took)
        self._bar.step()
        self.rows.append(row)

    def forwarding(self) -> None:
        """Compare writes through the leader with writes through another node (Penstock only)."""
        direct = Row("write of 1 KB at the leader", "µs", False)
        other = Row("… through another node", "µs", False)
        many = Row("batches of 500 × 1 KB at the leader", "msg/s")
        elsewhere = Row("… through another node", "msg/s")
        for cluster in self._clusters:
            if isinstance(cluster, PenstockCluster):
                self._bar.show("forwarding")
                topic = self._topic(cluster, 1)
                leader = cluster.leaders(topic)[0]
                for node in (leader, next(one for one in NODES if one != leader)):
                    single, batched = forward(cluster.storage_address(node), topic)
                    rows = (direct, many) if node == leader else (other, elsewhere)
                    rows[0].results[cluster.name] = single
                    rows[1].results[cluster.name] = batched
        self._bar.step()
        self.rows += [direct, other, many, elsewhere]

    def catch_up(self) -> None:
        row = Row(f"catch-up of {CATCH_UP_MB} MB after a stop", "MB/s")
        for cluster in self._clusters if self._replication > 1 else []:
            self._bar.show(f"{cluster.name}: {row.name}")
            topic = self._topic(cluster)
            row.results[cluster.name] = [catch_up_mb_s(cluster, topic, self._replication)]
        self._bar.step()
        if row.results:
            self.rows.append(row)

    def memory(self) -> None:
        row = Row("anonymous memory of all nodes", "MB", False)
        for cluster in self._clusters:
            row.results[cluster.name] = [cluster.anonymous_mb()]
        self._bar.step()
        self.rows.append(row)


def latencies_ms(address: str, topic: str, rate: int, seconds: float) -> list[float]:
    """Return the times from produce to arrival at a consumer, sorted."""
    arrived: list[float] = []
    count, ready = int(rate * seconds), threading.Event()

    def receive() -> None:
        consumer = Consumer({"bootstrap.servers": address, "group.id": "latency", "log_level": 0})
        consumer.assign([TopicPartition(topic, 0, 0)])
        consumer.poll(0.5)
        ready.set()
        while len(arrived) < count:
            message = consumer.poll(10)
            if message is None:
                break
            if message.error() is None:
                arrived.append((time.monotonic_ns() - int(message.value() or b"0")) / 1e6)
        consumer.close()

    receiver = threading.Thread(target=receive)
    receiver.start()
    ready.wait(WAIT_S)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "acks": "all"})
    started = time.perf_counter()
    for number in range(count):
        time.sleep(max(0.0, started + number / rate - time.perf_counter()))
        producer.produce(topic, str(time.monotonic_ns()).encode())
        producer.poll(0)
    producer.flush(WAIT_S)
    receiver.join(WAIT_S)
    return sorted(arrived)


class Probe:
    """A producer that sends a small message every 10 ms and notes when each was acknowledged."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, **QUICK_CLIENT})
        self._topic = topic
        self.acknowledged: list[tuple[float, float]] = []
        """When each message was produced and when it was acknowledged."""

    def send(self) -> None:
        began = time.monotonic()

        def delivered(error: object, _: object) -> None:
            if error is None:
                self.acknowledged.append((began, time.monotonic()))

        self._producer.produce(self._topic, b"x" * 100, on_delivery=delivered)
        self._producer.poll(0.01)

    def send_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.send()

    def first_after(self, moment: float) -> float | None:
        """Return when the first message that was produced after this was acknowledged."""
        return min((end for began, end in self.acknowledged if began > moment), default=None)

    def longest_after(self, moment: float) -> float:
        return max((end - began for began, end in self.acknowledged if end > moment), default=0.0)

    def close(self) -> None:
        self._producer.flush(WAIT_S)


def fail_over(cluster: Cluster, topic: str, how: str, replication: int) -> float:
    """Let the leader fail; return the seconds until a message of afterwards is acknowledged. All
    nodes run again and are in sync afterwards."""
    probe = Probe(cluster, topic)
    probe.send_for(1.0)
    leader = cluster.leaders(topic)[0]
    began = time.monotonic()
    if how == "stopped":
        stopping = threading.Thread(target=cluster.stop, args=(leader,))
        stopping.start()
        while stopping.is_alive():
            probe.send()
    elif how == "paused":
        cluster.pause(leader)
    else:
        cluster.kill(leader)
    struck = time.monotonic()
    returns_at = struck if replication == 1 else struck + WAIT_S
    if how == "paused" and replication == 1:
        returns_at += PAUSED_S
    while (first := probe.first_after(struck)) is None and time.monotonic() < returns_at:
        probe.send()
    if how == "paused":
        cluster.resume(leader)
    else:
        cluster.start(leader)
    while (first := first or probe.first_after(struck)) is None:
        probe.send()
        if time.monotonic() > struck + 2 * WAIT_S:
            raise TimeoutError(f"{cluster.name}: no write was acknowledged after a failover")
    cluster.wait_for(set(NODES))
    probe.close()
    _wait_in_sync(cluster, topic, replication)
    return probe.longest_after(began) if how == "stopped" else first - began


def _wait_in_sync(cluster: Cluster, topic: str, replication: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while cluster.in_sync(topic) < replication or not cluster.leaders(topic):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{cluster.name}: {topic} is not in sync within {WAIT_S:g} s")
        time.sleep(0.1)
    time.sleep(SETTLE_S)


def forward(address: str, topic: str) -> tuple[list[float], list[float]]:
    """Return the microseconds of single writes, as [median], and messages a second in batches."""
    value = b"x" * 1_000
    with penstock.connect(address) as store:
        target = store.topic(topic)
        times = []
        for number in range(600):
            began = time.perf_counter()
            target.write(value, partition=0)
            if number >= 100:
                times.append((time.perf_counter() - began) * 1e6)
        rates = []
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(20):
                target.write_many([value] * 500, partition=0)
            rates.append(20 * 500 / (time.perf_counter() - began))
    return [statistics.median(times)], rates


def catch_up_mb_s(cluster: Cluster, topic: str, replication: int) -> float:
    """Stop a node, write, start it; return how fast it got what it had missed, its start
    included."""
    cluster.stop(3)
    size = 1_000
    produce(cluster.bootstrap, topic, CATCH_UP_MB * 1_000_000 // size, size, {"acks": "all"})
    began = time.perf_counter()
    cluster.start(3)
    while cluster.in_sync(topic) < replication:
        if time.perf_counter() - began > WAIT_S:
            raise TimeoutError(f"{cluster.name}: not in sync within {WAIT_S:g} s")
        time.sleep(0.05)
    return CATCH_UP_MB / (time.perf_counter() - began)


PARTS: dict[str, Callable[[ClusterBench], None]] = {
    "small": lambda bench: bench.produce(100, 1.0),
    "large": lambda bench: bench.produce(1_000, 0.25),
    "latency": lambda bench: bench.latency(),
    "killed": lambda bench: bench.failover("killed"),
    "paused": lambda bench: bench.failover("paused"),
    "stopped": lambda bench: bench.failover("stopped"),
    "forwarding": lambda bench: bench.forwarding(),
    "catch-up": lambda bench: bench.catch_up(),
    "memory": lambda bench: bench.memory(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--failovers", type=int, default=20)
    parser.add_argument("--replication", type=int, default=3, choices=[1, 2, 3])
    parser.add_argument("--kafka-peer", default=os.environ.get("PENSTOCK_BENCH_KAFKA_PEER"))
    parser.add_argument("--only", nargs="*", choices=list(PARTS), help="parts of the table")
    parser.add_argument("--json", help="append one line with all figures to this file")
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    clusters: list[Cluster] = [PenstockCluster(root / "penstock")]
    try:
        if given.kafka_peer:
            clusters.append(KafkaCluster(root / "kafka", Path(given.kafka_peer)))
        for cluster in clusters:
            cluster.start_all()
        parts = list(given.only or PARTS)
        rounds = sum(given.rounds if part in {"small", "large", "latency"} else 1 for part in parts)
        bench = ClusterBench(clusters, given, Bar(rounds))
        for part in parts:
            PARTS[part](bench)
        print(file=sys.stderr)
        print(table_of(bench.rows), flush=True)
        if given.json:
            with Path(given.json).open("a") as out:
                rows = [{"row": row.name, "unit": row.unit, **row.results} for row in bench.rows]
                out.write(json.dumps(rows) + "\n")
    except (StoreError, TimeoutError):
        for log in sorted(root.glob("*/*.log")):
            print(f"{log.parent.name} {log.name}: {log.read_text()[-500:]}", file=sys.stderr)
        raise
    finally:
        for cluster in clusters:
            cluster.close()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
