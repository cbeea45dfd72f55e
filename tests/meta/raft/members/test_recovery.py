"""A majority is lost for good: one survivor becomes the only member of a new cluster."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from tests.meta.raft.cluster_in_process import ClusterInProcess, wait_until
from tests.meta.raft.random_history import RandomHistory
from tests.meta.raft.simulated_cluster import GROUPS
from typer.testing import CliRunner

from penstock.cli import build
from penstock.meta.raft.group.load import load_group
from penstock.meta.raft.members.recovery import look_ahead, make_alone, recover
from penstock.meta.raft.network.credentials import draw_incarnation
from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.database import Batch, RocksDatabase

pytest.importorskip("penstock._native", reason="a cluster needs the extension")


@pytest.mark.parametrize("seed", range(20))
def test_a_survivor_goes_on_alone_with_all_that_had_reached_it(seed: int) -> None:
    cluster = RandomHistory(seed).play(ticks=60)
    leader = cluster.leader(0)
    assert leader is not None
    survivor = leader if seed % 2 else cluster.nodes[1 + seed % len(cluster.nodes)]
    if survivor is leader:
        # What it appends from now on is in its log alone, and not committed.
        others = [node for node in cluster.nodes if node != survivor.node_id]
        cluster.cut_links |= {(survivor.node_id, other) for other in others}
    for group in range(cluster.group_count):
        asked = cluster.leader(group)
        if asked is not None:
            cluster.change(asked.node_id, group, (0, 9))
            cluster.append(asked.node_id, group)
    cluster.run(1 + seed % 3)
    for node in list(cluster.nodes.values()):
        node.kill(0 if node is survivor else 1 << 30)
    for name in GROUPS[: cluster.group_count]:
        found = load_group(survivor.database, name)
        batch = Batch()
        make_alone(batch, name, found, survivor.node_id)
        survivor.database.write(batch)
    survivor.database.sync()
    # It is another cluster: nothing that was seen of the old one binds it.
    cluster.nodes = {survivor.node_id: survivor}
    cluster._in_flight.clear()
    cluster.states.clear()
    cluster._seen.clear()
    survivor.start()
    assert survivor.multi is not None
    survivor.multi.lead_alone()
    cluster.run_until(
        lambda: all(group.is_leader and group.is_alone for group in survivor.groups), 100
    )
    before = [set(survivor.values(group)) for group in range(cluster.group_count)]
    for group in range(cluster.group_count):
        cluster.acknowledged[group] = {}
    cluster.check_settled((survivor.node_id,))
    for group, values in enumerate(before):
        assert values < set(survivor.values(group))


def draw() -> tuple[str, bytes]:
    return draw_incarnation(1_000, os.urandom)


def test_two_of_three_nodes_are_lost_and_new_ones_join_the_third(tmp_path: Path) -> None:
    with ClusterInProcess(tmp_path, secrets=()) as cluster:
        cluster.start_all()
        cluster.clients[2].create_topic("orders")
        wait_until(lambda: cluster.clients[3].get_topic("orders") is not None, "it is known")
        old_id = cluster.clients[3].node.identity.cluster_id
        for node in (1, 2, 3):
            cluster.stop(node)
        with closing(RocksDatabase.open(str(tmp_path / "node-3"), fmt.FAMILIES)) as database:
            outlook = look_ahead(database)
            assert {one.node_id for one in outlook.members} == {1, 2}
            assert [group.name for group in outlook.groups] == ["metadata", "offset-0"]
            assert all(group.dropped == (1, 2) for group in outlook.groups)
            assert all(group.applied <= group.last for group in outlook.groups)
            new_id = recover(database, draw=draw, now_ms=1_000)
        assert new_id != old_id
        survivor = cluster.start(3)
        cluster.wait_for_voters({3})
        assert survivor.get_topic("orders") is not None
        survivor.create_topic("later")
        wait_until(lambda: [one.node_id for one in survivor.members] == [3], "others are gone")
        # A lost node comes back with what it had: it is not believed, and elects nobody.
        cluster.start(1)
        survivor.create_topic("unharmed")
        assert {one.node_id for one in survivor.members} == {3}
        cluster.stop(1)
        shutil.rmtree(tmp_path / "node-1")
        cluster.start(1)
        cluster.wait_for_voters({1, 3})
        assert cluster.clients[1].get_topic("later") is not None


def test_the_command_says_what_is_lost_and_asks(tmp_path: Path) -> None:
    with ClusterInProcess(tmp_path) as cluster:
        cluster.start_all()
    (tmp_path / "data").mkdir()
    shutil.move(tmp_path / "node-2", tmp_path / "data" / "meta")
    data = str(tmp_path / "data")

    def run(*arguments: str, answer: str = "") -> tuple[int, str]:
        result = CliRunner().invoke(build(), ["cluster", "recover", *arguments], input=answer)
        return result.exit_code, f"{result.output}{result.exception or ''}"

    code, said = run("--data", data)
    assert code != 0
    assert "--force-new-cluster" in said
    code, said = run("--data", data, "--force-new-cluster", answer="n\n")
    assert code != 0
    assert "member 1 at 127.0.0.1:" in said
    assert "entries without a known commit; drops nodes 1, 3" in said
    code, said = run("--data", data, "--force-new-cluster", "--yes")
    assert code == 0
    assert "node 2 is the only member of the new cluster" in said
    code, said = run("--data", data, "--force-new-cluster", "--yes")
    assert code != 0
    assert "node 2 is the only member already" in said
    code, said = run("--data", str(tmp_path / "nowhere"), "--force-new-cluster", "--yes")
    assert code != 0
    assert "is not the data directory of a node" in said
