"""Three processes that are killed, stopped and wiped under load: nothing acknowledged is lost.

usage: python -m tests.meta.raft.torture DIRECTORY SECONDS; the outcome is DIRECTORY/outcome
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from bisect import bisect_left
from contextlib import suppress
from math import inf
from operator import attrgetter
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple
from zlib import crc32

from tests.free_ports import free_ports

from penstock.errors import AlreadyExistsError, RetryableError
from penstock.meta.client import GroupName, GroupOffsets, OffsetEntry
from penstock.meta.proto import meta_pb2 as pb
from penstock.meta.remote.client import RemoteMetaClient
from penstock.meta.remote.connection import MetaConnection
from penstock.meta.state.keys import encode_key
from penstock.platform.clock import SystemClock

OFFSET_GROUPS = 2
"""As `meta_process` has them."""

_HOW = {
    "one": "leader killed",
    "wipe": "leader killed and wiped",
    "pause": "leader stopped for 0.5 to 3 s",
    "majority": "two of three killed, back within a second",
    "all": "all three killed, back within a second",
}

SCRIPT = Path(__file__).with_name("meta_process.py")
ROOT = Path(__file__).parents[3]


class Processes:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        ports = free_ports(6)
        self.peers = ",".join(f"{node}@127.0.0.1:{ports[node - 1]}" for node in (1, 2, 3))
        self.rpc = {node: ports[node + 2] for node in (1, 2, 3)}
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.rpc.values()]

    def start(self, node: int) -> None:
        log = (self.directory / f"{node}.log").open("ab")
        arguments = [str(self.directory / str(node)), str(node), self.peers, str(self.rpc[node])]
        with log:
            self.running[node] = subprocess.Popen(
                [sys.executable, str(SCRIPT), *arguments], cwd=ROOT, stderr=log, stdout=log
            )

    def kill(self, node: int) -> None:
        process = self.running.pop(node)
        process.kill()
        process.wait()

    def close(self) -> None:
        for node in list(self.running):
            self.running[node].send_signal(signal.SIGCONT)
            self.kill(node)


class Acknowledged(NamedTuple):
    """A write: to which group, when it was begun and when it was acknowledged."""

    group: str
    began: float
    ended: float


class Writer(threading.Thread):
    """Creates topics and commits offsets; remembers what was acknowledged."""

    def __init__(
        self, number: int, addresses: list[str], stopping: threading.Event, pause_s: float
    ) -> None:
        super().__init__(daemon=True)
        turned = addresses[number % 3 :] + addresses[: number % 3]
        self._client = RemoteMetaClient(turned, node_id=100 + number, deadline_s=60)
        self._number = number
        self._stopping = stopping
        self._pause_s = pause_s
        self.topics: list[str] = []
        self.offset = -1
        self.longest_s = 0.0
        self.acknowledged: list[Acknowledged] = []
        number_of = crc32(encode_key(0, "default", self.group)) % OFFSET_GROUPS
        self._offset_group = f"offset-{number_of}"
        self.failure: BaseException | None = None

    @property
    def group(self) -> str:
        return f"group-{self._number}"

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - told to the test, which fails by it
            self.failure = error
        finally:
            self._client.close()

    def _run(self) -> None:
        epoch = self._client.claim_groups([GroupName("default", self.group)])[0].epoch
        count = 0
        while not self._stopping.is_set():
            count += 1
            began = time.monotonic()
            group = "metadata" if count % 2 else self._offset_group
            if count % 2:
                name = f"topic-{self._number}-{count}"
                with suppress(AlreadyExistsError):
                    self._client.create_topic(name)
                self.topics.append(name)
            else:
                entry = OffsetEntry("shard_0", count, epoch, count, 1_000)
                stale = self._client.save_offsets([GroupOffsets("default", self.group, (entry,))])
                assert stale == []
                self.offset = count
            ended = time.monotonic()
            self.acknowledged.append(Acknowledged(group, began, ended))
            self.longest_s = max(self.longest_s, ended - began)
            time.sleep(self._pause_s)
            if count % 10 == 0:
                self._read_back()

    def _read_back(self) -> None:
        found = self._client.get_offset("default", self.group, "shard_0")
        assert found is not None, "an acknowledged offset is gone"
        assert found.offset == self.offset, f"read {found.offset} after {self.offset}"


def torture(
    directory: Path,
    seconds: float,
    seed: int,
    *,
    rest_s: tuple[float, float] = (1.0, 3.0),
    pause_s: float = 0.0,
) -> tuple[list[Writer], list[str]]:
    """Make trouble for so long, with a rest between; return the writers, who found nothing wrong,
    and lines about how long they waited. They pause between their calls."""
    random = Random(seed)
    processes = Processes(directory)
    try:
        for node in (1, 2, 3):
            processes.start(node)
        stopping = threading.Event()
        writers = [Writer(number, processes.addresses, stopping, pause_s) for number in range(3)]
        for writer in writers:
            writer.start()
        losses: list[Loss] = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(random.uniform(*rest_s))
            losses += _trouble(processes, random)
        time.sleep(2)
        stopping.set()
        for writer in writers:
            writer.join(120)
            assert not writer.is_alive(), "a writer never came back"
            assert writer.failure is None, writer.failure
        _check(processes, writers)
        report = [
            *failover_times(losses, [one for writer in writers for one in writer.acknowledged]),
            f"longest call of a writer: {max(writer.longest_s for writer in writers):.2f} s",
        ]
        sys.stdout.write("\n".join([*report, ""]))
        return writers, report
    finally:
        processes.close()


class Loss(NamedTuple):
    """A group lost its leader: how, and when."""

    how: str
    group: str
    at: float


def failover_times(losses: list[Loss], acknowledged: list[Acknowledged]) -> list[str]:
    """Say how long after the loss of a leader the first write was acknowledged that was begun
    behind it. The next loss of the same group ends the wait."""
    waits: dict[str, list[float]] = {}
    by_group: dict[str, list[Acknowledged]] = {}
    for one in sorted(acknowledged, key=attrgetter("began")):
        by_group.setdefault(one.group, []).append(one)
    for number, loss in enumerate(losses):
        until = next((one.at for one in losses[number + 1 :] if one.group == loss.group), inf)
        writes = by_group.get(loss.group, [])
        first = bisect_left(writes, loss.at, key=attrgetter("began"))
        last = bisect_left(writes, until, key=attrgetter("began"))
        ends = [one.ended for one in writes[first:last] if one.ended < until]
        if ends:
            waits.setdefault(loss.how, []).append(min(ends) - loss.at)
    return [
        f"{how}: first write acknowledged after {median(found):.2f} s (median), "
        f"{max(found):.2f} s (longest) of {len(found)}"
        for how, found in sorted(waits.items())
    ]


def _leaders(processes: Processes) -> dict[str, int]:
    """Return the leader of each group, as the first node knows them that answers."""
    for address in processes.addresses:
        with suppress(RetryableError):
            return {group.name: group.leader for group in _status_of(address).groups}
    return {}


def _losses(kind: str, groups: list[str]) -> list[Loss]:
    """From now on nobody answers for the leaders that are gone."""
    now = time.monotonic()
    return [Loss(_HOW[kind], group, now) for group in groups]


def _trouble(processes: Processes, random: Random) -> list[Loss]:
    kind = random.choice(["one", "one", "majority", "all", "pause", "wipe"])
    nodes = random.sample([1, 2, 3], {"majority": 2, "all": 3}.get(kind, 1))
    led = [group for group, leader in _leaders(processes).items() if leader in nodes]
    if kind == "pause":
        stopped = processes.running[nodes[0]]
        stopped.send_signal(signal.SIGSTOP)
        os.waitpid(stopped.pid, os.WUNTRACED)
        losses = _losses(kind, led)
        time.sleep(random.uniform(0.5, 3.0))
        stopped.send_signal(signal.SIGCONT)
        return losses
    for node in nodes:
        processes.kill(node)
    losses = _losses(kind, led)
    if kind == "wipe":
        shutil.rmtree(processes.directory / str(nodes[0]))
    time.sleep(random.uniform(0.0, 1.0))
    for node in nodes:
        processes.start(node)
    if kind == "wipe":
        # Two wiped nodes at once are more than three can bear: wait until it votes again.
        _wait_for_voters(processes)
    return losses


def _wait_for_voters(processes: Processes) -> None:
    deadline = time.monotonic() + 90
    while not _all_vote(processes):
        assert time.monotonic() < deadline, "a wiped node never voted again"
        time.sleep(0.2)


def _status_of(address: str) -> pb.ClusterStatusReply:
    connection = MetaConnection([address], deadline_s=1, clock=SystemClock())
    try:
        return connection.call("ClusterStatus", pb.ClusterStatusRequest(), pb.ClusterStatusReply)
    finally:
        connection.close()


def _all_vote(processes: Processes) -> bool:
    for address in processes.addresses:
        try:
            reply = _status_of(address)
        except RetryableError:
            return False
        if len(reply.groups) != 3 or any(len(group.voters) != 3 for group in reply.groups):
            return False
        if any(group.applied < group.commit for group in reply.groups):
            return False
    return True


def _check(processes: Processes, writers: list[Writer]) -> None:
    for address in processes.addresses:
        client = RemoteMetaClient([address], node_id=98, deadline_s=90)
        try:
            names = {topic.name for topic in client.list_topics()}
            for writer in writers:
                missing = set(writer.topics) - names
                assert not missing, f"{address} lost {sorted(missing)[:5]}"
                found = client.get_offset("default", writer.group, "shard_0")
                assert found is not None
                assert found.offset == writer.offset
        finally:
            client.close()


def main() -> None:
    directory, seconds = Path(sys.argv[1]), float(sys.argv[2])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        writers, report = torture(directory, seconds, seed=1, rest_s=(2.0, 6.0), pause_s=0.02)
        (directory / "report").write_text("\n".join(report))
        assert all(writer.topics for writer in writers), "a writer wrote nothing"
        outcome = "ok"
    except BaseException:  # noqa: BLE001 - told to the test, which fails by it
        outcome = traceback.format_exc()
    (directory / "outcome.new").write_text(outcome)
    (directory / "outcome.new").rename(directory / "outcome")


def _end_with_parent() -> None:
    """Nobody waits for the outcome of a run whose tests were interrupted."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
