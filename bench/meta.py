"""What does the meta service reach, alone and as three nodes that sync every write?

    python -m bench.meta [--seconds 3] [--rows 100000]

Every node is a process of its own; clients call it over gRPC, from threads of this process. Prints
one JSON line per case. Latencies are in milliseconds. On a machine with fewer cores than processes
the figures are those of a machine that is too small: `load` says how busy it was.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from penstock.errors import RetryableError
from penstock.meta.client import GroupName, GroupOffsets, OffsetEntry
from penstock.meta.proto import meta_pb2 as pb
from penstock.meta.remote.client import RemoteMetaClient
from penstock.meta.remote.connection import MetaConnection
from penstock.meta.watch import Update
from penstock.platform.clock import SystemClock


class Cluster:
    """Nodes in processes of their own."""

    def __init__(self, directory: Path, nodes: int) -> None:
        self.directory = directory
        ports = [_free_port() for _ in range(2 * nodes)]
        self.numbers = range(1, nodes + 1)
        peers = [f"{node}@127.0.0.1:{ports[node - 1]}" for node in self.numbers]
        self._peers = ",".join(peers) if nodes > 1 else ""
        self.addresses = {node: f"127.0.0.1:{ports[nodes + node - 1]}" for node in self.numbers}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._shared: dict[int, RemoteMetaClient] = {}
        self._sharing = threading.Lock()
        for node in self.numbers:
            self.start(node)

    def start(self, node: int) -> None:
        port = self.addresses[node].rpartition(":")[2]
        arguments = [str(self.directory / str(node)), str(node), self._peers, port]
        self.processes[node] = subprocess.Popen(
            [sys.executable, "-m", "bench.meta_cases", *arguments]
        )

    def client(self, first: int = 1) -> RemoteMetaClient:
        others = [address for node, address in self.addresses.items() if node != first]
        return RemoteMetaClient([self.addresses[first], *others], node_id=100, deadline_s=60)

    def shared_client(self, node: int) -> RemoteMetaClient:
        """Return the client that all threads share which call this node, as those of a node do."""
        with self._sharing:
            if node not in self._shared:
                self._shared[node] = self.client(node)
            return self._shared[node]

    def transfer(self, group: str, to: int) -> None:
        """Let a node lead a group; returns when it does."""
        connection = MetaConnection([self.addresses[1]], deadline_s=60, clock=SystemClock())
        try:
            while self.leader(group) != to:
                connection.call("Transfer", pb.TransferRequest(group=group, to=to), pb.Nothing)
                time.sleep(0.05)
        finally:
            connection.close()

    def status(self, node: int) -> pb.ClusterStatusReply:
        connection = MetaConnection([self.addresses[node]], deadline_s=60, clock=SystemClock())
        try:
            return connection.call(
                "ClusterStatus", pb.ClusterStatusRequest(), pb.ClusterStatusReply
            )
        finally:
            connection.close()

    def wait_until_level(self) -> None:
        while len(self.numbers) > 1:
            replies = [self.status(node) for node in self.numbers]
            groups = [group for reply in replies for group in reply.groups]
            if all(len(group.voters) == len(self.numbers) for group in groups) and all(
                len({reply.groups[at].applied for reply in replies}) == 1
                for at in range(len(replies[0].groups))
            ):
                return
            time.sleep(0.05)

    def leader(self, group: str) -> int:
        groups = self.status(1).groups
        return next((one.leader for one in groups if one.name == group), 1)

    def cpu_s(self) -> float:
        """Return the CPU time that the nodes have used, in seconds."""
        ticks = 0
        for process in self.processes.values():
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> int:
        total = 0
        for process in self.processes.values():
            fields = Path(f"/proc/{process.pid}/statm").read_text().split()
            total += int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
        return total >> 20

    def close(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGKILL)
            process.wait()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def say(case: str, **figures: float | str) -> None:
    load = round(os.getloadavg()[0], 1)
    print(json.dumps({"case": case, **figures, "load": load}), flush=True)


def repeat(
    threads: int, seconds: float, make: Callable[[int], Callable[[], object]]
) -> list[float]:
    """Call what `make(thread)` returns over and over; return how long each call took, in ms."""
    times: list[list[float]] = [[] for _ in range(threads)]
    ready = threading.Barrier(threads)

    def run(number: int) -> None:
        work = make(number)
        ready.wait()
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            began = time.perf_counter()
            work()
            times[number].append((time.perf_counter() - began) * 1e3)

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return sorted(one for part in times for one in part)


def saver(cluster: Cluster, size: int, number: int) -> Callable[[], object]:
    """Return a call that saves `size` offsets of a group of its own."""
    client = cluster.shared_client(1 + number % len(cluster.numbers))
    name = f"group-{size}-{number}"
    epoch = client.claim_groups([GroupName("default", name)])[0].epoch
    shards = [f"orders_{shard}" for shard in range(size)]
    sequence = 0

    def save() -> None:
        nonlocal sequence
        sequence += 1
        entries = tuple(OffsetEntry(shard, sequence, epoch, sequence, 1) for shard in shards)
        client.save_offsets([GroupOffsets("default", name, entries)])

    return save


def quantiles(times: list[float]) -> dict[str, float]:
    """Return p50 and p99 of sorted times."""
    last = len(times) - 1
    return {f"p{share}": round(times[last * share // 100], 2) for share in (50, 99)}


def saves(cluster: Cluster, label: str, seconds: float) -> None:
    for size, threads in ((1, 256), (100, 24), (1_000, 6)):
        used = cluster.cpu_s()
        times = repeat(threads, seconds, lambda number, size=size: saver(cluster, size, number))
        offsets = len(times) * size
        cpu_us = round((cluster.cpu_s() - used) / offsets * 1e6, 1)
        rate = round(offsets / seconds)
        say(f"{label}: save {size}", offsets_per_s=rate, nodes_cpu_us=cpu_us, **quantiles(times))


def topics(cluster: Cluster, label: str, seconds: float) -> None:
    def creator(number: int) -> Callable[[], object]:
        client = cluster.client(1 + number % len(cluster.numbers))
        names = iter(range(1 << 30))
        return lambda: client.create_topic(f"{label}-{number}-{next(names)}")

    times = repeat(8, seconds, creator)
    say(f"{label}: topics", per_s=round(len(times) / seconds), **quantiles(times))


def watch_latency(cluster: Cluster, label: str) -> None:
    watcher, changer = cluster.client(len(cluster.numbers)), cluster.client(1)
    came: dict[int, float] = {}

    def note(update: Update) -> None:
        came[update.revision] = time.perf_counter()

    watch = watcher.watch(watcher.revision(), note)
    delays: list[float] = []
    for number in range(100):
        began = time.perf_counter()
        revision = changer.create_topic(f"watched-{label}-{number}").revision
        while revision not in came:
            time.sleep(0.0001)
        delays.append((came[revision] - began) * 1e3)
    watch.close()
    say(f"{label}: create until pushed", **quantiles(sorted(delays)))


def floods(cluster: Cluster, label: str, seconds: float) -> None:
    """Latency of metadata commands while offsets are saved as fast as they can be."""
    if len(cluster.numbers) == 1:
        flood(cluster, label, seconds)
        return
    metadata = cluster.leader("metadata")
    cluster.transfer("offset-0", 1 + metadata % len(cluster.numbers))
    flood(cluster, f"{label}, leaders apart", seconds)
    # Leaders part again after a few seconds: the case is short.
    cluster.transfer("offset-0", cluster.leader("metadata"))
    flood(cluster, f"{label}, leaders together", min(seconds, 2.0))


def flood(cluster: Cluster, label: str, seconds: float) -> None:
    stopping = threading.Event()

    def run(number: int) -> None:
        save = saver(cluster, 100, 100 + number)
        while not stopping.is_set():
            try:
                save()
            except RetryableError:
                continue

    running = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in running:
        thread.start()
    times = repeat(1, seconds, lambda _: _creator(cluster, label))
    stopping.set()
    for thread in running:
        thread.join()
    say(f"{label}: topic during a flood", **quantiles(times))


def _creator(cluster: Cluster, label: str) -> Callable[[], object]:
    client = cluster.client(cluster.leader("metadata"))
    names = iter(range(1 << 30))
    return lambda: client.create_topic(f"flood-{label}-{next(names)}")


def snapshot(cluster: Cluster, rows: int) -> None:
    """Fill a group, wipe a node, and see how long it takes to be complete again."""
    client = cluster.client(1)
    epoch = client.claim_groups([GroupName("default", "large")])[0].epoch
    began = time.perf_counter()
    for start in range(0, rows, 1_000):
        entries = tuple(
            OffsetEntry(f"shard-{shard}_0", shard, epoch, 1, 1)
            for shard in range(start, min(start + 1_000, rows))
        )
        client.save_offsets([GroupOffsets("default", "large", entries)])
    filled_s = round(time.perf_counter() - began, 1)
    say("fill", rows=rows, seconds=filled_s, nodes_mb=cluster.memory_mb())
    leaders = {cluster.leader("metadata"), cluster.leader("offset-0")}
    node = next(node for node in cluster.numbers if node not in leaders)
    cluster.processes[node].kill()
    cluster.processes[node].wait()
    shutil.rmtree(cluster.directory / str(node))
    began = time.perf_counter()
    cluster.start(node)
    cluster.wait_until_level()
    complete_s = round(time.perf_counter() - began, 1)
    say("wiped node complete", rows=rows, seconds=complete_s, nodes_mb=cluster.memory_mb())


def failover(cluster: Cluster) -> None:
    client = cluster.client(1)
    leader = cluster.leader("metadata")
    cluster.processes[leader].kill()
    cluster.processes[leader].wait()
    began = time.perf_counter()
    client.create_topic("after-the-leader")
    say("leader killed until a topic is created", seconds=round(time.perf_counter() - began, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, choices=(1, 3), help="only this many nodes")
    options = parser.parse_args()
    for nodes, label in ((1, "one node"), (3, "three nodes")):
        if options.nodes not in {None, nodes}:
            continue
        with tempfile.TemporaryDirectory() as directory:
            cluster = Cluster(Path(directory), nodes)
            try:
                cluster.wait_until_level()
                saves(cluster, label, options.seconds)
                topics(cluster, label, options.seconds)
                watch_latency(cluster, label)
                floods(cluster, label, options.seconds)
                say(f"{label}: memory", mb=cluster.memory_mb())
                if nodes > 1:
                    snapshot(cluster, options.rows)
                    failover(cluster)
            finally:
                cluster.close()


if __name__ == "__main__":
    main()
