"""Coroutines write at once where nothing is waited for; otherwise those that write at the same time
share a call, and each gets its own answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

import penstock
from penstock import aio
from penstock.adapter.topics.options import TopicOptions
from penstock.aio import write_coalescing
from penstock.aio.thread_pool import CALLS, CallExecutor
from penstock.errors import ClosedError, RecordTooLargeError, UnknownTopicError
from penstock.record import Location

pytestmark = pytest.mark.timeout(300)

P = ParamSpec("P")
R = TypeVar("R")
PATIENCE_S = 120


class CountedCalls(CallExecutor):
    """Counts the calls, and can hold them up."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.gate = threading.Event()

    async def run(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        self.count += 1
        return await super().run(call, *arguments, **named)

    async def block(self) -> list[asyncio.Future[bool]]:
        """Make all threads wait for the gate."""
        loop = asyncio.get_running_loop()
        begun = threading.Semaphore(0)

        def wait() -> bool:
            begun.release()
            return self.gate.wait(PATIENCE_S)

        waits = [loop.run_in_executor(self._calls, wait) for _ in range(CALLS)]
        for _ in waits:
            await asyncio.to_thread(begun.acquire)
        return waits


def run(path: Path, use: Callable[[aio.AsyncStore, CountedCalls], Awaitable[None]]) -> None:
    async def main() -> None:
        calls = CountedCalls()
        async with aio.AsyncStore(penstock.open(path / "data"), calls) as store:
            await use(store, calls)

    asyncio.run(main())


def test_writes_of_one_moment_are_one_call_and_keep_their_order(tmp_path: Path) -> None:
    async def use(store: aio.AsyncStore, calls: CountedCalls) -> None:
        topic = await store.create_topic("t", flush="sync")
        before = calls.count
        found = await asyncio.gather(*(topic.write(b"%d" % n) for n in range(500)))
        assert calls.count == before + 1
        assert found == [(0, n) for n in range(500)]
        assert [m.value async for m in topic] == [b"%d" % n for n in range(500)]

    run(tmp_path, use)


def test_each_write_learns_where_its_own_record_went(tmp_path: Path) -> None:
    async def use(store: aio.AsyncStore, _: CountedCalls) -> None:
        topic = await store.create_topic("t", partitions=3)
        named = await store.create_topic("named", partitions=3)

        async def write(writer: int) -> None:
            for number in range(40):
                value = b"%d-%d" % (writer, number)
                place = await topic.write(value, key=b"k")
                assert (await topic.read(place.partition, place.offset))[0].value == value
                place = await named.write(value, partition=writer % 3)
                assert place.partition == writer % 3
                assert (await named.read(place.partition, place.offset))[0].value == value

        await asyncio.gather(*(write(writer) for writer in range(12)))
        assert (await topic.describe()).records == (await named.describe()).records == 480

    run(tmp_path, use)


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_record_that_is_refused_does_not_hurt_the_others(tmp_path: Path, partitions: int) -> None:
    async def use(store: aio.AsyncStore, _: CountedCalls) -> None:
        topic = await store.create_topic("t", partitions=partitions)
        values = [b"%d" % n for n in range(20)]
        values[7] = bytes(64 << 20)
        answers = await asyncio.gather(*map(topic.write, values), return_exceptions=True)
        assert isinstance(answers[7], RecordTooLargeError)
        assert sum(isinstance(one, Location) for one in answers) == 19
        written = sorted([m.value or b"" async for m in topic])
        assert written == sorted(values[:7] + values[8:])

    run(tmp_path, use)


def test_everybody_hears_that_the_topic_or_the_store_is_gone(tmp_path: Path) -> None:
    async def use(store: aio.AsyncStore, _: CountedCalls) -> None:
        nowhere = store.topic("nowhere")
        topic = await store.create_topic("t")
        answers = await asyncio.gather(
            *(nowhere.write(b"v") for _ in range(5)), return_exceptions=True
        )
        assert {type(one) for one in answers} == {UnknownTopicError}
        store._target.close()
        answers = await asyncio.gather(
            *(topic.write(b"v") for _ in range(5)), return_exceptions=True
        )
        assert {type(one) for one in answers} == {ClosedError}

    run(tmp_path, use)


def test_a_write_that_is_cancelled_before_its_turn_is_not_written(tmp_path: Path) -> None:
    async def use(store: aio.AsyncStore, calls: CountedCalls) -> None:
        topic = await store.create_topic("t", flush="sync")
        blocked = await calls.block()
        first = asyncio.create_task(topic.write(b"first"))
        await asyncio.sleep(0.01)  # its group is on its way, behind a closed gate
        second, third = (asyncio.create_task(topic.write(v)) for v in (b"second", b"third"))
        await asyncio.sleep(0.01)
        second.cancel()
        calls.gate.set()
        await asyncio.gather(*blocked)
        assert [await first, await third] == [(0, 0), (0, 1)]
        assert [m.value async for m in topic] == [b"first", b"third"]
        assert not store._writes._lanes

    run(tmp_path, use)


def test_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_coalescing, "SIZE_MAX", 10_000)
    monkeypatch.setattr(write_coalescing, "RECORDS_MAX", 6)

    async def use(store: aio.AsyncStore, calls: CountedCalls) -> None:
        topic = await store.create_topic("t", flush="sync")
        before = calls.count
        sizes = [4_000] * 5 + [50_000] + [1] * 10  # 2, 2, 1, 1, 6, 4
        found = await asyncio.gather(*(topic.write(bytes(size)) for size in sizes))
        assert calls.count == before + 6
        assert [place.offset for place in found] == list(range(16))

    run(tmp_path, use)


