"""Calls that may block run in threads, within bounds, and survive their canceller."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest
from tests.adapter.bench import Bench, until

from penstock.engine.contract import Written
from penstock.errors import BusyError, ClosedError
from penstock.platform.calls.blocking_pool import BlockingPool
from penstock.record import Record


def test_a_call_runs_in_another_thread_and_its_error_comes_back() -> None:
    async def run() -> None:
        pool = BlockingPool(threads=1)
        assert await pool.run(threading.get_ident) != threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            await pool.run(lambda: 1 // 0)
        assert pool.calls == 0
        pool.close()
        with pytest.raises(ClosedError):
            await pool.run(threading.get_ident)
        assert pool.calls == 0

    asyncio.run(run())


def test_too_many_calls_are_refused_and_the_others_are_done() -> None:
    async def run() -> None:
        pool = BlockingPool(threads=2, waiting_max=3)
        gate = threading.Event()
        waiting = [asyncio.ensure_future(pool.run(gate.wait)) for _ in range(5)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="nothing was done"):
            await pool.run(gate.wait)
        gate.set()
        assert await asyncio.gather(*waiting) == [True] * 5
        assert await pool.run(gate.wait)
        pool.close()

    asyncio.run(run())


def test_a_cancelled_call_that_runs_is_finished_and_one_that_waits_never_begins() -> None:
    async def run() -> None:
        pool = BlockingPool(threads=1)
        gate, begun, done = threading.Event(), threading.Event(), []

        def work(number: int) -> None:
            begun.set()
            gate.wait()
            done.append(number)

        running = asyncio.ensure_future(pool.run(lambda: work(1)))
        waiting = asyncio.ensure_future(pool.run(lambda: work(2)))
        await until(begun.is_set)
        for call in (running, waiting):
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        gate.set()
        await until(lambda: pool.calls == 0)
        pool.close()
        assert done == [1]

    asyncio.run(run())


def test_a_cancelled_write_is_there_whole_or_not_at_all() -> None:
    """A producer that repeats it finds out, and writes it once."""
    with Bench() as bench:
        bench.create("orders")
        gate, begun = threading.Event(), threading.Event()
        write = bench.engine.batch_write

        def slow(*arguments: object, **named: object) -> Written:
            begun.set()
            gate.wait()
            return write(*arguments, **named)  # type: ignore[arg-type] # passed on as they came

        bench.engine.batch_write = slow  # type: ignore[method-assign] # to stop in its midst

        async def run() -> None:
            batch = [Record(b"v")] * 2_000
            call = asyncio.ensure_future(
                bench.manager.run_blocking(partial(bench.manager.batch_write, "orders", batch))
            )
            await until(begun.is_set)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert bench.manager.shard_info("orders", 0).latest == 0
            gate.set()
            await until(lambda: bench.pool.calls == 0)
            assert bench.manager.shard_info("orders", 0).latest == 2_000

        asyncio.run(run())
