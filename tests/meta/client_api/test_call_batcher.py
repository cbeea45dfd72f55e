"""Calls that share round trips: each gets its own answer; a failed batch fails its calls."""

from __future__ import annotations

import threading

import pytest

from penstock.errors import DeadlineError
from penstock.meta.client_api.call_batcher import CallBatcher

DEADLINE_S = 60


def test_who_comes_while_others_are_under_way_goes_with_the_next_trip() -> None:
    batches: list[list[bytes]] = []
    may_return = threading.Semaphore(0)
    under_way = threading.Semaphore(0)

    def send(requests: list[bytes]) -> list[bytes]:
        batches.append(requests)
        under_way.release()
        assert may_return.acquire(timeout=DEADLINE_S)
        return [request.upper() for request in requests]

    batcher = CallBatcher(send, batches_max=1)
    answers: dict[bytes, bytes] = {}

    def call(request: bytes) -> None:
        answers[request] = batcher.call(request)

    names = [b"a", b"b", b"c", b"d"]
    threads = [threading.Thread(target=call, args=(name,)) for name in names]
    threads[0].start()
    assert under_way.acquire(timeout=DEADLINE_S)
    for number, thread in enumerate(threads[1:], start=1):
        thread.start()
        while len(batcher._waiting) < number:
            threading.Event().wait(0.001)
    may_return.release(2)
    for thread in threads:
        thread.join(DEADLINE_S)
    assert batches == [[b"a"], [b"b", b"c", b"d"]]
    assert answers == {name: name.upper() for name in names}


def test_many_threads_get_their_own_answers() -> None:
    batcher = CallBatcher(lambda requests: [b"<" + one + b">" for one in requests])
    wrong: list[bytes] = []

    def run(number: int) -> None:
        for count in range(300):
            request = b"%d-%d" % (number, count)
            if batcher.call(request) != b"<" + request + b">":
                wrong.append(request)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert wrong == []


def test_a_trip_that_fails_fails_those_who_were_in_it_and_the_next_one_goes_on() -> None:
    fails = [True]

    def send(requests: list[bytes]) -> list[bytes]:
        if fails.pop() if fails else False:
            raise DeadlineError("nobody answers")
        return requests

    batcher = CallBatcher(send, batches_max=1)
    with pytest.raises(DeadlineError, match="nobody answers"):
        batcher.call(b"one")
    assert batcher.call(b"two") == b"two"


def test_a_mistake_of_ours_leaves_nobody_waiting() -> None:
    def send(requests: list[bytes]) -> list[bytes]:
        raise ZeroDivisionError(str(requests))

    batcher: CallBatcher[bytes] = CallBatcher(send, batches_max=1)
    with pytest.raises(ZeroDivisionError):
        batcher.call(b"one")
    with pytest.raises(ZeroDivisionError):
        batcher.call(b"two")
