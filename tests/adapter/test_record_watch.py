"""A watch says whether partitions have records at or after an offset, and when to look again."""

from __future__ import annotations

import threading

import pytest
from msgspec.structs import replace
from tests.adapter.adapter_engine import NODE, shard_of
from tests.engine.test_handler import NAME, SHARD, Bench

from penstock.adapter.record_watch import ELSEWHERE_PAUSE_S, PAUSE_S, RecordWatch
from penstock.meta.events import ShardDeleted, ShardPut
from penstock.record import Offset


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_shard_that_moves_to_another_node_wakes_those_who_wait_for_records_here(
    bench: Bench,
) -> None:
    woken = threading.Event()
    with RecordWatch(bench.handler, {NAME: Offset(0)}, woken.set) as watch:
        assert watch.pause_s() == PAUSE_S
        bench.tell(ShardPut(shard_of(SHARD)))
        assert not woken.is_set(), "nothing has moved"
        bench.tell(ShardPut(replace(shard_of(SHARD), leader=NODE + 1)))
        assert woken.is_set()
        assert watch.pause_s() == ELSEWHERE_PAUSE_S, "writes there are not reported here"


def test_a_watch_sees_records_from_its_offset_on_and_a_shard_that_is_gone(bench: Bench) -> None:
    with RecordWatch(bench.handler, {NAME: Offset(1)}, lambda: None) as watch:
        bench.put(b"0")
        assert not watch.has_news()
        assert not watch.has_records()
        bench.put(b"1")
        assert watch.has_news()
        assert watch.has_records()
        watch.move(Offset(2))
        assert not watch.has_news()
        assert not watch.is_gone()
        bench.tell(ShardDeleted(*SHARD))
        assert watch.is_gone()
        assert watch.has_news()
