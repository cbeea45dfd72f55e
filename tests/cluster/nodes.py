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
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

from confluent_kafka import KafkaException
from tests.cluster.device import Device, missing_for_devices
from tests.cluster.network import Network
from tests.free_ports import free_ports
from tests.kafka_clients import AdminClient

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
import penstock.platform.clock
penstock.platform.clock._BOOT_ID = sys.argv.pop(1)
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


FILE_KINDS: Final = {
    "commit log": ("segment/commitlog/*",),
    "queue": ("segment/consumequeue/*/*/*",),
    "index": ("segment/index/*",),
    "state": ("segment/checkpoint", "segment/config/*", "segment/penstock/**/*"),
    "table": ("engines/*/*.sst", "engines/*/*.log", "rocksdb/*.sst", "rocksdb/*.log"),
    "metadata": ("meta/*.sst", "meta/*.log", "meta/MANIFEST-*", "meta/CURRENT"),
    "offsets": ("offsets/*.sst", "offsets/*.log", "offsets/MANIFEST-*"),
    "proof": ("session", "clean-stop"),
    "identity": ("store-id", "reconciled", "clock", "meta/DURABLE"),
}
"""Files of a node, by what they hold."""
RECORD_FILES: Final = ("commit log", "queue", "table")


def wait_until(check: Callable[[], bool], what: str, seconds: float = WAIT_S) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)


