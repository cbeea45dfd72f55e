"""`penstock cluster up`: real nodes on this machine, started, killed, restarted and stopped."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.free_ports import free_port_base

import penstock
from penstock.cli.local_cluster import ClusterDirectory
from penstock.errors import (
    BadRequestError,
    LockedError,
    NotAStoreError,
    RetryableError,
    SetupError,
)

pytest.importorskip("penstock._native", reason="a cluster needs the extension")
pytestmark = pytest.mark.timeout(400)

WAIT_S = 150.0
COMMAND = [sys.executable, "-c", "from penstock.cli import main; main()", "cluster", "up"]
NODE = re.compile(
    r"node (\d)  storage API (\S+)  Kafka (\S+)  (?:MQTT \S+  )?http://(\S+)/health  process (\d+)"
)


class Up:
    """A `penstock cluster up`, or another command that supervises nodes, of a test's own."""

    def __init__(self, directory: Path, *options: str, command: list[str] = COMMAND) -> None:
        self.process = subprocess.Popen(
            [*command, "--data", str(directory), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.output += line

    def until(self, pattern: str) -> re.Match[str]:
        """Wait until a line of the output matches."""
        deadline = time.monotonic() + WAIT_S
        while (found := re.search(pattern, self.output, re.MULTILINE)) is None:
            assert self._reader.is_alive() or re.search(pattern, self.output), self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)
        return found

    def ready(self) -> dict[int, tuple[str, int]]:
        """Return the storage address and the process of every node."""
        self.until("Stop with Ctrl-C")
        found = NODE.findall(self.output)
        return {int(node): (storage, int(pid)) for node, storage, _, _, pid in found}

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        code = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return code


@contextmanager
def running(directory: Path, *options: str) -> Iterator[Up]:
    if not directory.exists() and "--port-base" not in options:
        nodes = int(options[options.index("--nodes") + 1]) if "--nodes" in options else 3
        options = (*options, "--port-base", str(free_port_base(nodes)))
    made = Up(directory, *options)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.stop(signal.SIGTERM)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_for(check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_local_cluster_keeps_its_records_over_a_stop_and_says_which_node_died(
    tmp_path: Path, run: Run
) -> None:
    directory = tmp_path / "cluster"
    with running(directory, "--nodes", "3") as up:
        nodes = up.ready()
        assert sorted(nodes) == [1, 2, 3]
        addresses = [storage for storage, _ in nodes.values()]
        with penstock.connect(addresses) as store:
            topic = store.create_topic("orders", partitions=3)
            leaders = {one.leader for one in topic.describe().partitions}
            assert leaders == {1, 2, 3}
            for partition in range(3):
                topic.write(b"kept", partition=partition)
        refused = run("cluster", "up", "--data", directory)
        assert refused.code == 2
        assert f"another `penstock cluster up` runs on {directory}" in refused.err
        assert f"process {up.process.pid}" in refused.err
        assert up.stop() == 0
        # A node may warn on the way that another one has left.
        lines = up.output.rpartition("stopping all nodes\n")[2].splitlines()
        ending = [line for line in lines if " | " not in line]
        assert sorted(ending) == [*(f"node {node}: stopped" for node in nodes), "stopped"]
        assert not [pid for _, pid in nodes.values() if is_alive(pid)]
    with running(directory) as up:
        again = up.ready()
        assert [storage for storage, _ in again.values()] == addresses
        with penstock.connect(addresses) as store:
            found = [record.value for record in store.topic("orders")]
            assert found == [b"kept"] * 3
        os.kill(again[2][1], signal.SIGKILL)
        said = up.until(r"^node 2 was ended by SIGKILL; start it again with: penstock (.+)$")
        _start_by_hand(said[1].split())
        with penstock.connect(addresses) as store:
            assert "orders" in store.topics()
        # The nodes end with their supervisor, also when it had no time to stop them.
        os.kill(up.process.pid, signal.SIGKILL)
        up.process.wait(WAIT_S)
        wait_for(lambda: not is_alive(again[1][1]) and not is_alive(again[3][1]), "nodes end")


def _start_by_hand(arguments: list[str]) -> None:
    """The command that is printed for a node that ended starts it."""
    command = [sys.executable, "-c", "from penstock.cli import main; main()", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        greeting = ""
        for line in node.stdout:
            greeting += line
            if "Ctrl-C" in line:
                break
        assert "Penstock is serving" in greeting
        node.terminate()
        assert node.wait(WAIT_S) == 0


def test_a_killed_node_is_started_again_if_that_is_asked_for(tmp_path: Path) -> None:
    with running(tmp_path / "one", "--nodes", "1", "--restart") as up:
        storage, pid = up.ready()[1]
        os.kill(pid, signal.SIGKILL)
        again = up.until(r"^node 1 was started again, process (\d+)$")
        assert int(again[1]) != pid
        wait_for(lambda: _answers(storage), "the node serves again")
        os.kill(int(again[1]), signal.SIGSTOP)
        assert up.stop(signal.SIGTERM) == 0, up.output


def _answers(address: str) -> bool:
    try:
        with penstock.connect(address, deadline_s=2) as store:
            return store.topics() == []
    except RetryableError:
        return False


def test_a_node_that_cannot_start_ends_the_command_with_its_reason(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    with running(directory, "--nodes", "1") as up:
        up.ready()
        assert up.stop() == 0
    shutil.rmtree(directory / "node-1" / "data")
    (directory / "node-1" / "data").write_text("not a directory")
    with running(directory) as up:
        assert up.process.wait(WAIT_S) == 2
        up._reader.join(WAIT_S)
    said = up.output.splitlines()[-1]
    assert said.startswith("penstock: node 1 ended with exit code 2 before the cluster was ready")
    assert "is not a directory" in said


def test_a_node_that_does_not_stop_in_time_is_killed_and_named(tmp_path: Path) -> None:
    with running(tmp_path / "cluster", "--nodes", "1", "--stop-wait", "0") as up:
        _, pid = up.ready()[1]
        assert up.stop() == 2
        assert "node 1 did not stop within 0 s and was killed" in up.output
        assert not is_alive(pid)


def test_a_directory_with_other_contents_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(NotAStoreError, match=r"not the directory of a local cluster.*thesis\.txt"):
        ClusterDirectory(str(tmp_path))
    assert [one.name for one in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(NotAStoreError, match="not a directory"):
        ClusterDirectory(str(tmp_path / "thesis.txt"))


def test_another_number_of_nodes_or_other_ports_are_refused(tmp_path: Path) -> None:
    made = ClusterDirectory(str(tmp_path / "c"), nodes=2)
    base = made.nodes[0].storage
    with pytest.raises(LockedError, match="another `penstock cluster up` runs"):
        ClusterDirectory(str(tmp_path / "c"))
    made.close()
    with pytest.raises(BadRequestError, match="a cluster of 2 nodes, and --nodes is 3"):
        ClusterDirectory(str(tmp_path / "c"), nodes=3)
    with pytest.raises(BadRequestError, match=f"has its ports from {base} on"):
        ClusterDirectory(str(tmp_path / "c"), port_base=base + 10)
    with pytest.raises(BadRequestError, match="leaves no ports for 3 nodes"):
        ClusterDirectory(str(tmp_path / "d"), nodes=3, port_base=65_530)
    again = ClusterDirectory(str(tmp_path / "c"), nodes=2, port_base=base)
    assert again.nodes == made.nodes
    again.close()


def test_a_port_that_is_taken_is_named_with_its_purpose(tmp_path: Path) -> None:
    made = ClusterDirectory(str(tmp_path / "c"), nodes=2)
    made.close()
    kafka = made.nodes[1].kafka
    with socket.socket() as other:
        other.bind(("127.0.0.1", kafka))
        other.listen()
        with pytest.raises(SetupError, match=rf"{kafka} is in use; .*node 2 needs it for Kafka"):
            ClusterDirectory(str(tmp_path / "c"))
        with pytest.raises(SetupError, match=f"{kafka} is in use"):
            ClusterDirectory(str(tmp_path / "d"), nodes=2, port_base=made.nodes[0].storage)
        other_cluster = ClusterDirectory(str(tmp_path / "e"), nodes=2)
        assert other_cluster.nodes[0].storage != made.nodes[0].storage
        other_cluster.close()


def test_a_damaged_description_of_the_cluster_is_an_error(tmp_path: Path) -> None:
    ClusterDirectory(str(tmp_path / "c"), nodes=1).close()
    (tmp_path / "c" / "cluster.json").write_text("{")
    with pytest.raises(SetupError, match=r"cluster\.json cannot be read"):
        ClusterDirectory(str(tmp_path / "c"))


def test_settings_of_all_nodes_are_checked_before_a_node_starts(tmp_path: Path, run: Run) -> None:
    wrong = run("cluster", "up", "--data", tmp_path / "c", "--set", "broker.no_such_key=1")
    assert wrong.code == 2
    assert "no_such_key" in wrong.err
    own = run("cluster", "up", "--data", tmp_path / "c", "--set", "server.port=1")
    assert "server.port differs from node to node" in own.err
    assert not list((tmp_path / "c").glob("node-*/data"))
