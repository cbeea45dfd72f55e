"""Closing a store of coroutines: once, for all who ask, and typed errors from then on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.api.conftest import KINDS

import penstock
from penstock import Store, aio
from penstock.errors import ClosedError, DiskFullError
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, merge_settings


async def use_closed(store: aio.AsyncStore) -> None:
    topics = [await store.create_topic(kind, storage=kind) for kind in KINDS]
    await asyncio.gather(*(topic.write(b"v", partition=0) for topic in topics))
    consumer = store.consumer("g", KINDS)
    await consumer.positions()
    await store.close()
    await store.close()
    calls: list[Callable[[], Awaitable[object]]] = [
        store.topics,
        store.groups,
        store.run_upkeep,
        store.namespace("other").topics,
        consumer.poll,
        lambda: consumer.poll(1.0),
        consumer.commit,
        consumer.lag,
        store.consumer("g", "memory").poll,
    ]
    for topic in topics:
        # Of each kind of write: at once, alone, and many.
        calls += [topic.read, topic.describe, lambda topic=topic: topic.write(b"v")]  # type: ignore[misc] # as its default says
        calls += [lambda topic=topic: topic.write(b"v" * (1 << 20))]  # type: ignore[misc] # as above
        calls += [lambda topic=topic: topic.write_many([b"v"])]  # type: ignore[misc] # as above
    for call in calls:
        with pytest.raises(ClosedError):
            await call()
    await consumer.close()


def test_calls_after_the_end_say_that_the_store_is_closed(directory: Path) -> None:
    async def main() -> None:
        await use_closed(await aio.open(directory))

    asyncio.run(main())


def test_calls_after_the_end_of_a_connection_say_so(directory: Path) -> None:
    async def main(port: int) -> None:
        await use_closed(await aio.connect(f"127.0.0.1:{port}"))

    ports = {"kafka": {"enabled": False}, "server": {"port": 0, "http_port": 0}}
    with Server(str(directory), merge_settings(EMBEDDED, ports)) as server:
        asyncio.run(main(server.port))


def test_a_store_may_be_closed_within_its_block(directory: Path) -> None:
    async def main() -> None:
        async with await aio.open(directory) as store:
            await store.namespace("other").close()
        async with await aio.open(directory) as store:
            await store.close()

    asyncio.run(main())


class SlowToClose(Store):
    """Closes when it may, and counts how often."""

    def __init__(self, store: Store) -> None:
        super().__init__(store._backend)
        self.may_close = threading.Event()
        self.closed = 0

    def close(self) -> None:
        self.may_close.wait(60)
        self.closed += 1
        super().close()


def test_all_who_close_wait_for_the_one_end(directory: Path) -> None:
    slow = SlowToClose(penstock.open(directory))

    async def main() -> None:
        store = aio.AsyncStore(slow)
        closing = [asyncio.create_task(store.close()) for _ in range(3)]
        await asyncio.sleep(0)
        closing[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing[0]
        assert not closing[1].done()
        with pytest.raises(ClosedError):
            await store.topics()
        slow.may_close.set()
        await asyncio.gather(*closing[1:])
        await store.close()

    asyncio.run(main())
    assert slow.closed == 1


def test_a_failure_to_close_is_told_to_all(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = penstock.open(directory)

    def fail() -> None:
        raise DiskFullError("no space left")

    async def main() -> None:
        store = aio.AsyncStore(opened)
        with monkeypatch.context() as patch:
            patch.setattr(opened, "close", fail)
            outcomes = await asyncio.gather(store.close(), store.close(), return_exceptions=True)
        assert [type(one) for one in outcomes] == [DiskFullError, DiskFullError]

    asyncio.run(main())
    opened.close()
