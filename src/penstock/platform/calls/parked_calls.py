"""gRPC calls without a thread while they wait: streams that follow, calls until something happens.

A call runs in a thread of a bounded pool until it yields a `Pause` or ends. A parked call costs its
generator and a timer; one thread, the `Resumer`, hands woken calls and calls whose time is up to
their pool. The bounds:

  * `calls_max` calls in all and `per_client_max` of one connection; others get `BusyError`
  * a call that has sent a reply makes room for the calls that have no thread
  * gRPC blocks the sender while a client does not read. When other calls have had no thread for
    `STARVED_S`, calls whose client has read nothing for `SEND_S` are cancelled
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from heapq import heappop, heappush
from itertools import count
from typing import Final, NamedTuple, Protocol

import grpc

from penstock.errors import StoreError
from penstock.platform.calls.waiting_calls import Places
from penstock.platform.calls.wakeup import Pause, Wakeup
from penstock.platform.log import get_logger

STARVED_S: Final = 2.0
SEND_S: Final = 20.0
_TICK_S: Final = 1.0
_log: Final = get_logger(__name__)

Steps = Generator[object, bool | None, None]
"""Replies and pauses; a pause is answered with whether its wakeup was set, which clears it."""
Send = Callable[[object], None]
"""Sends a reply, and returns when the transport has taken it; None ends the call."""


class CallFailure(NamedTuple):
    """How a call ends that raised."""

    code: grpc.StatusCode
    details: str
    metadata: tuple[tuple[str, bytes], ...] = ()

    def put(self, context: grpc.ServicerContext) -> None:
        context.set_trailing_metadata(self.metadata)
        context.set_code(self.code)
        context.set_details(self.details)


Describe = Callable[[StoreError], CallFailure]


class CallPool(Protocol):
    """A bounded pool that knows how many jobs have no thread, and for how many seconds."""

    def submit(self, fn: Callable[[], None], /) -> object: ...
    def waiting(self) -> tuple[int, float]: ...
    def shutdown(self, wait: bool = True) -> None: ...


class Resumer:
    """The thread that lets parked calls go on; it begins with the first call."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._news: Final = threading.Event()
        self._ready: Final[deque[ParkedCall]] = deque()
        self._timers: Final[list[tuple[float, int, ParkedCall]]] = []
        self._order: Final = count()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self.checks: Final[list[Callable[[], None]]] = []
        """Called about every second."""

    def start(self) -> None:
        with self._lock:
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(
                    target=self._run, name="penstock-rpc-resume", daemon=True
                )
                self._thread.start()

    def resume(self, call: ParkedCall) -> None:
        """Let a call go on. Quick: writers call it."""
        self._ready.append(call)
        if not self._news.is_set():
            self._news.set()

    def set_timer(self, call: ParkedCall, seconds: float) -> None:
        now = time.monotonic()
        with self._lock:
            call.due = now + seconds
            # Looked at each second, so that calls which have ended do not stay here for longer.
            check_at = min(call.due, now + _TICK_S)
            if call.timer_at is not None and call.timer_at <= check_at:
                return
            self._push(call, check_at)
            is_first = self._timers[0][2] is call
        if is_first:
            self._news.set()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        self._news.set()

    def _push(self, call: ParkedCall, check_at: float) -> None:
        call.timer_at = check_at
        heappush(self._timers, (check_at, next(self._order), call))

    def _run(self) -> None:
        checked = time.monotonic()
        while not self._is_closed:
            self._news.wait(self._pause_s())
            self._news.clear()
            for _ in range(len(self._ready)):
                self._ready.popleft().submit()
            now = time.monotonic()
            for call in self._pop_due(now):
                call.expire()
            if now - checked >= _TICK_S:
                checked = now
                for check in self.checks:
                    check()
        while self._ready:
            self._ready.popleft().submit()

    def _pause_s(self) -> float:
        if self._ready:
            return 0.0
        with self._lock:
            if not self._timers:
                return _TICK_S
            return min(_TICK_S, max(0.0, self._timers[0][0] - time.monotonic()))

    def _pop_due(self, now: float) -> list[ParkedCall]:
        due: list[ParkedCall] = []
        with self._lock:
            while self._timers and self._timers[0][0] <= now:
                check_at, _, call = heappop(self._timers)
                if call.timer_at != check_at or call.is_ended:
                    continue  # an earlier timer stands in its place
                call.timer_at = None
                if call.due <= now:
                    due.append(call)
                else:
                    self._push(call, min(call.due, now + _TICK_S))
        return due


