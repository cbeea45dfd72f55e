"""Bounds of gRPC calls that wait: in all, and of one client.

Calls that wait for something on the server have no thread meanwhile (`parked_calls`). A stream of
requests holds a thread while it waits for its client, so these streams have a pool of their own
(`WaitingThreads`). One call too many, in all or of one client, is refused with `BusyError`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, ParamSpec, TypeVar

from penstock.errors import BusyError

P = ParamSpec("P")
T = TypeVar("T")

_REFUSERS: Final = 2
_refusing: Final = threading.local()


class Places:
    """Counts the calls of a kind under way, by client."""

    def __init__(self, calls_max: int, per_client_max: int) -> None:
        self.calls_max: Final = calls_max
        self.per_client_max: Final = per_client_max
        self._lock: Final = threading.Lock()
        self._taken = 0
        self._clients: Final = Counter[str]()

    def reserve(self, client: str) -> None:
        """Count a call of `client`, or raise `BusyError`."""
        with self._lock:
            if self._taken >= self.calls_max:
                raise _too_many(self.calls_max)
            if self._clients[client] >= self.per_client_max:
                raise _too_many_of_one(self.per_client_max)
            self._taken += 1
            self._clients[client] += 1

    def release(self, client: str) -> None:
        with self._lock:
            self._taken -= 1
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]


def _too_many(calls_max: int) -> BusyError:
    return BusyError(f"{calls_max} calls of this kind wait already, as many as may; try later")


def _too_many_of_one(per_client_max: int) -> BusyError:
    return BusyError(
        f"{per_client_max} calls of this kind of one connection wait already, as many as may; end "
        "some of them, or use fewer"
    )


class WaitingThreads(ThreadPoolExecutor):
    """A pool that accepts no more calls than it has threads: the others are rejected immediately,
    by threads of their own."""

    def __init__(self, calls_max: int, per_client_max: int) -> None:
        super().__init__(calls_max, thread_name_prefix="penstock-rpc-write")
        self.calls_max: Final = calls_max
        self.per_client_max: Final = per_client_max
        self._refusers: Final = ThreadPoolExecutor(
            _REFUSERS, thread_name_prefix="penstock-rpc-refuse"
        )
        self._lock: Final = threading.Lock()
        self._taken = 0
        self._clients: Final = Counter[str]()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        with self._lock:
            is_full = self._taken >= self.calls_max
            self._taken += not is_full
        if is_full:
            return self._refusers.submit(self._refuse, fn, *args, **kwargs)
        try:
            return super().submit(self._serve, fn, *args, **kwargs)
        except RuntimeError:  # shut down
            self._end()
            raise

    def _serve(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return fn(*args, **kwargs)
        finally:
            self._end()

    def _refuse(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        _refusing.is_asked = True
        try:
            return fn(*args, **kwargs)
        finally:
            _refusing.is_asked = False

    def _end(self) -> None:
        with self._lock:
            self._taken -= 1

    @contextmanager
    def admit(self, client: str) -> Iterator[None]:
        """Let a call of `client` go on in this thread, or raise `BusyError`."""
        if getattr(_refusing, "is_asked", False):
            raise _too_many(self.calls_max)
        with self._lock:
            if self._clients[client] >= self.per_client_max:
                raise _too_many_of_one(self.per_client_max)
            self._clients[client] += 1
        try:
            yield
        finally:
            with self._lock:
                self._clients[client] -= 1
                if not self._clients[client]:
                    del self._clients[client]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._refusers.shutdown(wait=wait, cancel_futures=cancel_futures)
        super().shutdown(wait=wait, cancel_futures=cancel_futures)
