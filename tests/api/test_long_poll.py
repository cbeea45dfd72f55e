"""Waiting for records: for as long as a number can say, and for ever."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import penstock
from penstock import Store, aio
from penstock.api.long_poll import wait_for_records
from penstock.platform import clock
from penstock.platform.clock import SystemClock
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, merge_settings
from penstock.testing import ManualClock

HUGE: Final = (math.inf, 1e10, 1e300, 10**400)


@pytest.fixture(params=["embedded", "remote"])
def store(request: pytest.FixtureRequest, directory: Path) -> Iterator[Store]:
    if request.param == "embedded":
        with penstock.open(directory) as store:
            yield store
        return
    ports = {"kafka": {"enabled": False}, "server": {"port": 0, "http_port": 0}}
    with (
        Server(str(directory), merge_settings(EMBEDDED, ports)) as server,
        penstock.connect(f"127.0.0.1:{server.port}", deadline_s=math.inf) as store,
    ):
        yield store


def test_no_time_to_wait_is_too_long(store: Store) -> None:
    topic = store.create_topic("t")
    consumer = store.consumer("g", ["t"])

    def later() -> threading.Timer:
        writer = threading.Timer(0.02, topic.write, [b"now"])
        writer.start()
        return writer

    for seconds in HUGE:
        writer = later()
        page = consumer.poll(seconds)
        writer.join()
        assert [message.value for message in page] == [b"now"]
        writer = later()
        assert topic.wait({0: page[-1].offset + 1}, seconds=seconds)
        writer.join()
        consumer.seek_to("latest")


def test_coroutines_may_wait_for_ever(store: Store) -> None:
    async def main() -> None:
        coroutines = aio.AsyncStore(store)
        topic = await coroutines.create_topic("t")
        consumer = coroutines.consumer("g", "t")
        for number, seconds in enumerate(HUGE):
            polling = asyncio.create_task(consumer.poll(seconds))
            waiting = asyncio.create_task(topic.wait({0: number}, seconds=seconds))
            await asyncio.sleep(0.02)
            await topic.write(b"now")
            assert len(await polling) == 1
            assert await waiting
        following = consumer.follow(math.inf)
        await topic.write(b"next")
        async for message in following:
            assert message.value == b"next"
            break

    asyncio.run(main())


def test_following_may_have_any_timeout(store: Store) -> None:
    store.create_topic("t").write(b"v")
    for number, seconds in enumerate(HUGE):
        consumer = store.consumer(f"g{number}", ["t"])
        assert next(consumer.follow(seconds)).value == b"v"


class Slices:
    """A backend whose waits are short."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.waits: list[float] = []

    def wait_for_records(self, positions: object, seconds: float, *, namespace: str) -> bool:
        self.waits.append(seconds)
        self.clock.advance(min(seconds, 4.0))
        return len(self.waits) == 100


def test_a_long_wait_is_made_of_short_ones_and_as_long_as_was_asked_for() -> None:
    clock = ManualClock()
    backend = Slices(clock)
    assert not wait_for_records(backend, "n", {}, 13.0, clock)  # type: ignore[arg-type] # the one method
    assert backend.waits == [10.0, 9.0, 5.0, 1.0]
    backend.waits.clear()
    assert not wait_for_records(backend, "n", {}, -1.0, clock)  # type: ignore[arg-type] # as above
    assert backend.waits == [0.0]
    assert wait_for_records(backend, "n", {}, math.inf, clock)  # type: ignore[arg-type] # as above


def test_the_systems_clock_waits_for_any_number_of_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds in (math.inf, 1e10, 1e300):
        woken = threading.Event()
        waker = threading.Timer(0.02, woken.set)
        waker.start()
        assert SystemClock().wait(woken, seconds)
        waker.join()
    monkeypatch.setattr(clock, "_WAIT_S_MAX", 0.001)
    assert not SystemClock().wait(threading.Event(), 0.01)
