"""A program that reads, transforms and writes in transactions, while the server is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import TopicPartition
from tests.brokers.kafka.transactions.test_transactions import read, transactional, write
from tests.free_ports import free_ports
from tests.kafka_clients import Consumer, Producer

ROOT = Path(__file__).parents[4]
WAIT_S = 90.0
STEP_S = 45.0
MESSAGES = 40


class ServerProcess:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._process: subprocess.Popen[str] | None = None
        [self.port] = free_ports(1)

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.brokers.kafka.serving_process"]
        self._process = subprocess.Popen(
            [*command, str(self._path), str(self.port)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(WAIT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid


@contextmanager
def serving(path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(path)
    server.start()
    try:
        yield server
    finally:
        server.kill()


class Transformer:
    """Reads `in`, writes `out`, and commits both in one transaction."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._producer = transactional(address, "transformer")
        self._consumer = self._join()

    def _join(self) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": self._address,
                "group.id": "transformers",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 6_000,
            }
        )
        consumer.subscribe(["in"])
        return consumer

    def step(self, before_commit: Callable[[], bool]) -> int:
        """Transform what there is in one transaction; return where it has got to, or -1."""
        messages = self._consumer.consume(5, 1.0)
        found = [one for one in messages if one.error() is None]
        if not found:
            return -1
        self._producer.begin_transaction()
        for one in found:
            self._producer.produce("out", b"done " + (one.value() or b""), partition=0)
        offset = found[-1].offset()
        assert offset is not None
        metadata = self._consumer.consumer_group_metadata()
        position = [TopicPartition("in", 0, offset + 1)]
        self._producer.send_offsets_to_transaction(position, metadata, STEP_S)
        assert self._producer.flush(WAIT_S) == 0
        if before_commit():
            return -1
        self._producer.commit_transaction(STEP_S)
        return offset + 1

    def start_over(self) -> None:
        """What a program does whose transaction failed: begin again from what is committed."""
        self._consumer.close()
        self._producer = transactional(self._address, "transformer")
        self._consumer = self._join()

    def close(self) -> None:
        self._consumer.close()


def test_every_message_is_transformed_exactly_once_while_the_server_is_killed(
    data_path: Path,
) -> None:
    with serving(data_path) as server:
        plain = Producer({"bootstrap.servers": server.address, "linger.ms": 0})
        write(plain, "in", *(b"%d" % number for number in range(MESSAGES)))
        transformer = Transformer(server.address)
        reached, kills = 0, 0

        def kill() -> bool:
            nonlocal kills
            if kills or reached < 10:
                return False
            kills += 1
            server.kill()
            server.start()
            transformer.start_over()
            return True

        deadline = time.monotonic() + 50
        try:
            while reached < MESSAGES and time.monotonic() < deadline:
                reached = max(reached, transformer.step(kill))
        finally:
            transformer.close()
        assert kills == 1
        written = read(server.address, "out", MESSAGES)
    assert written == [b"done %d" % number for number in range(MESSAGES)]
