"""The nodes of a drill: real `penstock serve` processes that can be killed, paused, stopped, wiped,
damaged, filled up, cut off and given a wrong clock."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

from confluent_kafka import KafkaException
from tests.cluster.network import Network
from tests.kafka_clients import AdminClient
from tests.meta.raft.cluster_in_process import free_ports

import penstock
from penstock.errors import StoreError

WAIT_S: Final = 120.0
STOP_S: Final = 60.0
TMPFS_SIZE: Final = 192 << 20
SHIFTED: Final = """
import ctypes, mmap, sys, time
ctypes.CDLL(None).prctl(1, 9)  # the kernel kills it when the drill ends
with open(sys.argv.pop(1), "rb") as file:
    shift = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
real = time.time_ns
time.time_ns = lambda: real() + int.from_bytes(shift[:8], "little", signed=True)
from penstock.cli import main
main()
"""
SETTINGS: Final[dict[str, str | int]] = {
    "node.secret": "the secret of all drills",
    "broker.commit_log_file_size": 16 << 20,
    "broker.consume_queue_file_size": 20_000 * 20,
    "engine.index_slots": 20_000,
    "engine.index_entries_max": 80_000,
    "kafka.connections_max": 500,
    "kafka.group_initial_delay_ms": 100,
    "kafka.group_session_timeout_min_ms": 1_000,
}


def wait_until(check: Callable[[], bool], what: str, seconds: float = WAIT_S) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)


class Nodes:
    """The processes and directories of a cluster."""

    def __init__(self, directory: Path, count: int = 3, network: Network | None = None) -> None:
        self.directory: Final = directory
        self.numbers: Final = tuple(range(1, count + 1))
        self.network: Final = network
        ports = free_ports(4 * count)
        hosts = {n: network.host(n) if network is not None else "127.0.0.1" for n in self.numbers}
        self._ports: Final = {n: ports[4 * n - 4 : 4 * n] for n in self.numbers}
        self._hosts: Final = hosts
        self._peers: Final = [f"{n}@{hosts[n]}:{self._ports[n][0]}" for n in self.numbers]
        self.storage: Final = {n: f"{hosts[n]}:{self._ports[n][1]}" for n in self.numbers}
        self.kafka: Final = {n: f"{hosts[n]}:{self._ports[n][2]}" for n in self.numbers}
        self.running: Final[dict[int, subprocess.Popen[bytes]]] = {}
        self.paused: Final[set[int]] = set()
        self.mounted: Final[set[int]] = set()
        self._clocks: Final[dict[int, mmap.mmap]] = {}
        for node in self.numbers:
            self.home(node).mkdir(parents=True)
            self._make_clock(node)

    def _make_clock(self, node: int) -> None:
        path = self.directory / f"clock-{node}"
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._clocks[node] = mmap.mmap(file.fileno(), 8)

    def home(self, node: int) -> Path:
        return self.directory / f"node-{node}"

    def data(self, node: int) -> Path:
        return self.home(node) / "data"

    @property
    def bootstrap(self) -> str:
        return ",".join(self.kafka.values())

    def start(self, node: int) -> None:
        _, storage, kafka, http = self._ports[node]
        settings = SETTINGS | {"node.id": node, "node.peers": json.dumps(self._peers)}
        arguments = [
            *("serve", "--data", str(self.data(node)), "--host", self._hosts[node]),
            *("--port", str(storage), "--kafka-port", str(kafka), "--http-port", str(http)),
        ]
        for name, value in settings.items():
            arguments += ["--set", f"{name}={value}"]
        inside = self.network.command(node) if self.network is not None else []
        clock = str(self.directory / f"clock-{node}")
        with (self.directory / f"{node}.log").open("ab") as log:
            log.write(f"--- start at {time.monotonic():.3f}\n".encode())
            log.flush()
            self.running[node] = subprocess.Popen(
                [*inside, sys.executable, "-c", SHIFTED, clock, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def start_all(self) -> None:
        for node in self.numbers:
            if node not in self.running:
                self.start(node)

    def kill(self, node: int) -> None:
        process = self.running.pop(node)
        process.kill()
        process.wait(WAIT_S)
        self.paused.discard(node)

    def stop(self, node: int) -> None:
        """Stop in order."""
        process = self.running.pop(node)
        process.terminate()
        code = process.wait(STOP_S)
        assert code == 0, f"node {node} ended with {code} after SIGTERM: {self.log_tail(node)}"

    def pause(self, node: int) -> None:
        self.running[node].send_signal(signal.SIGSTOP)
        self.paused.add(node)

    def resume(self, node: int) -> None:
        self.running[node].send_signal(signal.SIGCONT)
        self.paused.discard(node)

    def wipe(self, node: int) -> None:
        """Delete what a node that does not run has stored."""
        assert node not in self.running
        shutil.rmtree(self.data(node))

    def flip_bits(self, node: int, random: Random, count: int = 3) -> list[str]:
        """Flip bits in files of records of a node that does not run; return the files."""
        assert node not in self.running
        data = self.data(node)
        files = sorted(
            path
            for path in (*data.rglob("commitlog/*"), *data.rglob("consumequeue/*/*/*"))
            if path.is_file() and path.stat().st_size
        )
        chosen = random.sample(files, min(count, len(files)))
        for path in chosen:
            _flip_bit(path, random)
        return [str(path.relative_to(data)) for path in chosen]

    def step_clock(self, node: int, seconds: float) -> None:
        """Set the wall clock of a node ahead, or back; 0: right."""
        shift = int(seconds * 1e9)
        self._clocks[node][:8] = shift.to_bytes(8, "little", signed=True)

    def mount_small_disk(self, node: int) -> str:
        """Give a node that never ran a disk of its own; return why that is not possible."""
        if os.geteuid() != 0:
            return "a disk of limited size needs root"
        command = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_SIZE}", "tmpfs"]
        done = subprocess.run(
            [*command, str(self.home(node))], check=False, capture_output=True, timeout=WAIT_S
        )
        if done.returncode != 0:
            return f"tmpfs cannot be mounted: {done.stderr.decode().strip()}"
        self.mounted.add(node)
        return ""

    def fill_disk(self, node: int) -> None:
        assert node in self.mounted
        with (self.home(node) / "filler").open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass

    def free_disk(self, node: int) -> None:
        (self.home(node) / "filler").unlink(missing_ok=True)

    def is_ready(self, node: int) -> bool:
        host, http = self._hosts[node], self._ports[node][3]
        try:
            with urlopen(f"http://{host}:{http}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def wait_ready(self, seconds: float = WAIT_S) -> None:
        for node in self.numbers:
            process = self.running[node]

            def check(node: int = node, process: subprocess.Popen[bytes] = process) -> bool:
                assert process.poll() is None, f"node {node} ended: {self.log_tail(node)}"
                return self.is_ready(node)

            wait_until(check, f"node {node} is ready", seconds)

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the leader of a partition as a node knows it that runs."""
        for node in self.running.keys() - self.paused:
            with suppress(StoreError), penstock.connect(self.storage[node], deadline_s=3) as store:
                for one in store.topic(topic).describe().partitions:
                    if one.partition == partition:
                        return one.leader
        return None

    def are_in_sync(self) -> bool:
        """Return whether every replica of every shard is in sync, as Kafka clients see it."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        try:
            topics = admin.list_topics(timeout=5).topics.values()
        except KafkaException:
            return False
        return all(
            len(one.isrs) == len(one.replicas) > 0
            for topic in topics
            for one in topic.partitions.values()
        )

    def dead(self) -> list[int]:
        """Return nodes that ended although nothing ended them."""
        return [node for node, process in self.running.items() if process.poll() is not None]

    def log_tail(self, node: int, size: int = 2_000) -> str:
        data = (self.directory / f"{node}.log").read_bytes()
        return data[-size:].decode("utf-8", "replace")

    def cpu_s(self, node: int) -> float:
        stat = Path(f"/proc/{self.running[node].pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        for node in list(self.running):
            self.kill(node)
        for node in list(self.mounted):
            command = ["umount", "-l", str(self.home(node))]
            subprocess.run(command, check=False, capture_output=True, timeout=WAIT_S)
            self.mounted.discard(node)
        for clock in self._clocks.values():
            clock.close()


def _flip_bit(path: Path, random: Random) -> None:
    """Flip a bit of the part that has been written; the rest of a file is zeros."""
    data = path.read_bytes().rstrip(b"\0")
    if not data:
        return
    at = random.randrange(len(data))
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 1 << random.randrange(8)]))


@contextmanager
def nodes(directory: Path, count: int = 3, network: Network | None = None) -> Iterator[Nodes]:
    made = Nodes(directory, count, network)
    try:
        yield made
    finally:
        made.close()