class Nodes:
    """The processes and directories of a cluster."""

    def __init__(
        self,
        directory: Path,
        count: int = 3,
        network: Network | None = None,
        old_tree: Path | None = None,
    ) -> None:
        """`old_tree`: the sources of an earlier release, which all nodes run until `upgrade`."""
        self.directory: Final = directory
        self.numbers: Final = tuple(range(1, count + 1))
        self.spare: Final = count + 1
        """A node that joins and leaves while the others run."""
        self.network: Final = network
        self.old_tree: Final = old_tree
        self.upgraded: Final[set[int]] = set()
        self.flipped: Final[set[int]] = set()
        """Nodes with flipped bits: a table of RocksDB may be read long after."""
        known = (*self.numbers, self.spare)
        ports = free_ports(4 * len(known))
        hosts = {n: network.host(n) if network is not None else "127.0.0.1" for n in known}
        self._ports: Final = {n: ports[4 * n - 4 : 4 * n] for n in known}
        self._hosts: Final = hosts
        self.internal: Final = {n: f"{hosts[n]}:{self._ports[n][0]}" for n in known}
        self._peers: Final = [f"{n}@{self.internal[n]}" for n in self.numbers]
        self.storage: Final = {n: f"{hosts[n]}:{self._ports[n][1]}" for n in self.numbers}
        self.kafka: Final = {n: f"{hosts[n]}:{self._ports[n][2]}" for n in self.numbers}
        self.http: Final = {n: self._ports[n][3] for n in self.numbers}
        self.running: Final[dict[int, subprocess.Popen[bytes]]] = {}
        self.damaged: int | None = None
        """The node in whose files bits were flipped."""
        self.paused: Final[set[int]] = set()
        self.mounted: Final[set[int]] = set()
        self.devices: Final[dict[int, Device]] = {}
        self._clocks: Final[dict[int, mmap.mmap]] = {}
        for node in known:
            self.home(node).mkdir(parents=True)
            self._make_clock(node)
            self._boot(node)

    def _boot(self, node: int) -> None:
        """Let the next start of a node be on a machine that was booted since the last one."""
        (self.directory / f"boot-{node}").write_text(f"{uuid.uuid4()}\n")

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

    def runs_old_release(self, node: int) -> bool:
        return self.old_tree is not None and node not in self.upgraded

    def start(self, node: int) -> None:
        _, storage, kafka, http = self._ports[node]
        joining = [f"{node}@{self.internal[node]}"] if node == self.spare else []
        peers = [*self._peers, *joining]
        settings = SETTINGS | {"node.id": node, "node.peers": json.dumps(peers)}
        arguments = [
            *("serve", "--data", str(self.data(node)), "--host", self._hosts[node]),
            *("--port", str(storage), "--kafka-port", str(kafka), "--http-port", str(http)),
        ]
        for name, value in settings.items():
            arguments += ["--set", f"{name}={value}"]
        inside = self.network.command(node) if self.network is not None else []
        files = [str(self.directory / f"{name}-{node}") for name in ("clock", "boot")]
        sources = {"PYTHONPATH": str(self.old_tree)} if self.runs_old_release(node) else {}
        with (self.directory / f"{node}.log").open("ab") as log:
            log.write(f"--- start at {time.monotonic():.3f}\n".encode())
            log.flush()
            self.running[node] = subprocess.Popen(
                [*inside, sys.executable, "-c", SHIFTED, *files, *arguments],
                stdin=subprocess.DEVNULL,
                env=os.environ | sources,
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
        self.flipped.discard(node)

    def flip_bits(
        self, node: int, random: Random, kinds: Sequence[str] = RECORD_FILES, count: int = 3
    ) -> list[str]:
        """Flip bits in files of a node that does not run, each of another kind where there are
        enough; return the files."""
        assert node not in self.running
        data = self.data(node)
        flipped: list[str] = []
        for kind in random.sample(list(kinds), min(count, len(kinds))):
            found = (path for one in FILE_KINDS[kind] for path in data.glob(one))
            files = sorted(path for path in found if path.is_file() and path.stat().st_size)
            if files:
                path = random.choice(files)
                _flip_bit(path, random)
                self.flipped.add(node)
                flipped.append(str(path.relative_to(data)))
        return flipped

    def cut_power(self, node: int) -> None:
        """Kill a node, and lose what it has not synced."""
        self.kill(node)
        self.lose_unsynced(node)

    def lose_unsynced(self, node: int) -> None:
        """Lose what a node that does not run has not synced, as its machine lost power."""
        self.devices[node].cut_power()
        self._boot(node)

    def mount_devices(self) -> str:
        """Give the nodes, which never ran, disks whose power can be cut; return why that is not
        possible."""
        reason = missing_for_devices(self.directory)
        for node in self.numbers if not reason else ():
            image = self.directory / f"disk-{node}.img"
            self.devices[node] = Device(image, self.home(node))
            self.mounted.add(node)
        return reason

    def run_command(self, *words: str) -> str:
        """Run a command of the CLI against the nodes."""
        server = ",".join(self.storage[n] for n in self.numbers if n in self.running)
        done = subprocess.run(
            [sys.executable, "-m", "penstock", *words, "--server", server],
            check=False,
            capture_output=True,
            timeout=2 * WAIT_S,
        )
        output = done.stdout.decode() + done.stderr.decode()
        assert done.returncode == 0, f"penstock {' '.join(words)}: {output}"
        return output

    def holds_replicas(self, node: int) -> bool:
        """Return whether a node has a copy of a shard, as Kafka clients see it."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        try:
            topics = admin.list_topics(timeout=5).topics.values()
        except KafkaException:
            return True
        return any(node in one.replicas for topic in topics for one in topic.partitions.values())

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
        if node in self.devices:
            self.devices[node].fill("filler")
            return
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
        for node in sorted(self.running):

            def check(node: int = node) -> bool:
                ended = self.running[node].poll() is not None
                assert not ended, f"node {node} ended: {self.log_tail(node)}"
                if self._has_damaged_disk(node):
                    self._replace_disk(node)
                return self.is_ready(node)

            wait_until(check, f"node {node} is ready", seconds)

    def _has_damaged_disk(self, node: int) -> bool:
        """Return whether a node whose bits were flipped has reported that it writes no more."""
        if node not in self.flipped or self.is_ready(node):
            return False
        log = (self.directory / f"{node}.log").read_text("utf-8", "replace")
        return "  disk_failed " in log.rpartition("--- start at")[2]

    def _replace_disk(self, node: int) -> None:
        """Do what an operator does: start the node with an empty directory."""
        self.kill(node)
        self.wipe(node)
        time.sleep(3.0)
        self.start(node)

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the leader of a partition as a node knows it that runs."""
        for node in self.running.keys() - self.paused - {self.spare}:
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
        for device in self.devices.values():
            device.close()
        for node in self.mounted - self.devices.keys():
            command = ["umount", "-l", str(self.home(node))]
            subprocess.run(command, check=False, capture_output=True, timeout=WAIT_S)
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
def nodes(
    directory: Path,
    count: int = 3,
    network: Network | None = None,
    old_tree: Path | None = None,
) -> Iterator[Nodes]:
    made = Nodes(directory, count, network, old_tree)
    try:
        yield made
    finally:
        made.close()
