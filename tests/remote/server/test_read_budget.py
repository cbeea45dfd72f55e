"""The memory of replies to readers has one bound for the whole server."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

import penstock
from penstock.errors import BusyError
from penstock.record import Offset
from penstock.remote.server.node_server import Server
from penstock.remote.server.read_budget import COPIES, ReadBudget
from penstock.settings import EMBEDDED

MIB = 1 << 20


def test_a_share_beyond_the_budget_waits_for_another_to_end() -> None:
    budget = ReadBudget(10)
    first = budget.reserve(6)
    began = threading.Event()

    def second() -> int:
        began.set()
        with budget.reserve(6):
            return budget.used

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second)
        assert began.wait(60)
        assert not waiting.done()
        first.release()
        assert waiting.result(60) == 6
    assert budget.used == 0


def test_a_share_that_finds_no_room_in_time_is_refused_and_says_the_limit() -> None:
    budget = ReadBudget(10, wait_s=0.01)
    with budget.reserve(6), pytest.raises(BusyError, match="read_memory_max = 10"):
        budget.reserve(5)
    assert budget.used == 0


def test_a_share_larger_than_the_budget_is_taken_alone() -> None:
    budget = ReadBudget(10, wait_s=0.01)
    with budget.reserve(50):
        assert budget.used == 50
        with pytest.raises(BusyError):
            budget.reserve(1)
    assert budget.used == 0


def test_a_share_follows_its_reply_and_is_given_back_once() -> None:
    budget = ReadBudget(1_000)
    share = budget.reserve(500)
    share.resize(10)
    assert budget.used == COPIES * 10
    share.release()
    share.release()
    share.resize(10)
    assert budget.used == 0


def test_a_call_that_ended_gives_back_what_it_held() -> None:
    budget = ReadBudget(1_000)
    budget.reserve(5).release_with(lambda _: False)
    assert budget.used == 0


@pytest.mark.parametrize("queue", ["simple", "batch"])
def test_many_readers_at_once_share_the_memory_and_give_it_back(tmp_path: Path, queue: str) -> None:
    listen = replace(EMBEDDED.server, port=0, http_port=0, read_memory_max=64 * MIB)
    settings = replace(EMBEDDED, server=listen, kafka=replace(EMBEDDED.kafka, enabled=False))
    with Server(str(tmp_path / "data"), settings) as server:
        address = f"127.0.0.1:{server.port}"
        with penstock.connect(address) as store:
            topic = store.create_topic("t", queue=queue)
            for _ in range(4):
                topic.write(bytes(800_000), key=b"k", tags=["x"])

            def read(_: int) -> int:
                with penstock.connect(address) as own:
                    records = own.topic("t").read(partition=0, offset=Offset(0))
                    followed = sum(1 for _ in own.topic("t"))
                    assert followed == len(records) == 4
                    assert own.topic("t").read_by_key(b"k") is not None
                    return len(own.topic("t").read_by_tag("x"))

            with ThreadPoolExecutor(8) as pool:
                assert list(pool.map(read, range(16))) == [4] * 16
        budget = server.reading.budget
    assert budget.used == 0
