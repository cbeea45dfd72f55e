"""The log's lock, natively: Python code that has waited for long goes before native writers."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.codec.test_append_path import ORDERS, Bench

from penstock.record import Record

native = pytest.importorskip("penstock._native")

LONG = bytes(8_000)
"""Appended without the interpreter: the writer is the first to see that the lock is free."""


def test_who_has_waited_long_goes_before_writers_that_need_no_interpreter() -> None:
    bench = Bench(native, size=1 << 20)
    went: list[str] = []

    def take_the_lock() -> None:
        assert bench.lock.acquire(10.0)
        went.append("python")
        assert bench.appender.end == 0
        bench.lock.release()

    def write() -> None:
        assert bench.append_path.append(ORDERS, Record(LONG)) >= 0
        went.append("writer")

    with ThreadPoolExecutor(5) as pool:
        bench.lock.acquire(10.0)
        patient = pool.submit(take_the_lock)
        time.sleep(0.1)
        writers = [pool.submit(write) for _ in range(4)]
        time.sleep(0.02)
        bench.lock.release()
        for each in (patient, *writers):
            each.result(60)
    assert went == ["python", *["writer"] * 4]


def test_writers_go_on_when_who_waited_long_gives_up() -> None:
    bench = Bench(native, size=1 << 20)
    with ThreadPoolExecutor(5) as pool:
        bench.lock.acquire(10.0)
        patient = pool.submit(bench.lock.acquire, 0.1)
        time.sleep(0.05)
        writers = [pool.submit(bench.append_path.append, ORDERS, Record(LONG)) for _ in range(4)]
        assert patient.result(60) is False
        bench.lock.release()
        assert sorted(each.result(60) for each in writers) == [0, 1, 2, 3]


def test_a_lock_that_writers_keep_busy_is_had_by_python_code() -> None:
    bench = Bench(native, size=64 << 20)
    has_had_it = threading.Event()

    def write() -> None:
        while not has_had_it.is_set():
            bench.append_path.append_many(ORDERS, [Record(LONG)] * 50)

    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write) for _ in range(4)]
        try:
            for _ in range(20):
                assert bench.lock.acquire(10.0)
                bench.lock.release()
        finally:
            has_had_it.set()
        for each in writers:
            each.result(60)
