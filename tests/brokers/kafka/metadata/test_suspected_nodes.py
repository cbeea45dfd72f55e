"""Clients are not sent to a leader whose process has just ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

from kio.schema.errors import ErrorCode
from tests.brokers.kafka.metadata.test_cluster_view import node, view

from penstock.adapter.topics import build_storage_name
from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.metadata import suspected_nodes
from penstock.brokers.kafka.metadata.handler import ClusterDescriber
from penstock.brokers.kafka.metadata.suspected_nodes import Probe, SuspectedNodes
from penstock.errors import ClosedError
from penstock.meta import Topic
from penstock.testing.manual_clock import ManualClock

LIMIT_S = 60


class Network:
    """Other nodes, whose ports a test answers for."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.lose: Callable[[int], None] = lambda _node: None
        self.tried = asyncio.Semaphore(0)
        self._answers: asyncio.Queue[Probe | ClosedError] = asyncio.Queue()

    def watch_connections(self, on_lost: Callable[[int], None]) -> None:
        self.lose = on_lost

    def probe(self, node_id: int) -> Probe:
        assert node_id == 2
        return "up"

    async def run_blocking(self, probe: Callable[[], Probe]) -> Probe:
        probe()
        self.tried.release()
        answer = await self._answers.get()
        if isinstance(answer, ClosedError):
            raise answer
        return answer

    async def answer(self, answer: Probe | ClosedError) -> None:
        """Wait for the next attempt, and answer it."""
        await asyncio.wait_for(self.tried.acquire(), LIMIT_S)
        self._answers.put_nowait(answer)


@asynccontextmanager
async def suspecting(network: Network) -> AsyncIterator[SuspectedNodes]:
    suspected = SuspectedNodes(network, network.clock, network.run_blocking)
    watching = asyncio.create_task(suspected.watch())
    try:
        yield suspected
    finally:
        watching.cancel()
        await asyncio.wait([watching], timeout=LIMIT_S)


async def _until_cleared(suspected: SuspectedNodes) -> None:
    end = time.monotonic() + LIMIT_S
    while 2 in suspected:
        assert time.monotonic() < end
        await asyncio.sleep(0.001)


def test_a_node_is_suspected_from_the_lost_connection_until_its_port_accepts() -> None:
    async def check() -> None:
        network = Network()
        async with suspecting(network) as suspected:
            assert 2 not in suspected
            network.lose(2)
            assert 2 in suspected
            assert 3 not in suspected
            for _ in range(3):
                await network.answer("refused")
                assert 2 in suspected
            await network.answer("up")
            await _until_cleared(suspected)

    asyncio.run(check())


def test_a_node_that_is_only_silent_is_left_to_the_controller() -> None:
    async def check() -> None:
        network = Network()
        async with suspecting(network) as suspected:
            answers: tuple[Probe | ClosedError, ...] = ("silent", ClosedError("it stops"))
            for answer in answers:
                network.lose(2)
                await network.answer(answer)
                await _until_cleared(suspected)

    asyncio.run(check())


def test_a_suspicion_ends_although_the_port_refuses() -> None:
    async def check() -> None:
        network = Network()
        async with suspecting(network) as suspected:
            network.lose(2)
            await network.answer("refused")
            network.clock.advance(suspected_nodes.SUSPECTED_S)
            assert 2 not in suspected
            # Another loss is another suspicion, which is looked at again.
            network.lose(2)
            assert 2 in suspected
            await network.answer("up")
            await _until_cleared(suspected)

    asyncio.run(check())


def test_an_attempt_that_is_older_than_the_last_lost_connection_proves_nothing() -> None:
    async def check() -> None:
        network = Network()
        async with suspecting(network) as suspected:
            network.lose(2)
            await asyncio.wait_for(network.tried.acquire(), LIMIT_S)
            network.clock.advance(0.001)
            network.lose(2)
            network.tried.release()
            await network.answer("up")  # to the first attempt
            await network.answer("refused")
            assert 2 in suspected

    asyncio.run(check())


def test_metadata_names_no_leader_in_place_of_a_suspected_one() -> None:
    cluster = view(1, [node(number, {"kafka": f"n{number}:9092"}) for number in (1, 2)])
    shard = SimpleNamespace(
        leader=2, leader_epoch=7, replicas=(1, 2), in_sync=(1, 2), eligible=(), last_leader=None
    )
    shards = {build_storage_name("id", 0): SimpleNamespace(meta=shard)}
    broker = SimpleNamespace(
        settings=SimpleNamespace(auto_create_rate=1),
        clock=ManualClock(),
        drivers=SimpleNamespace(storage_cache=SimpleNamespace(shards=shards)),
    )
    suspected: set[int] = set()
    describer = ClusterDescriber(cast("KafkaBroker", broker), cluster, suspected)
    topic = cast("Topic", SimpleNamespace(topic_id="id"))
    found = describer.describe_partition(topic, 0)
    assert (found["leader_id"], found["error_code"]) == (2, ErrorCode.none)
    suspected.add(2)
    found = describer.describe_partition(topic, 0)
    assert (found["leader_id"], found["leader_epoch"]) == (-1, 7)
    assert found["error_code"] == ErrorCode.leader_not_available
