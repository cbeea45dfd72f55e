"""For how long clients cannot write when a leader is killed, or hangs: counted over many trials."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from tests.cluster.nodes import Nodes, nodes, wait_until
from tests.kafka_clients import Producer

import penstock
from penstock.errors import StoreError

pytest.importorskip("penstock._native", reason="a cluster needs the extension")
pytestmark = [pytest.mark.soak, pytest.mark.timeout(3_600)]

WAIT_S: Final = 120.0
KILLS: Final = 20
PAUSES: Final = 9
TOPIC: Final = "orders"


class Writer:
    """Writes on a thread of its own, and records when what was sent when is acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: list[tuple[float, float]] = []
        self._stopping: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def has_written_since(self, moment: float) -> bool:
        return any(sent > moment for sent, _ in reversed(self.acknowledged))

    def first_after(self, moment: float) -> float:
        """Return the seconds until something that was sent after `moment` was acknowledged."""
        return min(end for sent, end in self.acknowledged if sent > moment) - moment

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), f"{type(self).__name__} is stuck"

    def _run(self) -> None:
        raise NotImplementedError


class NativeWriter(Writer):
    def __init__(self, addresses: list[str]) -> None:
        self._addresses: Final = addresses
        super().__init__()

    def _run(self) -> None:
        with penstock.connect(self._addresses) as store:
            topic = store.topic(TOPIC)
            while not self._stopping.is_set():
                sent = time.monotonic()
                try:
                    topic.write(b"one", partition=0)
                except StoreError:
                    continue  # with an unknown outcome, which another test looks at
                self.acknowledged.append((sent, time.monotonic()))


class KafkaWriter(Writer):
    """librdkafka, which pauses for as short as it can after an error."""

    def __init__(self, bootstrap: str) -> None:
        self._producer: Final = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": 0,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        super().__init__()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._producer.produce(TOPIC, b"one", partition=0, on_delivery=self._on_delivery())
            self._producer.poll(0.01)
        self._producer.flush(WAIT_S)

    def _on_delivery(self) -> Callable[[object, object], None]:
        sent = time.monotonic()

        def on_delivery(error: object, _message: object) -> None:
            if error is None:
                self.acknowledged.append((sent, time.monotonic()))

        return on_delivery


@contextmanager
def _led_cluster(directory: Path) -> Iterator[Nodes]:
    with nodes(directory) as cluster:
        cluster.start_all()
        cluster.wait_ready()
        with penstock.connect(list(cluster.storage.values())) as store:
            store.create_topic(TOPIC, partitions=1, replication=3)
        wait_until(cluster.are_in_sync, "all replicas are in sync", WAIT_S)
        yield cluster


def _trial(cluster: Nodes, writer: Writer, fail: Callable[[int], None]) -> float:
    """Let the leader fail; return the seconds until a write of afterwards is acknowledged."""
    wait_until(lambda: cluster.leader(TOPIC, 0) is not None, "there is a leader", WAIT_S)
    leader = cluster.leader(TOPIC, 0)
    assert leader is not None
    began = time.monotonic()
    wait_until(lambda: writer.has_written_since(began), "the client writes", WAIT_S)
    struck = time.monotonic()
    fail(leader)
    wait_until(lambda: writer.has_written_since(struck), "the client writes again", WAIT_S)
    return writer.first_after(struck)


def _shown(times: list[float]) -> str:
    listed = ", ".join(f"{one:.2f}" for one in sorted(times))
    return f"median {statistics.median(times):.2f} s of {listed}"


@pytest.mark.parametrize("client", ["native", "kafka"])
def test_a_killed_leader_is_replaced_within_a_second(tmp_path: Path, client: str) -> None:
    times: list[float] = []
    with _led_cluster(tmp_path) as cluster:
        for _ in range(KILLS):
            writer: Writer
            if client == "kafka":
                writer = KafkaWriter(cluster.bootstrap)
            else:
                # The node to which it is connected is the one that dies.
                leader = cluster.leader(TOPIC, 0)
                order = sorted(cluster.numbers, key=lambda node: node != leader)
                writer = NativeWriter([cluster.storage[node] for node in order])
            times.append(_trial(cluster, writer, cluster.kill))
            writer.close()
            cluster.start_all()
            cluster.wait_ready()
            wait_until(cluster.are_in_sync, "all replicas are in sync", WAIT_S)
    assert statistics.median(times) <= 1.0, _shown(times)
    assert max(times) <= 2.0, _shown(times)


def test_a_leader_that_hangs_is_replaced_within_five_seconds(tmp_path: Path) -> None:
    times: list[float] = []
    with _led_cluster(tmp_path) as cluster:
        for _ in range(PAUSES):
            leader = cluster.leader(TOPIC, 0)
            others = [cluster.storage[node] for node in cluster.numbers if node != leader]
            writer = NativeWriter(others)
            times.append(_trial(cluster, writer, cluster.pause))
            writer.close()
            for node in tuple(cluster.paused):
                cluster.resume(node)
            cluster.wait_ready()
            wait_until(cluster.are_in_sync, "all replicas are in sync", WAIT_S)
    assert max(times) <= 5.0, _shown(times)
