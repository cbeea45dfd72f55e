"""Timeouts of transactions while the wall clock is set, and across restarts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.brokers.kafka.running import Running, WireClient, running

from penstock.meta.client_api.transaction_client import TransactionClient
from penstock.platform.clock import Clock
from penstock.testing.manual_clock import ManualClock

DAY_MS = 86_400_000
TIMEOUT_S = 60
CHECK_MS = 10
PAUSE_S = 0.3
"""Thirty checks of the coordinator."""
WAIT_S = 90.0


@contextmanager
def serving(path: Path, clock: Clock) -> Iterator[Running]:
    with running(path, {"transaction_check_interval_ms": CHECK_MS}, clock=clock) as server:
        yield server


def begin_transaction(server: Running) -> None:
    if ("default", "orders") not in server.node.broker_cache.topics:
        server.node.admin.create_topic_full("orders", 1)
    with WireClient(server.server.port) as client:
        begun = client.ask(22, 4, transactional_id="t", transaction_timeout=TIMEOUT_S * 1_000)
        response = client.ask(
            24,
            3,
            v3_and_below_transactional_id="t",
            v3_and_below_producer_id=begun["producer_id"],
            v3_and_below_producer_epoch=begun["producer_epoch"],
            v3_and_below_topics=[{"name": "orders", "partitions": [0]}],
        )
    (topic,) = response.items_of("results_by_topic_v3_and_below")
    assert topic.items_of("results_by_partition")[0]["partition_error_code"] == 0


def status(server: Running) -> str:
    meta = server.node.meta
    assert isinstance(meta, TransactionClient)
    state = meta.find_transaction("default", "t")
    assert state is not None
    return state.status


def stays_open(server: Running) -> bool:
    time.sleep(PAUSE_S)
    return status(server) == "ongoing"


def is_aborted(server: Running) -> bool:
    deadline = time.monotonic() + WAIT_S
    while status(server) != "complete-abort":
        if time.monotonic() > deadline:
            return False
        time.sleep(CHECK_MS / 1_000)
    return True


def test_a_clock_that_is_set_ahead_aborts_no_open_transaction(data_path: Path) -> None:
    clock = ManualClock()
    with serving(data_path, clock) as server:
        begin_transaction(server)
        clock.set_now_ms(clock.now_ms() + DAY_MS)
        clock.advance(TIMEOUT_S - 1)
        assert stays_open(server)
        clock.advance(2)
        assert is_aborted(server)


def test_a_clock_that_is_set_back_keeps_no_abandoned_transaction_open(data_path: Path) -> None:
    clock = ManualClock()
    with serving(data_path, clock) as server:
        begin_transaction(server)
        clock.set_now_ms(clock.now_ms() - DAY_MS)
        clock.advance(TIMEOUT_S - 1)
        assert stays_open(server)
        clock.advance(2)
        assert is_aborted(server)


def test_a_transaction_that_begins_after_the_clock_was_set_back_times_out(data_path: Path) -> None:
    clock = ManualClock()
    with serving(data_path, clock) as server:
        begin_transaction(server)
        clock.advance(TIMEOUT_S + 1)
        assert is_aborted(server)
        clock.set_now_ms(clock.now_ms() - DAY_MS)
        begin_transaction(server)  # counted from the beginning of the last one, in the future
        assert stays_open(server)
        clock.advance(TIMEOUT_S + 1)
        assert is_aborted(server)


def test_a_clock_that_is_set_while_the_server_is_down_aborts_no_open_transaction(
    data_path: Path,
) -> None:
    for step_ms in (300_000, DAY_MS, -DAY_MS):
        clock = ManualClock()
        path = data_path / str(step_ms)
        with serving(path, clock) as first:
            begin_transaction(first)
        clock.set_now_ms(clock.now_ms() + step_ms)
        with serving(path, clock) as second:
            assert stays_open(second), step_ms
            clock.advance(TIMEOUT_S + 1)
            assert is_aborted(second), step_ms


def test_a_transaction_that_was_abandoned_long_before_a_restart_is_aborted_immediately(
    data_path: Path,
) -> None:
    clock = ManualClock()
    with serving(data_path, clock) as first:
        begin_transaction(first)
    clock.advance(3_600)
    with serving(data_path, clock) as second:
        assert is_aborted(second)
