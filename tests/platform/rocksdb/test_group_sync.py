"""One sync for all that wait."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.platform.rocksdb.group_sync import GroupSync


class SlowSync:
    """A sync that covers what was written when it began, and takes its time."""

    def __init__(self) -> None:
        self.written = 0
        self.synced = 0
        self.count = 0
        self.running = 0
        self.gate = threading.Semaphore(0)

    def __call__(self) -> None:
        self.running += 1
        assert self.running == 1, "two syncs at once"
        covered = self.written
        self.gate.acquire()
        self.count += 1
        self.synced = max(self.synced, covered)
        self.running -= 1


def test_nobody_returns_before_a_sync_that_began_after_its_write() -> None:
    device = SlowSync()
    group = GroupSync(device)
    lock = threading.Lock()

    def write() -> None:
        for _ in range(20):
            with lock:
                device.written += 1
                mine = device.written
            group.wait()
            assert device.synced >= mine

    device.gate.release(10_000)
    with ThreadPoolExecutor(32) as pool:
        for done in [pool.submit(write) for _ in range(32)]:
            done.result()
    assert device.synced == 640


def test_all_who_wait_share_the_next_sync() -> None:
    device = SlowSync()
    group = GroupSync(device)
    with ThreadPoolExecutor(33) as pool:
        first = pool.submit(group.wait)
        while device.running == 0:
            time.sleep(0.001)
        others = [pool.submit(group.wait) for _ in range(32)]
        while group._asked < 33:
            time.sleep(0.001)
        device.gate.release(1)
        first.result()
        assert not any(other.done() for other in others)
        device.gate.release(100)
        for other in others:
            other.result()
    assert device.count == 2


def test_a_failure_reaches_everyone_who_waited_for_it() -> None:
    entered = threading.Event()
    go_on = threading.Event()

    def fail() -> None:
        entered.set()
        go_on.wait()
        raise OSError("no device")

    group = GroupSync(fail)
    with ThreadPoolExecutor(9) as pool:
        waiting = [pool.submit(group.wait) for _ in range(9)]
        entered.wait()
        go_on.set()
        for one in waiting:
            with pytest.raises(OSError, match="no device"):
                one.result()
