"""How fast do Kafka clients produce and consume, here and with Kafka itself?

Sketch first: a 1 MB batch is received (0.3 ms), checked twice and copied (0.3 ms), so a server's
own share is below a microsecond a message of 100 bytes, and librdkafka, at about 1 M messages a
second, is the limit. One message per request costs a server 15 to 30 µs, most of it in system
calls.

    python bench/kafka.py --messages 500000 --rounds 5
    python bench/kafka.py --kafka-up PATH/kafka-up.sh      # also Kafka, started by that script
    python bench/kafka.py --kafka-at 127.0.0.1:9092@PID --only large     # beside one that runs

Both servers get the same number of messages in turn, the one that begins alternates. A bar on
standard error shows how far it is; at the end one table says, for every row, medians and ranges:
messages a second as the client sees them, Penstock's ratio to Kafka in the same round (above 1:
better than Kafka), and the CPU time that each server took for a message. A script given by
--kafka-up (or PENSTOCK_BENCH_KAFKA_UP) is called with a port and a data directory and writes
DIRECTORY.pid; it is called again with the same directory for every cold start.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

TIMEOUT_S = 120.0
TICKS = os.sysconf("SC_CLK_TCK")
Options = dict[str, str | int | float | bool]


@dataclass
class Peer:
    """A running server."""

    name: str
    address: str
    pid: int
    cold_starts_s: list[float] = field(default_factory=list)

    def cpu_s(self) -> float:
        parts = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(parts[11]) + int(parts[12])) / TICKS

    def stop(self) -> None:
        """End it and wait until it is gone."""
        os.kill(self.pid, signal.SIGTERM)
        started = time.perf_counter()
        while Path(f"/proc/{self.pid}/stat").exists():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
            if time.perf_counter() - started > TIMEOUT_S:
                raise TimeoutError(f"{self.name} does not stop")
            time.sleep(0.02)

    def anonymous_mb(self) -> float:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) / 1024
        return 0.0


@dataclass
class Row:
    """One line of the table: what each server reached, round by round."""

    name: str
    unit: str
    more_is_better: bool = True
    results: dict[str, list[float]] = field(default_factory=dict)
    cpu_us: dict[str, list[float]] = field(default_factory=dict)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def first_acknowledged(address: str, started: float) -> float:
    """Return the seconds from `started` to the first acknowledged message."""
    while True:
        with socket.socket() as probe:
            host, port = address.split(":")
            if probe.connect_ex((host, int(port))) == 0:
                break
        if time.perf_counter() - started > TIMEOUT_S:
            raise TimeoutError(address)
        time.sleep(0.005)
    done: list[object] = []
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    producer.produce("cold", b"x", on_delivery=lambda error, _: done.append(error))
    producer.flush(TIMEOUT_S)
    if done != [None]:
        raise RuntimeError(f"{address}: {done}")
    return time.perf_counter() - started


def start_often(start: Callable[[Path], tuple[Peer, float]], directory: Path, times: int) -> Peer:
    """Start a server on a directory that it made before, several times; the last one stays."""
    peer, _ = start(directory)
    seconds = []
    for _ in range(times):
        peer.stop()
        peer, cold = start(directory)
        seconds.append(cold)
    peer.cold_starts_s = seconds
    return peer


def environment_with_bytecode(directory: Path) -> dict[str, str]:
    """Return an environment in which modules are compiled once, as in an installed package, also
    where it says that nothing is to be written beside the sources."""
    given = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return given | {"PYTHONPYCACHEPREFIX": str(directory)}


def start_penstock(directory: Path) -> tuple[Peer, float]:
    port = free_port()
    started = time.perf_counter()
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", "from penstock.cli import main; main()", "serve"),
            *("--data", str(directory), "--port", "0", "--http-port", "0"),
            *("--kafka-port", str(port), "--set", "log.level=warning"),
        ],
        stdout=subprocess.DEVNULL,
        env=environment_with_bytecode(directory.parent / "bytecode"),
    )
    address = f"127.0.0.1:{port}"
    cold = first_acknowledged(address, started)
    return Peer("penstock", address, process.pid), cold


def find_peer(name: str, given: str) -> Peer:
    """Take a server that runs already: ADDRESS@PID."""
    address, pid = given.split("@")
    return Peer(name, address, int(pid))


def start_kafka(script: str, directory: Path) -> tuple[Peer, float]:
    port = free_port()
    started = time.perf_counter()
    subprocess.run(["bash", script, str(port), str(directory)], check=True, stdout=sys.stderr)
    address = f"127.0.0.1:{port}"
    cold = first_acknowledged(address, started)
    return Peer("kafka", address, int(Path(f"{directory}.pid").read_text())), cold


def make_topic(address: str, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    made = admin.create_topics([NewTopic(name, partitions, 1)], request_timeout=30)
    made[name].result(TIMEOUT_S)


def produce(address: str, topic: str, count: int, size: int, options: Options) -> float:
    """Return the seconds until `count` messages were acknowledged."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": 5,
            "queue.buffering.max.messages": 500_000,
            **options,
        }
    )
    producer.list_topics(topic, timeout=TIMEOUT_S)
    failures: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    value = os.urandom(size // 2).hex().encode().ljust(size, b"-")
    started = time.perf_counter()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1_000 == 0:
            producer.poll(0)
    left = producer.flush(TIMEOUT_S)
    took = time.perf_counter() - started
    if failures or left:
        raise RuntimeError(f"{topic}: {len(failures)} failed, {left} left: {failures[:1]}")
    return took


def consume(address: str, topic: str, partitions: int, count: int) -> float:
    """Return the seconds from the first message to the last."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench",
            "enable.auto.commit": False,
            # Else it pauses for a second whenever a server is so fast that 100,000 messages wait
            # in it, and the faster server comes out as the slower one.
            "fetch.queue.backoff.ms": 1,
        }
    )
    consumer.assign([TopicPartition(topic, one, 0) for one in range(partitions)])
    seen = len(consumer.consume(1, timeout=TIMEOUT_S))
    started = time.perf_counter()
    while seen < count:
        page = consumer.consume(min(10_000, count - seen), timeout=TIMEOUT_S)
        if not page:
            raise TimeoutError(f"{topic}: {seen} of {count}")
        for message in page:
            if message.error() is not None:
                raise KafkaException(message.error())
        seen += len(page)
    took = time.perf_counter() - started
    consumer.close()
    return took


def latencies_ms(address: str, topic: str, rate: int, seconds: float) -> list[float]:
    """Return the times from produce to arrival at a consumer, sorted."""
    make_topic(address, topic, 1)
    arrived: list[float] = []
    count = int(rate * seconds)
    ready = threading.Event()

    def receive() -> None:
        consumer = Consumer({"bootstrap.servers": address, "group.id": "latency"})
        consumer.assign([TopicPartition(topic, 0, 0)])
        consumer.poll(0.5)
        ready.set()
        while len(arrived) < count:
            message = consumer.poll(10)
            if message is None or message.error() is not None:
                break
            sent = int(message.value() or b"0")
            arrived.append((time.monotonic_ns() - sent) / 1e6)
        consumer.close()

    receiver = threading.Thread(target=receive)
    receiver.start()
    ready.wait(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "acks": 1})
    started = time.perf_counter()
    for number in range(count):
        time.sleep(max(0.0, started + number / rate - time.perf_counter()))
        producer.produce(topic, str(time.monotonic_ns()).encode())
        producer.poll(0)
    producer.flush(TIMEOUT_S)
    receiver.join(TIMEOUT_S)
    return sorted(arrived)


class Bar:
    """How far a run is, on standard error."""

    WIDTH = 30

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._done = 0
        self._started = time.perf_counter()

    def show(self, what: str) -> None:
        filled = self.WIDTH * self._done // self._steps
        seconds = time.perf_counter() - self._started
        bar = "#" * filled + "." * (self.WIDTH - filled)
        end = "\r" if sys.stderr.isatty() else "\n"
        line = f"[{bar}] {self._done}/{self._steps}  {seconds:5.0f} s  {what:<60}"
        print(line, end=end, file=sys.stderr, flush=True)

    def step(self) -> None:
        self._done += 1


class Bench:
    def __init__(self, peers: list[Peer], messages: int, rounds: int, steps: int) -> None:
        self._bar = Bar(steps * rounds)
        self._peers = peers
        self._messages = messages
        self._rounds = rounds
        self._run = f"{time.time_ns():x}"
        self.rows: list[Row] = []

    def measure(self, name: str, unit: str, work: Callable[[Peer, str], tuple[float, int]]) -> None:
        """Let `work` tell the seconds and the messages it took on each server, round by round."""
        row = Row(name, unit)
        for number in range(self._rounds):
            self._bar.show(f"{name}, round {number + 1}")
            peers = self._peers if number % 2 == 0 else self._peers[::-1]
            for peer in peers:
                cpu = peer.cpu_s()
                took, count = work(peer, f"{self._run}-{len(self.rows)}-{number}")
                row.results.setdefault(peer.name, []).append(count / took)
                used = (peer.cpu_s() - cpu) / count * 1e6
                row.cpu_us.setdefault(peer.name, []).append(used)
            self._bar.step()
        self.rows.append(row)

    def produce_and_consume(
        self, name: str, size: int, partitions: int, options: Options, *, share: float = 1.0
    ) -> None:
        count = max(1_000, int(self._messages * share))
        topics: dict[str, str] = {}

        def write(peer: Peer, topic: str) -> tuple[float, int]:
            make_topic(peer.address, topic, partitions)
            topics[peer.name] = topic
            return produce(peer.address, topic, count, size, options), count

        def read(peer: Peer, _: str) -> tuple[float, int]:
            return consume(peer.address, topics[peer.name], partitions, count), count

        self.measure(f"produce {name}", "msg/s", write)
        self.measure(f"consume {name}", "msg/s", read)

    def single_requests(self) -> None:
        count = max(200, self._messages // 200)

        def work(peer: Peer, topic: str) -> tuple[float, int]:
            make_topic(peer.address, topic, 1)
            options: Options = {"linger.ms": 0, "batch.num.messages": 1}
            threads = [
                threading.Thread(target=produce, args=(peer.address, topic, count, 100, options))
                for _ in range(8)
            ]
            started = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return time.perf_counter() - started, 8 * count

        self.measure("8 producers, one message a request", "msg/s", work)

    def transactions(self) -> None:
        """Transactions of 100 messages; each begins when the last one is committed."""
        count = max(20, self._messages // 5_000)

        def work(peer: Peer, topic: str) -> tuple[float, int]:
            make_topic(peer.address, topic, 1)
            producer = Producer({"bootstrap.servers": peer.address, "transactional.id": topic})
            producer.init_transactions(TIMEOUT_S)
            started = time.perf_counter()
            for _ in range(count):
                producer.begin_transaction()
                for _ in range(100):
                    producer.produce(topic, b"x" * 100)
                producer.commit_transaction(TIMEOUT_S)
            return time.perf_counter() - started, count

        self.measure("transactions of 100 messages", "txn/s", work)

    def many_partitions(self) -> None:
        self.produce_and_consume(
            "100 B, 1,000 partitions", 100, 1_000, {"linger.ms": 50}, share=0.2
        )

    def latency(self) -> None:
        half, late = Row("end to end p50, 1 k msg/s", "ms", False), Row("… p99", "ms", False)
        for number in range(self._rounds):
            self._bar.show(f"{half.name}, round {number + 1}")
            for peer in self._peers if number % 2 == 0 else self._peers[::-1]:
                times = latencies_ms(peer.address, f"lat-{self._run}-{number}", 1_000, 4)
                half.results.setdefault(peer.name, []).append(times[len(times) // 2])
                late.results.setdefault(peer.name, []).append(times[len(times) * 99 // 100])
            self._bar.step()
        self.rows += [half, late]

    def many_topics(self, count: int = 1_000) -> None:
        def work(peer: Peer, topic: str) -> tuple[float, int]:
            admin = AdminClient({"bootstrap.servers": peer.address})
            started = time.perf_counter()
            for first in range(0, count, 100):
                new = [NewTopic(f"{topic}-{one}", 1, 1) for one in range(first, first + 100)]
                for made in admin.create_topics(new, request_timeout=60).values():
                    made.result(TIMEOUT_S)
            return time.perf_counter() - started, count

        self.measure("1,000 topics created", "topics/s", work)

    def standing(self) -> None:
        cold, memory = (
            Row("cold start", "s", False),
            Row("anonymous memory at the end", "MB", False),
        )
        for peer in self._peers:
            if peer.cold_starts_s:
                cold.results[peer.name] = peer.cold_starts_s
            memory.results[peer.name] = [peer.anonymous_mb()]
        self.rows += [cold, memory] if cold.results else [memory]


def table_of(rows: Sequence[Row]) -> str:
    """Return all rows as a table of Markdown."""
    names = list(dict.fromkeys(name for row in rows for name in row.results))
    head = ["row", "unit", *names, *(["ratio"] if len(names) == 2 else [])]
    head += [f"CPU µs, {name}" for name in names]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        cells = [row.name, row.unit, *(_spread(row.results.get(name, [])) for name in names)]
        if len(names) == 2:
            cells.append(_spread(ratios_of(row, *names)))
        cells += [_spread(row.cpu_us.get(name, [])) for name in names]
        lines.append(cells)
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    )


def ratios_of(row: Row, ours: str, theirs: str) -> list[float]:
    """Return how many times better we were, round by round."""
    pairs = zip(row.results.get(ours, []), row.results.get(theirs, []), strict=False)
    return [a / b if row.more_is_better else b / a for a, b in pairs if a and b]


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    digits = 0 if statistics.median(values) >= 1_000 else 2
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:,.{digits}f} [{low:,.{digits}f}–{high:,.{digits}f}]"


PARTS: dict[str, Callable[[Bench], None]] = {
    "small": lambda bench: bench.produce_and_consume("100 B, acks=1", 100, 1, {"acks": 1}),
    "all": lambda bench: bench.produce_and_consume("100 B, acks=all", 100, 1, {"acks": "all"}),
    "eight": lambda bench: bench.produce_and_consume(
        "100 B, 8 partitions, acks=all", 100, 8, {"acks": "all"}
    ),
    "large": lambda bench: bench.produce_and_consume(
        "1 KB, acks=1", 1_000, 1, {"acks": 1}, share=0.25
    ),
    "large-eight": lambda bench: bench.produce_and_consume(
        "1 KB, 8 partitions, acks=all", 1_000, 8, {"acks": "all"}, share=0.25
    ),
    "lz4": lambda bench: bench.produce_and_consume(
        "1 KB, lz4", 1_000, 1, {"compression.type": "lz4"}, share=0.25
    ),
    "idempotent": lambda bench: bench.produce_and_consume(
        "100 B, idempotent", 100, 1, {"enable.idempotence": True}
    ),
    "transactions": lambda bench: bench.transactions(),
    "single": lambda bench: bench.single_requests(),
    "partitions": lambda bench: bench.many_partitions(),
    "latency": lambda bench: bench.latency(),
    "topics": lambda bench: bench.many_topics(),
    "standing": lambda bench: bench.standing(),
}


STEPS: dict[str, int] = {
    "transactions": 1,
    "single": 1,
    "latency": 1,
    "topics": 1,
    "standing": 0,
}
"""What a part counts on the bar; the others produce and consume."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kafka-up", default=os.environ.get("PENSTOCK_BENCH_KAFKA_UP"))
    parser.add_argument("--kafka-at", help="a Kafka that runs, as ADDRESS@PID")
    parser.add_argument("--only", nargs="*", choices=list(PARTS), help="parts of the table")
    parser.add_argument("--json", help="append one line with all figures to this file")
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    peers: list[Peer] = []
    try:
        parts = list(given.only or PARTS)
        times = given.rounds if "standing" in parts else 0
        peers.append(start_often(start_penstock, root / "penstock", times))
        if given.kafka_up:
            script = partial(start_kafka, given.kafka_up)
            peers.append(start_often(script, root / "kafka", times))
        elif given.kafka_at:
            peers.append(find_peer("kafka", given.kafka_at))
        steps = sum(STEPS.get(part, 2) for part in parts)
        bench = Bench(peers, given.messages, given.rounds, max(1, steps))
        for part in parts:
            PARTS[part](bench)
        print(file=sys.stderr)
        print(table_of(bench.rows), flush=True)
        if given.json:
            with Path(given.json).open("a") as out:
                rows = [{"row": row.name, "unit": row.unit, **row.results} for row in bench.rows]
                out.write(json.dumps(rows) + "\n")
    finally:
        for peer in peers[: 1 if given.kafka_at else 2]:
            peer.stop()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
