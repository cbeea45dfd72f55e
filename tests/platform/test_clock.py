"""Both clocks keep the contract of `Clock`."""

from __future__ import annotations

import threading
import time

import pytest

from penstock.platform.clock import Clock, SystemClock
from penstock.testing import ManualClock


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()], ids=["system", "manual"])
def test_times_have_their_units(clock: Clock) -> None:
    assert 1_600_000_000_000 < clock.now_ms() < 4_000_000_000_000
    first = clock.monotonic()
    assert clock.monotonic() >= first


def test_the_system_waits_no_longer_than_asked() -> None:
    started = time.monotonic()
    assert not SystemClock().wait(threading.Event(), 0.01)
    assert 0.009 < time.monotonic() - started < 5
    event = threading.Event()
    event.set()
    assert SystemClock().wait(event, 30)


def test_manual_time_passes_only_by_hand() -> None:
    clock = ManualClock(now_ms=1000)
    clock.advance(1.5)
    clock.advance(milliseconds=20)
    assert (clock.now_ms(), clock.monotonic()) == (2520, 1.52)
    clock.set_now_ms(5)
    assert (clock.now_ms(), clock.monotonic()) == (5, 1.52)


def test_a_manual_wait_ends_when_its_time_has_come() -> None:
    clock = ManualClock()
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(clock.wait(threading.Event(), 10)))
    thread.start()
    while clock.waiting == 0:
        time.sleep(0.001)
    clock.advance(9)
    assert clock.waiting == 1
    clock.advance(1)
    thread.join()
    assert answers == [False]


def test_a_manual_wait_ends_when_its_event_is_set() -> None:
    clock = ManualClock()
    event = threading.Event()
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(clock.wait(event, 10)))
    thread.start()
    event.set()
    thread.join()
    assert answers == [True]
    assert not clock.wait(threading.Event(), 0)
