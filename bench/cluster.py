"""How fast is a cluster of three nodes on one machine, and how soon does it go on without one?

    python -m bench.cluster --replication 1            # one copy of a record
    python -m bench.cluster                            # three copies, acks=all
    python -m bench.cluster --kafka-peer DIRECTORY     # also three nodes of Kafka

All nodes and the clients share this machine: the figures compare two clusters in one run, not a
cluster with a single node. The clusters run in turns, round by round: while one is measured the
other is stopped. DIRECTORY (or PENSTOCK_BENCH_KAFKA_PEER) has a `pom.xml` that depends on
Kafka; its nodes have Kafka's defaults and min.insync.replicas=2. A row without a figure for a peer
does not apply to it.

End to end is the time from a call of produce to the arrival of the message at a consumer, for
single messages at a fixed rate. It is measured after messages have passed for a second, and stands
beside the rate that was reached: a cluster that reaches less has a backlog, and its times say only
how long the run was.

Failover is the time from the fault of a partition's leader to the first
acknowledgement of a message that was produced after the fault; for a leader that stops in order it
is the longest time that a message waited for its acknowledgement. The client refreshes its metadata
every 50 ms after an error, and once a second while a leader does not answer. With one copy the time
includes the start of the node. Kafka's failovers take a session of 9 s each, so `--peer-failovers`
is smaller.
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
SETTLE_S = 1.0
WARM_S = 1.0
RATES = (200, 1_000)
LATENCY_S = 5.0
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
    # A paused leader keeps its connections: the client gives up after this, connects again, and
    # asks who leads when that is not answered either. librdkafka looks for late requests once
    # a second: less than a second changes nothing.
    "socket.timeout.ms": 1_000,
    "request.timeout.ms": 1_000,
    "log_level": 0,
}


class ClusterBench:
    """Measures one cluster at a time."""

    def __init__(self, given: argparse.Namespace, bar: Bar) -> None:
        self._messages: int = given.messages
        self._failovers: int = given.failovers
        self._peer_failovers: int = given.peer_failovers
        self._replication: int = given.replication
        self._bar = bar
        self._run = f"{time.time_ns():x}"
        self._topics = 0
        self.rows: dict[str, Row] = {}

    def _row(self, name: str, unit: str, *, more_is_better: bool = True) -> Row:
        return self.rows.setdefault(name, Row(name, unit, more_is_better))

    def _add(self, cluster: Cluster, row: Row, *figures: float) -> None:
        row.results.setdefault(cluster.name, []).extend(figures)

    def _topic(self, cluster: Cluster, partitions: int = PARTITIONS) -> str:
        self._topics += 1
        name = f"bench-{self._run}-{self._topics}"
        cluster.create_topic(name, partitions, self._replication)
        _wait_in_sync(cluster, name, self._replication)
        return name

    def produce(self, cluster: Cluster, size: int, share: float) -> None:
        row = self._row(f"produce {size} B, {self._replication} copies, acks=all", "msg/s")
        count = max(1_000, int(self._messages * share))
        topic = self._topic(cluster)
        produce(cluster.bootstrap, topic, count // 10, size, {"acks": "all"})  # to warm it up
        cpu = cluster.cpu_s()
        took = produce(cluster.bootstrap, topic, count, size, {"acks": "all"})
        self._add(cluster, row, count / took)
        used = (cluster.cpu_s() - cpu) / count * 1e6
        row.cpu_us.setdefault(cluster.name, []).append(used)

    def latency(self, cluster: Cluster) -> None:
        for rate in RATES:
            half = self._row(f"end to end p50, {rate} msg/s", "ms", more_is_better=False)
            late = self._row(f"… p99, {rate} msg/s", "ms", more_is_better=False)
            reached = self._row(f"… rate reached of {rate} msg/s", "msg/s")
            topic, cpu = self._topic(cluster, 1), cluster.cpu_s()
            times, found = latencies_ms(cluster.bootstrap, topic, rate, LATENCY_S)
            used = (cluster.cpu_s() - cpu) / (rate * (LATENCY_S + WARM_S)) * 1e6
            self._add(cluster, half, times[len(times) // 2])
            self._add(cluster, late, times[len(times) * 99 // 100])
            self._add(cluster, reached, found)
            half.cpu_us.setdefault(cluster.name, []).append(used)

    def failover(self, cluster: Cluster, how: str) -> None:
        row = self._row(f"failover, leader {how}", "s", more_is_better=False)
        is_own = isinstance(cluster, PenstockCluster)
        times = self._failovers if is_own else self._peer_failovers
        topic = self._topic(cluster, 1)
        for number in range(times):
            self._bar.show(f"{cluster.name}: {row.name}, {number + 1} of {times}")
            self._add(cluster, row, fail_over(cluster, topic, how, self._replication))

    def forwarding(self, cluster: Cluster) -> None:
        """Compare writes through the leader with writes through another node (Penstock only).
        Both connections are open and used in turns: neither has a warmer cache."""
        direct = self._row("write of 1 KB at the leader", "µs", more_is_better=False)
        other = self._row("… through another node", "µs", more_is_better=False)
        many = self._row("batches of 500 × 1 KB at the leader", "msg/s")
        elsewhere = self._row("… of batches, through another node", "msg/s")
        if not isinstance(cluster, PenstockCluster):
            return
        topic = self._topic(cluster, 1)
        leader = cluster.leaders(topic)[0]
        node = next(one for one in NODES if one != leader)
        found = forward(cluster.storage_address(leader), cluster.storage_address(node), topic)
        for row, figure in zip((direct, other, many, elsewhere), found, strict=True):
            self._add(cluster, row, figure)

    def catch_up(self, cluster: Cluster) -> None:
        if self._replication == 1:
            return
        row = self._row(f"catch-up of {CATCH_UP_MB} MB after a stop", "MB/s")
        self._add(cluster, row, catch_up_mb_s(cluster, self._topic(cluster), self._replication))

    def memory(self, cluster: Cluster) -> None:
        row = self._row("anonymous memory of all nodes", "MB", more_is_better=False)
        self._add(cluster, row, cluster.anonymous_mb())


def latencies_ms(address: str, topic: str, rate: int, seconds: float) -> tuple[list[float], float]:
    """Return the times from produce to arrival at a consumer, sorted, and the messages a second
    that were acknowledged. What is produced while the clients connect, and for `WARM_S` after the
    first arrival, does not count."""
    arrived: list[tuple[int, int]] = []
    is_flowing, is_over = threading.Event(), threading.Event()

    def receive() -> None:
        consumer = Consumer({"bootstrap.servers": address, "group.id": "latency", "log_level": 0})
        consumer.assign([TopicPartition(topic, 0, 0)])
        while not is_over.is_set():
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                arrived.append((int(message.value() or b"0"), time.monotonic_ns()))
                is_flowing.set()
        consumer.close()

    receiver = threading.Thread(target=receive)
    receiver.start()
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "acks": "all"})

    def send(count: int) -> None:
        started = time.perf_counter()
        for number in range(count):
            time.sleep(max(0.0, started + number / rate - time.perf_counter()))
            producer.produce(topic, str(time.monotonic_ns()).encode())
            producer.poll(0)

    try:
        deadline = time.monotonic() + WAIT_S
        while not is_flowing.is_set():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}: no message arrived within {WAIT_S:g} s")
            send(1)
            producer.flush(1.0)
        send(int(rate * WARM_S))
        producer.flush(WAIT_S)
        first, began = time.monotonic_ns(), time.perf_counter()
        count = int(rate * seconds)
        send(count)
        producer.flush(WAIT_S)
        took = time.perf_counter() - began
        while sum(sent >= first for sent, _ in arrived) < count:
            if time.monotonic() > deadline + WAIT_S:
                raise TimeoutError(f"{topic}: not all messages arrived within {WAIT_S:g} s")
            time.sleep(0.1)
    finally:
        is_over.set()
        receiver.join(WAIT_S)
    return sorted((end - sent) / 1e6 for sent, end in arrived if sent >= first), count / took


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
    time.sleep(SETTLE_S)
    return probe.longest_after(began) if how == "stopped" else first - began


def _wait_in_sync(cluster: Cluster, topic: str, replication: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while cluster.in_sync(topic) < replication or not cluster.leaders(topic):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{cluster.name}: {topic} is not in sync within {WAIT_S:g} s")
        time.sleep(0.1)


def forward(leader: str, other: str, topic: str) -> tuple[float, float, float, float]:
    """Return the microseconds of single writes at two nodes, as medians, and their messages a
    second in batches."""
    value = b"x" * 1_000
    singles: tuple[list[float], list[float]] = ([], [])
    batches: tuple[list[float], list[float]] = ([], [])
    with penstock.connect(leader) as first, penstock.connect(other) as second:
        targets = (first.topic(topic), second.topic(topic))
        for number in range(600):
            for target, times in zip(targets, singles, strict=True):
                began = time.perf_counter()
                target.write(value, partition=0)
                if number >= 100:
                    times.append((time.perf_counter() - began) * 1e6)
        for _ in range(5):
            for target, rates in zip(targets, batches, strict=True):
                began = time.perf_counter()
                for _ in range(20):
                    target.write_many([value] * 500, partition=0)
                rates.append(20 * 500 / (time.perf_counter() - began))
    return (
        statistics.median(singles[0]),
        statistics.median(singles[1]),
        statistics.median(batches[0]),
        statistics.median(batches[1]),
    )


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


Part = Callable[[ClusterBench, Cluster], None]
ROUNDS: dict[str, Part] = {
    "small": lambda bench, cluster: bench.produce(cluster, 100, 1.0),
    "large": lambda bench, cluster: bench.produce(cluster, 1_000, 0.25),
    "latency": lambda bench, cluster: bench.latency(cluster),
    "forwarding": lambda bench, cluster: bench.forwarding(cluster),
    "catch-up": lambda bench, cluster: bench.catch_up(cluster),
    "memory": lambda bench, cluster: bench.memory(cluster),
}
"""Parts that every round measures."""
FAULTS: dict[str, Part] = {
    "killed": lambda bench, cluster: bench.failover(cluster, "killed"),
    "paused": lambda bench, cluster: bench.failover(cluster, "paused"),
    "stopped": lambda bench, cluster: bench.failover(cluster, "stopped"),
}
"""Parts that are measured once, several times each."""


def measure(given: argparse.Namespace, clusters: list[Cluster]) -> list[Row]:
    wanted = given.only or [*ROUNDS, *FAULTS]
    rounds = {name: part for name, part in ROUNDS.items() if name in wanted}
    faults = {name: part for name, part in FAULTS.items() if name in wanted}
    bar = Bar(len(clusters) * (given.rounds * len(rounds) + len(faults)))
    bench = ClusterBench(given, bar)

    def run(cluster: Cluster, parts: dict[str, Part]) -> None:
        if not parts:
            return
        bar.show(f"{cluster.name}: starting")
        cluster.start_all()
        for name, part in parts.items():
            bar.show(f"{cluster.name}: {name}")
            part(bench, cluster)
            bar.step()
        cluster.stop_all()

    for number in range(given.rounds):
        for cluster in clusters if number % 2 == 0 else clusters[::-1]:
            run(cluster, rounds)
    for cluster in clusters:
        run(cluster, faults)
    return [row for row in bench.rows.values() if row.results]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--failovers", type=int, default=20)
    parser.add_argument("--peer-failovers", type=int, default=5)
    parser.add_argument("--replication", type=int, default=3, choices=[1, 2, 3])
    parser.add_argument("--kafka-peer", default=os.environ.get("PENSTOCK_BENCH_KAFKA_PEER"))
    parser.add_argument("--only", nargs="*", choices=[*ROUNDS, *FAULTS], help="parts of the table")
    parser.add_argument("--json", help="append one line with all figures to this file")
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    clusters: list[Cluster] = [PenstockCluster(root / "penstock")]
    try:
        if given.kafka_peer:
            clusters.append(KafkaCluster(root / "kafka", Path(given.kafka_peer)))
        rows = measure(given, clusters)
        print(file=sys.stderr)
        print(table_of(rows), flush=True)
        if given.json:
            with Path(given.json).open("a") as out:
                found = [
                    {"row": row.name, "unit": row.unit, "cpu_us": row.cpu_us, **row.results}
                    for row in rows
                ]
                out.write(json.dumps(found) + "\n")
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
