"""`penstock serve --workers N`: several nodes of one cluster, supervised by one command."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.commands.cluster.test_up import WAIT_S, Up, is_alive, wait_for
from tests.cli.conftest import Run

import penstock
from penstock.cli.local_cluster import ClusterDirectory, NodePorts, WorkersDirectory
from penstock.errors import BadRequestError, NotAStoreError, SettingsError
from penstock.settings import Settings, load_settings

pytest.importorskip("penstock._native", reason="a cluster needs the extension")
pytestmark = pytest.mark.timeout(400)

FREE = ["--port", "0", "--http-port", "0", "--kafka-port", "0"]
SMALL = ["--set", f"broker.commit_log_file_size={16 << 20}"]
COMMAND = [sys.executable, "-c", "from penstock.cli import main; main()", "serve"]


@contextmanager
def serving(directory: Path, workers: int) -> Iterator[Up]:
    options = ["--workers", str(workers), *FREE, *SMALL]
    made = Up(directory, *options, command=COMMAND)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.stop(signal.SIGTERM)


def settings(**given: object) -> Settings:
    return load_settings(None, environment={}, overrides=given)


def opened(path: Path, workers: int, **given: object) -> tuple[NodePorts, ...]:
    directory = WorkersDirectory(str(path), workers, settings(**given), [])
    for ports in directory.nodes:
        directory.data(ports.node).mkdir(parents=True, exist_ok=True)
    directory.close()
    return directory.nodes


def test_a_dead_worker_is_started_again_and_workers_can_be_added(tmp_path: Path, run: Run) -> None:
    directory = tmp_path / "data"
    with serving(directory, 1) as up:
        storage, pid = up.ready()[1]
        with penstock.connect(storage) as store:
            store.create_topic("orders", partitions=1).write(b"kept")
        os.kill(pid, signal.SIGKILL)
        again = up.until(r"^node 1 was started again, process (\d+)$")
        assert int(again[1]) != pid
        assert up.stop(signal.SIGTERM) == 0, up.output
    with serving(directory, 2) as up:
        nodes = up.ready()
        assert nodes[1][0] == storage
        assert "workers 2 to 2 are new" in up.output
        with penstock.connect([address for address, _ in nodes.values()]) as store:
            assert [record.value for record in store.topic("orders")] == [b"kept"]
            made = store.create_topic("spread", partitions=4)
            assert {one.leader for one in made.describe().partitions} == {1, 2}
        refused = run("serve", "--data", directory)
        assert refused.code == 2
        assert "holds the nodes of several workers; add --workers N" in refused.err
        assert up.stop(signal.SIGTERM) == 0, up.output
        stopped = re.findall(r"^node (\d): stopped$", up.output, re.MULTILINE)
        assert stopped == ["2", "1"]
        assert not [pid for _, pid in nodes.values() if is_alive(pid)]


@pytest.mark.soak
def test_the_fourth_worker_stores_records_without_a_vote(tmp_path: Path) -> None:
    with serving(tmp_path / "data", 4) as up:
        nodes = up.ready()
        with penstock.connect([address for address, _ in nodes.values()]) as store:
            topic = store.create_topic("orders", partitions=8)
            leaders = {one.leader for one in topic.describe().partitions}
            assert leaders == {1, 2, 3, 4}
            for partition in range(8):
                topic.write(b"%d" % partition, partition=partition)
            wait_for(lambda: sum(1 for _ in topic) == 8, "all records are read")
        assert up.stop(signal.SIGTERM) == 0, up.output


def test_ports_of_workers_follow_from_those_of_the_settings(tmp_path: Path) -> None:
    base = ClusterDirectory(str(tmp_path / "free"), nodes=4)
    base.close()
    first = base.nodes[0]
    given = {
        "server.port": first.storage,
        "server.http_port": first.http,
        "kafka.port": first.kafka,
        "kafka.advertised_port": 1000,
        "mqtt.port": first.mqtt,
        "mqtt.websocket_port": first.websocket,
    }
    directory = WorkersDirectory(str(tmp_path / "w"), 4, settings(**given), ["--host", "::1"])
    directory.close()
    assert [ports.storage for ports in directory.nodes] == [
        first.storage + 10 * number for number in range(4)
    ]
    assert directory.nodes == base.nodes
    voter, other = (directory.launch(node).arguments for node in (2, 4))
    voters = ",".join(f"{n + 1}@127.0.0.1:{first.internal + 10 * n}" for n in range(3))
    assert f"node.peers={voters}" in voter
    assert "kafka.advertised_port=1010" in voter
    assert f"server.port={first.storage + 10}" in voter
    assert voter[:4] == ["--data", str(tmp_path / "w" / "node-2" / "data"), "--host", "::1"]
    apis = ",".join(f"{n + 1}@127.0.0.1:{first.storage + 10 * n}" for n in range(3))
    assert f"node.peers={apis}" in other
    assert "node.roles=[]" in other


def test_internal_ports_stay_when_the_ports_of_clients_change(tmp_path: Path) -> None:
    free = {"server.port": 0, "server.http_port": 0, "kafka.port": 0}
    before = opened(tmp_path / "w", 2, **free)
    more = opened(tmp_path / "w", 3, **free)
    assert more[:2] == before
    other = ClusterDirectory(str(tmp_path / "free"), nodes=4)
    other.close()
    moved = opened(tmp_path / "w", 3, **free | {"server.port": other.nodes[0].storage})
    assert [one.internal for one in moved] == [one.internal for one in more]
    assert moved[1].storage == other.nodes[0].storage + 10


def test_fewer_workers_are_refused_until_their_directories_are_deleted(tmp_path: Path) -> None:
    free = {"server.port": 0, "server.http_port": 0, "kafka.port": 0}
    opened(tmp_path / "w", 4, **free)
    with pytest.raises(BadRequestError, match="`penstock cluster drain 4` and wait"):
        opened(tmp_path / "w", 3, **free)
    (tmp_path / "w" / "node-4" / "data").rmdir()
    (tmp_path / "w" / "node-4").rmdir()
    with pytest.raises(BadRequestError, match="penstock cluster drain 3"):
        opened(tmp_path / "w", 2, **free)
    assert len(opened(tmp_path / "w", 3, **free)) == 3
    for node in (2, 3):
        (tmp_path / "w" / f"node-{node}" / "data").rmdir()
        (tmp_path / "w" / f"node-{node}").rmdir()
    with pytest.raises(BadRequestError, match="would leave no majority"):
        opened(tmp_path / "w", 1, **free)
    assert len(opened(tmp_path / "w", 2, **free)) == 2


def test_ports_that_two_workers_would_have_are_refused(tmp_path: Path) -> None:
    same = {"server.port": 21_000, "server.http_port": 21_010, "kafka.port": 0}
    with pytest.raises(BadRequestError, match=r"port 21010 would be that of HTTP of worker 1 and"):
        opened(tmp_path / "w", 2, **same)
    high = {"server.port": 65_530, "server.http_port": 0, "kafka.port": 0}
    with pytest.raises(BadRequestError, match="would need port 65540, above 65535"):
        opened(tmp_path / "w", 2, **high)


def test_settings_of_another_cluster_are_refused(tmp_path: Path) -> None:
    for name, value in (("node.id", 2), ("node.peers", ["1@a:1"]), ("node.roles", [])):
        with pytest.raises(SettingsError, match=rf"^{name} is set, and --workers makes a cluster"):
            opened(tmp_path / "w", 2, **{name: value})
    assert not (tmp_path / "w").exists()


def test_directories_of_other_commands_are_refused_with_what_to_do(tmp_path: Path) -> None:
    ClusterDirectory(str(tmp_path / "up"), nodes=2).close()
    with pytest.raises(NotAStoreError, match="was made by `penstock cluster up`"):
        opened(tmp_path / "up", 2)
    node = tmp_path / "node"
    node.mkdir()
    (node / "penstock.lock").touch()
    with pytest.raises(NotAStoreError, match=f"mkdir -p {node}-workers/node-1 && mv {node} "):
        opened(node, 3)
    # What the sentence says to do makes it the directory of worker 1.
    (tmp_path / "node-workers" / "node-1").mkdir(parents=True)
    node.rename(tmp_path / "node-workers" / "node-1" / "data")
    free = {"server.port": 0, "server.http_port": 0, "kafka.port": 0}
    assert len(opened(tmp_path / "node-workers", 3, **free)) == 3
    with pytest.raises(NotAStoreError, match="was made by `penstock serve --workers`"):
        ClusterDirectory(str(tmp_path / "node-workers"))


def test_the_other_workers_stop_when_one_cannot_start(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    (directory / "node-1").mkdir(parents=True)
    (directory / "node-1" / "data").write_text("not a directory")
    with serving(directory, 1) as up:
        assert up.process.wait(WAIT_S) == 2
        up._reader.join(WAIT_S)
    assert "node 1 ended with exit code 2 before the cluster was ready" in up.output
    assert "is not a directory" in up.output
