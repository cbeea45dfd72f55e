"""What does a write cost that reaches a node which does not lead the shard?

    python -m bench.forward [--seconds 3]

Three `penstock serve` processes form a cluster. A client writes to a shard at its leader, then at
another node, which forwards the write; in turn, three rounds. Prints one JSON line for each way and
kind of write: medians of the rounds. `node_cpu_us` is the processor time of all nodes for a call,
which a busy machine changes least.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import penstock
from penstock.api import Topic
from penstock.errors import RetryableError

NODES: Final = (1, 2, 3)
ROUNDS: Final = 3
BATCH: Final = 100
VALUE: Final = b"v" * 1_000
START_S: Final = 60.0
COMMAND: Final = [sys.executable, "-c", "from penstock.cli import main; main()"]


class Cluster:
    """Three servers in processes of their own."""

    def __init__(self, directory: Path) -> None:
        ports = [_free_port() for _ in range(2 * len(NODES))]
        self.addresses = {node: f"127.0.0.1:{ports[node + 2]}" for node in NODES}
        peers = json.dumps([f"{node}@127.0.0.1:{ports[node - 1]}" for node in NODES])
        self._processes: list[subprocess.Popen[bytes]] = []
        for node in NODES:
            settings = {
                "node.id": node,
                "node.peers": peers,
                "node.secret": "the secret of the benchmark",
                "kafka.enabled": "false",
                "server.http_port": 0,
            }
            port = self.addresses[node].rpartition(":")[2]
            arguments = ["serve", "--data", str(directory / str(node)), "--port", port]
            for name, value in settings.items():
                arguments += ["--set", f"{name}={value}"]
            with (directory / f"{node}.log").open("wb") as log:
                command = [*COMMAND, *arguments]
                self._processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def cpu_s(self) -> float:
        """Return the processor time that the nodes have used, in seconds."""
        ticks = 0
        for process in self._processes:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            process.wait(30)


def _free_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory))
        try:
            for row in _measure(cluster, seconds):
                sys.stdout.write(json.dumps(row) + "\n")
        finally:
            cluster.close()


def _measure(cluster: Cluster, seconds: float) -> list[dict[str, object]]:
    _wait_until_level(cluster)
    with penstock.connect(cluster.addresses[1]) as store:
        store.create_topic("orders", storage="segment")
        leader = _leader(cluster)
    other = next(node for node in NODES if node != leader)
    ways = {"at the leader": leader, "forwarded": other}
    rows: list[dict[str, object]] = []
    kinds: dict[str, tuple[int, Callable[[Topic], object]]] = {
        f"batches of {BATCH}": (BATCH, lambda topic: topic.write_many([VALUE] * BATCH)),
        "single writes": (1, lambda topic: topic.write(VALUE)),
    }
    for kind, (count, write) in kinds.items():
        found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, node in ways.items():
                with penstock.connect(cluster.addresses[node]) as store:
                    topic = store.topic("orders")
                    found[way].append(_run(cluster, topic, write, count, seconds))
        for way, rounds in found.items():
            rate, latency_ms, cpu_us = (
                statistics.median(column) for column in zip(*rounds, strict=True)
            )
            row: dict[str, object] = {"case": kind, "way": way, "records_s": round(rate)}
            rows.append(row | {"median_ms": round(latency_ms, 3), "node_cpu_us": round(cpu_us)})
    return rows


def _wait_until_level(cluster: Cluster) -> None:
    deadline = time.monotonic() + START_S
    for address in cluster.addresses.values():
        while True:
            try:
                with penstock.connect(address) as store:
                    store.list_topics()
                break
            except RetryableError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)


def _leader(cluster: Cluster) -> int:
    """Return the node that keeps the records: only its writes are not forwarded."""
    with penstock.connect(cluster.addresses[1]) as store:
        leader = store.topic("orders").describe().partitions[0].leader
    assert leader is not None, "the shard has no leader"
    return leader


def _run(
    cluster: Cluster, topic: Topic, write: Callable[[Topic], object], count: int, seconds: float
) -> tuple[float, float, float]:
    """Return the records per second, the median time of a call in milliseconds, and the nodes'
    processor time for a call in microseconds."""
    for _ in range(20):
        write(topic)
    times: list[float] = []
    cpu_s, begun = cluster.cpu_s(), time.perf_counter()
    end = begun + seconds
    while (started := time.perf_counter()) < end:
        write(topic)
        times.append(time.perf_counter() - started)
    rate = len(times) * count / (time.perf_counter() - begun)
    cpu_us = (cluster.cpu_s() - cpu_s) * 1e6 / len(times)
    return rate, statistics.median(times) * 1_000, cpu_us


if __name__ == "__main__":
    main()
