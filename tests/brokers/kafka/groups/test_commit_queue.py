"""Commits of Kafka clients: durable when they are answered, and many in one call of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar, cast

import pytest
from kio.schema.errors import ErrorCode
from tests.brokers.kafka.running import Running, WireClient, running

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.groups import commit_queue
from penstock.brokers.kafka.groups.commit_queue import CommitQueue
from penstock.errors import BusyError, DeadlineError, StoreError
from penstock.offsets.strategy import GroupCommit, OffsetCommit
from penstock.record import Offset

T = TypeVar("T")


def commit_of(group: str, offset: int) -> GroupCommit:
    return GroupCommit("default", group, {"t_0": OffsetCommit(Offset(offset))})


class SlowStore:
    """A broker whose store takes a commit when a test lets it."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.may_store = asyncio.Event()
        self.rejection: dict[str, StoreError] = {}
        self.failure: StoreError | None = None
        self.offsets = SimpleNamespace(commit_groups=self._commit_groups)
        self._tasks: set[asyncio.Task[None]] = set()

    def _commit_groups(self, commits: list[GroupCommit]) -> list[StoreError | None]:
        self.calls.append([one.group for one in commits])
        if self.failure is not None:
            raise self.failure
        return [self.rejection.get(one.group) for one in commits]

    async def run_blocking(self, call: Callable[[], T]) -> T:
        await self.may_store.wait()
        return call()

    def spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        return task


def play(script: Callable[[SlowStore, CommitQueue], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        store = SlowStore()
        await asyncio.wait_for(script(store, CommitQueue(cast("KafkaBroker", store))), 30)

    asyncio.run(run())


def test_commits_that_wait_at_the_same_moment_go_in_one_call() -> None:
    async def script(store: SlowStore, queue: CommitQueue) -> None:
        first = asyncio.create_task(queue.commit(commit_of("first", 1)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        others = [asyncio.create_task(queue.commit(commit_of(f"g{n}", n))) for n in range(50)]
        await asyncio.sleep(0)
        store.may_store.set()
        await asyncio.gather(first, *others)
        assert store.calls == [["first"], [f"g{number}" for number in range(50)]]
        await queue.commit(commit_of("later", 1))
        assert store.calls[-1] == ["later"], "the queue begins again"

    play(script)


def test_one_refused_commit_fails_alone_and_a_failed_call_fails_all() -> None:
    async def script(store: SlowStore, queue: CommitQueue) -> None:
        store.may_store.set()
        store.rejection["b"] = DeadlineError("not this one")
        works = [queue.commit(commit_of(name, 1)) for name in "abc"]
        outcomes = await asyncio.gather(*works, return_exceptions=True)
        assert [type(one) for one in outcomes] == [type(None), DeadlineError, type(None)]
        store.failure = DeadlineError("none of them")
        works = [queue.commit(commit_of(name, 1)) for name in "abc"]
        outcomes = await asyncio.gather(*works, return_exceptions=True)
        assert [type(one) for one in outcomes] == [DeadlineError] * 3

    play(script)


def test_a_client_that_goes_away_does_not_take_the_commits_of_others_along() -> None:
    async def script(store: SlowStore, queue: CommitQueue) -> None:
        gone = asyncio.create_task(queue.commit(commit_of("gone", 1)))
        stays = asyncio.create_task(queue.commit(commit_of("stays", 1)))
        await asyncio.sleep(0)
        gone.cancel()
        store.may_store.set()
        await stays
        assert [name for call in store.calls for name in call] == ["gone", "stays"]

    play(script)


def test_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_queue, "WAITING_MAX", 3)
    monkeypatch.setattr(commit_queue, "TOGETHER_MAX", 2)

    async def script(store: SlowStore, queue: CommitQueue) -> None:
        waiting = [asyncio.create_task(queue.commit(commit_of(f"g{n}", n))) for n in range(3)]
        await asyncio.sleep(0)
        waiting += [asyncio.create_task(queue.commit(commit_of(f"h{n}", n))) for n in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="limit 3"):
            await queue.commit(commit_of("one too many", 1))
        store.may_store.set()
        await asyncio.gather(*waiting)
        assert max(len(call) for call in store.calls) == 2

    play(script)


def commit(server: Running, offset: int) -> ErrorCode:
    partition = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    with WireClient(server.server.port) as client:
        response = client.ask(
            8,
            7,
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=[{"name": "orders", "partitions": [partition]}],
        )
    (topic,) = response.items_of("topics")
    (found,) = topic.items_of("partitions")
    return ErrorCode(found.number("error_code"))


SLOW = {"offsets.flush_interval_ms": 3_600_000}


def saved(server: Running) -> int | None:
    """What the meta service has, whatever waits in the cache."""
    found = server.node.meta.get_offsets("default", "g")
    return next((one.offset for one in found.values()), None)


def test_a_commit_of_a_kafka_client_is_in_the_meta_service_when_it_is_answered(
    data_path: Path,
) -> None:
    with running(data_path, store=SLOW) as server:
        server.node.admin.create_topic_full("orders", 1, {})
        for offset in (5, 9, 3):
            assert commit(server, offset) is ErrorCode.none
            assert saved(server) == offset
        assert server.node.offset_manager.cache.pending_count == 0


def test_the_cache_can_be_chosen_for_kafka_clients(data_path: Path) -> None:
    with running(data_path, {"offsets_cached": True}, store=SLOW) as server:
        server.node.admin.create_topic_full("orders", 1, {})
        assert commit(server, 5) is ErrorCode.none
        assert saved(server) is None
        assert server.node.offset_manager.cache.pending_count == 1
