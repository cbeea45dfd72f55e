"""The batches of a Produce request that wait for replicas."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.brokers.kafka.produce import pending_commits
from penstock.brokers.kafka.produce.pending_commits import PendingCommits
from penstock.engine.contract import Acks
from penstock.errors import DeadlineError, NotLeaderError, StoreError


def test_a_request_is_answered_when_the_last_of_its_batches_is_committed() -> None:
    async def run() -> tuple[bool, dict[int, StoreError]]:
        commits = PendingCommits(-1)
        done = [commits.commit_of(index).on_committed for index in (0, 1)]
        waiting = asyncio.create_task(commits.wait())
        assert done[0] is not None
        assert done[1] is not None
        done[0](None)
        await asyncio.sleep(0.01)
        was_early = waiting.done()
        threading.Thread(target=done[1], args=(None,)).start()
        return was_early, await waiting

    assert asyncio.run(run()) == (False, {})


def test_an_error_of_one_batch_is_reported_at_its_place() -> None:
    error = NotLeaderError("orders_0", leader="2")

    async def run() -> dict[int, StoreError]:
        commits = PendingCommits(-1)
        first, second = (commits.commit_of(index).on_committed for index in (0, 1))
        assert first is not None
        assert second is not None
        second(error)
        first(None)
        return await commits.wait()

    assert asyncio.run(run()) == {1: error}


def test_a_batch_that_was_not_written_is_not_waited_for() -> None:
    async def run() -> dict[int, StoreError]:
        commits = PendingCommits(-1)
        commits.commit_of(0)
        commits.drop(0)
        return await commits.wait()

    assert asyncio.run(run()) == {}


def test_a_request_is_answered_after_a_time_whatever_the_replicas_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pending_commits, "WAIT_S", 0.01)

    async def run() -> dict[int, StoreError]:
        commits = PendingCommits(-1)
        commits.commit_of(3)
        return await commits.wait()

    errors = asyncio.run(run())
    assert isinstance(errors[3], DeadlineError)


def test_fewer_acks_wait_for_no_other_node() -> None:
    async def run() -> list[tuple[Acks, bool]]:
        commits = [PendingCommits(acks).commit_of(0) for acks in (0, 1)]
        return [(commit.acks, commit.on_committed is None) for commit in commits]

    assert asyncio.run(run()) == [(Acks.NONE, True), (Acks.LEADER, True)]
