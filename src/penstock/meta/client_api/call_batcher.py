"""Calls of many threads that share round trips.

Whoever calls while others are under way waits, and goes with the next trip together with all who
wait by then: one at a time costs what it costs, many at once cost little more. No thread of its
own: the first of those who wait makes the trip for all of them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from penstock.errors import DeadlineError, StoreError

AnswerT = TypeVar("AnswerT")

_CALLS_MAX: Final = 256
_SIZE_MAX: Final = 1 << 20


class _Call(Generic[AnswerT]):
    __slots__ = ("answer", "error", "request", "trip", "woken")

    def __init__(self, request: bytes) -> None:
        self.request: Final = request
        self.answer: AnswerT | None = None
        self.error: StoreError | None = None
        self.trip: list[_Call[AnswerT]] = []
        """Not empty: this one is to make the trip, for these."""
        self.woken: Final = threading.Lock()
        self.woken.acquire()


class Gathering(Generic[AnswerT]):
    """Safe to use from many threads."""

    def __init__(self, send: Callable[[list[bytes]], list[AnswerT]], *, trips_max: int = 2) -> None:
        """`send` makes a trip; it returns an answer for each request, in their order."""
        self._send: Final = send
        self._trips_left = trips_max
        self._waiting: deque[_Call[AnswerT]] = deque()
        self._lock: Final = threading.Lock()

    def call(self, request: bytes) -> AnswerT:
        mine: _Call[AnswerT] = _Call(request)
        with self._lock:
            if self._trips_left > 0:
                self._trips_left -= 1
                mine.trip = [mine]
            else:
                self._waiting.append(mine)
        if not mine.trip:
            mine.woken.acquire()
        if mine.trip:
            self._travel(mine.trip)
        if mine.error is not None:
            raise mine.error
        assert mine.answer is not None, "a call is answered or has failed"
        return mine.answer

    def _travel(self, trip: list[_Call[AnswerT]]) -> None:
        error: StoreError = DeadlineError("the call that this one went with has failed")
        answers: list[AnswerT] | None = None
        try:
            answers = self._send([call.request for call in trip])
            assert len(answers) == len(trip), "an answer for each"
        except StoreError as raised:
            error = raised
        finally:
            self._let_next_travel()
            for number, call in enumerate(trip):
                if answers is None:
                    call.error = error
                else:
                    call.answer = answers[number]
                if number > 0:
                    call.woken.release()

    def _let_next_travel(self) -> None:
        with self._lock:
            if not self._waiting:
                self._trips_left += 1
                return
            first = self._waiting.popleft()
            trip, size = [first], len(first.request)
            while self._waiting and len(trip) < _CALLS_MAX and size < _SIZE_MAX:
                size += len(self._waiting[0].request)
                trip.append(self._waiting.popleft())
            first.trip = trip
        first.woken.release()
