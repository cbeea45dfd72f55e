"""Calls of many threads that share round trips.

A call that finds `batches_max` batches under way waits, and is sent with the next batch, together
with all calls that wait by then. There is no thread for this: the first of the waiting calls sends
the batch for all of them.
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
    __slots__ = ("answer", "batch", "error", "request", "woken")

    def __init__(self, request: bytes) -> None:
        self.request: Final = request
        self.answer: AnswerT | None = None
        self.error: StoreError | None = None
        self.batch: list[_Call[AnswerT]] = []
        """Not empty: the thread of this call sends the batch."""
        self.woken: Final = threading.Lock()
        self.woken.acquire()


class CallBatcher(Generic[AnswerT]):
    """Safe to use from many threads."""

    def __init__(
        self, send: Callable[[list[bytes]], list[AnswerT]], *, batches_max: int = 2
    ) -> None:
        """`send` makes a round trip; it returns an answer for each request, in their order."""
        self._send: Final = send
        self._batches_left = batches_max
        self._waiting: deque[_Call[AnswerT]] = deque()
        self._lock: Final = threading.Lock()

    def call(self, request: bytes) -> AnswerT:
        call: _Call[AnswerT] = _Call(request)
        with self._lock:
            if self._batches_left > 0:
                self._batches_left -= 1
                call.batch = [call]
            else:
                self._waiting.append(call)
        if not call.batch:
            call.woken.acquire()
        if call.batch:
            self._send_batch(call.batch)
        if call.error is not None:
            raise call.error
        assert call.answer is not None, "a call is answered or has failed"
        return call.answer

    def _send_batch(self, batch: list[_Call[AnswerT]]) -> None:
        error: StoreError = DeadlineError("the batch of this call was not sent; try again")
        answers: list[AnswerT] | None = None
        try:
            answers = self._send([call.request for call in batch])
            assert len(answers) == len(batch), "an answer for each"
        except StoreError as raised:
            error = raised
        finally:
            self._start_next_batch()
            for number, call in enumerate(batch):
                if answers is None:
                    call.error = error
                else:
                    call.answer = answers[number]
                if number > 0:
                    call.woken.release()

    def _start_next_batch(self) -> None:
        with self._lock:
            if not self._waiting:
                self._batches_left += 1
                return
            first = self._waiting.popleft()
            batch, size = [first], len(first.request)
            while self._waiting and len(batch) < _CALLS_MAX and size < _SIZE_MAX:
                size += len(self._waiting[0].request)
                batch.append(self._waiting.popleft())
            first.batch = batch
        first.woken.release()