def test_a_loop_that_ends_leaves_nobody_waiting(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data") as store:
        store.create_topic("t", flush="sync")
        outcomes: list[str] = []

        async def write(topic: aio.AsyncTopic) -> None:
            try:
                await topic.write(b"v")
            except asyncio.CancelledError:
                outcomes.append("cancelled")
                raise

        async def main() -> None:
            calls = CountedCalls()
            blocked = await calls.block()
            topic = aio.AsyncStore(store, calls).topic("t")
            tasks = [asyncio.create_task(write(topic)) for _ in range(3)]
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in tasks)
            calls.gate.set()
            del blocked

        asyncio.run(main())
        assert len(outcomes) + store.topic("t").describe().records >= 3


@pytest.mark.parametrize("storage", ["segment", "memory"])
def test_a_write_that_waits_for_nothing_needs_no_thread(tmp_path: Path, storage: str) -> None:
    async def use(store: aio.AsyncStore, calls: CountedCalls) -> None:
        topic = await store.create_topic("t", storage=storage, partitions=2)
        await topic.write_many([b"opens both"] * 2)
        blocked = await calls.block()
        found = [await topic.write(b"%d" % n, partition=1) for n in range(100)]
        assert found == [(1, n + 1) for n in range(100)]
        spread = await asyncio.gather(*(topic.write(b"any") for _ in range(10)))
        assert sorted(place.partition for place in spread) == [0] * 5 + [1] * 5
        calls.gate.set()
        await asyncio.gather(*blocked)
        assert [m.value async for m in topic.records(1, start=1)][:100] == [
            b"%d" % n for n in range(100)
        ]

    run(tmp_path, use)


@pytest.mark.parametrize(
    "options", [TopicOptions(flush="sync"), TopicOptions(storage="rocksdb")], ids=str
)
def test_a_write_that_waits_for_a_device_never_holds_up_the_loop(
    tmp_path: Path, options: TopicOptions
) -> None:
    async def use(store: aio.AsyncStore, calls: CountedCalls) -> None:
        topic = await store.create_topic("t", **options)
        await topic.write(b"opens it")
        blocked = await calls.block()
        waiting = asyncio.create_task(topic.write(b"v"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        calls.gate.set()
        await asyncio.gather(*blocked)
        assert await waiting == (0, 1)

    run(tmp_path, use)


def test_a_write_at_once_does_not_go_past_one_that_waits(tmp_path: Path) -> None:
    async def use(store: aio.AsyncStore, calls: CountedCalls) -> None:
        topic = await store.create_topic("t")
        await topic.write(b"opens it")
        blocked = await calls.block()
        large = asyncio.create_task(topic.write(bytes(1 << 20)))
        await asyncio.sleep(0)
        small = asyncio.create_task(topic.write(b"small"))
        await asyncio.sleep(0.05)
        assert not large.done()
        assert not small.done()
        calls.gate.set()
        await asyncio.gather(*blocked)
        assert [await large, await small] == [(0, 1), (0, 2)]

    run(tmp_path, use)


def test_a_coroutine_that_only_writes_lets_the_others_run(tmp_path: Path) -> None:
    async def use(store: aio.AsyncStore, _: CountedCalls) -> None:
        topic = await store.create_topic("t")
        await topic.write(b"opens it")
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(count())
        for _n in range(10 * write_coalescing.RUN_MAX):
            await topic.write(b"v")
        assert turns >= 9
        other.cancel()

    run(tmp_path, use)