class WaitingCalls:
    """The calls of one kind that may wait, with their bounds and their pool."""

    def __init__(
        self, threads: CallPool, resumer: Resumer, calls_max: int, per_client_max: int
    ) -> None:
        self.threads: Final = threads
        self.resumer: Final = resumer
        self.places: Final = Places(calls_max, per_client_max)
        self._lock: Final = threading.Lock()
        self._calls: Final[set[ParkedCall]] = set()
        resumer.checks.append(self._end_stuck)

    @property
    def executor(self) -> ThreadPoolExecutor:
        """The pool as gRPC takes it."""
        assert isinstance(self.threads, ThreadPoolExecutor)
        return self.threads

    @property
    def under_way(self) -> int:
        return len(self._calls)

    def begin(
        self, steps: Steps, context: grpc.ServicerContext, send: Send, describe: Describe
    ) -> None:
        """Serve a call in this thread until it waits."""
        client = context.peer()
        try:
            self.places.reserve(client)
        except StoreError as error:
            steps.close()
            describe(error).put(context)
            send(None)
            return
        self.resumer.start()
        call = ParkedCall(self, steps, context, send, describe)
        with self._lock:
            self._calls.add(call)
        context.add_callback(call.wake)  # of a call that has ended already: `run` sees it
        call.run()

    def end(self, call: ParkedCall) -> None:
        with self._lock:
            self._calls.discard(call)
        self.places.release(call.client)

    def wake_all(self) -> None:
        """Have each call look again: for a server that is about to stop."""
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.wake()

    def _end_stuck(self) -> None:
        waiting, seconds = self.threads.waiting()
        if not waiting or seconds < STARVED_S:
            return
        with self._lock:
            calls = list(self._calls)
        before = time.monotonic() - SEND_S
        for call in calls:
            if call.sending_since is not None and call.sending_since < before:
                _log.warning("slow_reader_ended", client=call.client, waiting=waiting)
                call.cancel()


class ParkedCall:
    """A call under way: at each moment one thread runs it, or it is parked, or it has ended."""

    def __init__(
        self,
        calls: WaitingCalls,
        steps: Steps,
        context: grpc.ServicerContext,
        send: Send,
        describe: Describe,
    ) -> None:
        self.client: Final = context.peer()
        self.due = 0.0
        self.timer_at: float | None = None
        """Both belong to the resumer."""
        self.sending_since: float | None = None
        self.is_ended = False
        self._calls: Final = calls
        self._steps: Final = steps
        self._context: Final = context
        self._send: Final = send
        self._describe: Final = describe
        self._wakeup: Wakeup | None = None
        self._is_paused = False
        self._is_nudged = False

    def wake(self) -> None:
        """Have the call look again: its client may have gone, or the server is about to stop."""
        self._is_nudged = True  # first: a call that is about to park looks at it
        wakeup = self._wakeup
        if wakeup is not None:
            wakeup.set()

    def expire(self) -> None:
        wakeup = self._wakeup
        if wakeup is not None and wakeup.unpark():
            self.submit()

    def cancel(self) -> None:
        self._context.cancel()

    def submit(self) -> None:
        """Have a thread run the call."""
        try:
            self._calls.threads.submit(self.run)
        except RuntimeError:  # shut down
            self._end(None)

    def run(self) -> None:
        """Go on until the call waits, makes room for others, or has ended."""
        try:
            self._run()
        except StoreError as error:
            self._end(self._describe(error))
        except Exception as error:  # noqa: BLE001 - a fault of ours ends one call, as in gRPC
            _log.error("call_failed", cause=error)
            self._end(CallFailure(grpc.StatusCode.UNKNOWN, f"the call failed: {error}"))

    def _run(self) -> None:
        while self._context.is_active():
            try:
                step = self._steps.send(self._end_pause())
            except StopIteration:
                break
            if not isinstance(step, Pause):
                self._send_reply(step)
                if self._calls.threads.waiting()[0]:
                    self.submit()
                    return
            elif self._park(step):
                return  # and touch nothing: another thread may run the call by now
        self._end(None)

    def _end_pause(self) -> bool | None:
        if not self._is_paused or self._wakeup is None:
            return None
        self._is_paused = False
        return self._wakeup.clear()

    def _park(self, pause: Pause) -> bool:
        self._wakeup, self._is_paused = pause.wakeup, True
        if self._is_nudged or not self._context.is_active():
            self._is_nudged = False
            return False
        if not pause.wakeup.park(self._resume):
            return False
        # Not before: a timer that expires finds the call parked. One that is late wakes too early.
        self._calls.resumer.set_timer(self, pause.seconds)
        return True

    def _resume(self) -> None:
        self._calls.resumer.resume(self)

    def _send_reply(self, reply: object) -> None:
        self.sending_since = time.monotonic()
        self._send(reply)
        self.sending_since = None

    def _end(self, failure: CallFailure | None) -> None:
        if self.is_ended:
            return
        self.is_ended = True
        try:
            self._steps.close()
        finally:
            self._calls.end(self)
            if self._context.is_active():
                if failure is not None:
                    failure.put(self._context)
                self._send(None)
