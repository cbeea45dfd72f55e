"""A cluster as a table and a sink: through any of its nodes, whichever leads a partition."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession
from tests.free_ports import free_ports
from tests.meta.raft.cluster_in_process import wait_until

import penstock
from penstock import Store
from penstock.errors import RetryableError
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED

pytest.importorskip("penstock._native", reason="a cluster needs the extension")

NODES = (1, 2)
PARTITIONS = 4
ROWS = 2_000


@pytest.fixture
def addresses(tmp_path: Path) -> Iterator[list[str]]:
    """Two servers in this process that are one cluster."""
    peers = tuple(
        f"{node}@127.0.0.1:{port}" for node, port in zip(NODES, free_ports(2), strict=True)
    )

    def start(node: int) -> Server:
        settings = replace(
            EMBEDDED,
            node=replace(EMBEDDED.node, id=node, peers=peers),
            server=replace(EMBEDDED.server, port=0, http_port=0),
            kafka=replace(EMBEDDED.kafka, enabled=False),
        )
        return Server(str(tmp_path / str(node)), settings)

    with ThreadPoolExecutor(len(NODES)) as pool, ExitStack() as stack:
        # Neither comes up without the other.
        servers = [stack.enter_context(server) for server in pool.map(start, NODES)]
        yield [f"127.0.0.1:{server.port}" for server in servers]


def topic_of_both(store: Store) -> str:
    """Return a new topic of which each node leads partitions: there are none before both serve."""
    names = (f"numbers-{number}" for number in count())
    found: list[str] = []

    def made() -> bool:
        try:
            topic = store.create_topic(next(names), partitions=PARTITIONS)
            leaders = {one.leader for one in topic.describe().bounded}
        except RetryableError:
            return False
        found.append(topic.name)
        return leaders == {*NODES}

    wait_until(made, "both nodes lead partitions")
    return found[-1]


@pytest.mark.timeout(600)
def test_a_cluster_is_written_and_read_through_any_of_its_nodes(
    spark: SparkSession, addresses: list[str], tmp_path: Path
) -> None:
    with penstock.connect(addresses[0]) as store:
        topic = topic_of_both(store)
    with penstock.connect(addresses[1]) as store:
        wait_until(lambda: topic in store.topics(), "the other node knows it")
    rows = spark.range(ROWS).selectExpr("cast(id as string) value", "cast(id % 50 as string) key")
    writer = rows.write.format("penstock").mode("append").option("endpoint", addresses[0])
    writer.option("topic", topic).option("stagingPath", str(tmp_path / "staging")).save()
    for address in addresses:
        reader = spark.read.format("penstock").option("endpoint", address)
        found = reader.option("subscribe", topic).load().select("partition", "value").collect()
        assert sorted(int(row.value) for row in found) == [*range(ROWS)]
        assert {row.partition for row in found} == {*range(PARTITIONS)}
        assert reader.option("key", "7").load().count() == ROWS // 50
