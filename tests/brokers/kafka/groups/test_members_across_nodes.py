"""Members of one group that are connected to different nodes of a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.brokers.kafka.transactions.test_transactions_across_nodes import NODES, TwoNodes
from tests.engine.quick_directory import quick_directory

import penstock
from penstock.api import Store
from penstock.errors import GroupFencedError, GroupNotEmptyError
from penstock.remote.server import node_server as serving

pytestmark = pytest.mark.timeout(600)
WAIT_S = 60.0


@pytest.fixture(scope="module")
def stores() -> Iterator[dict[int, Store]]:
    with quick_directory() as directory:
        nodes = TwoNodes(Path(directory))
        opened = {node: penstock.connect(f"127.0.0.1:{nodes.servers[node].port}") for node in NODES}
        yield opened
        for store in opened.values():
            store.close()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(serving, "LEAVE_S", 0.01)
            nodes.close()


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.mark.parametrize("group", ["g0", "g1", "g2", "g3"])
def test_members_at_different_nodes_share_a_group(stores: dict[int, Store], group: str) -> None:
    """Whichever node coordinates it: of four names each has some."""
    topic = f"work-{group}"
    work = stores[1].create_topic(topic, partitions=4)
    work.write_many([b"%d" % number for number in range(40)])
    until(lambda: topic in stores[2])
    with (
        stores[1].consumer(group, [topic]) as a,
        stores[2].consumer(group, [topic]) as b,
    ):
        found: list[int] = []

        def shared() -> bool:
            found.extend(int(one.value or b"") for member in (a, b) for one in member.poll(0.1))
            return len(a.positions) == len(b.positions) == 2 and len(found) >= 40

        until(shared)
        assert set(found) == set(range(40))
        a.commit()
        b.commit()
        with pytest.raises(GroupFencedError):
            a.commit({next(iter(b.positions)): 1})
        for store in stores.values():
            assert len(store.describe_group(group).members) == 2
            with pytest.raises(GroupNotEmptyError):
                store.reset_group(group, {(topic, 0): 0})
            with pytest.raises(GroupNotEmptyError):
                store.delete_group(group)
    for store in stores.values():
        assert store.describe_group(group).state == "Empty"
