"""Sends calls to one of several servers of the same store, and to the next when one is away.

Any node takes any call, so the first server that answers is as good as another. What may be sent
twice is a matter of the call:

  * before anything was sent, every call goes to the next server
  * after that, only a call that may be repeated does: a read, or a write with a producer. Of any
    other call the outcome is unknown, and the error says so

With one address nothing is different from a plain connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import grpc

from penstock.errors import ClosedError, DeadlineError, StaleReadError, StoreError
from penstock.platform.clock import SystemClock

CONNECT_S: Final = 5.0
_TRY_S: Final = 1.0
"""How long one of several servers may take to be connected to."""
_TRUSTED_S: Final = 1.0
_PAUSE_S: Final = 0.2
_LOOK_S: Final = 0.3

R = TypeVar("R")
Options = Sequence[tuple[str, int]]


class Server:
    """One address, and the connection to it."""

    def __init__(self, address: str, options: Options) -> None:
        self.address: Final = address
        self.channel: Final = grpc.insecure_channel(address, options=list(options))
        self.answered_at: float | None = None
        """When it last answered; None: not yet, or not the last time."""
        self.looked_at = 0.0

    def await_ready(self, seconds: float, now: float) -> bool:
        """Return whether the connection stands, after `seconds` at most; one that carried an
        answer a moment ago does."""
        if self.answered_at is not None and now - self.answered_at < _TRUSTED_S:
            return True
        return self.connect(seconds)

    def connect(self, seconds: float) -> bool:
        """Return whether the connection stands, after `seconds` at most."""
        future = grpc.channel_ready_future(self.channel)
        try:
            future.result(timeout=seconds)
        except grpc.FutureTimeoutError:
            return False
        finally:
            future.cancel()
            self.looked_at = SystemClock().monotonic()
        return True


class UnansweredError(Exception):
    """A call got no answer of the store: the server went away, or is too slow. One that was not
    sent had no effect."""

    def __init__(self, error: StoreError, *, is_sent: bool = True) -> None:
        super().__init__(str(error))
        self.error: Final = error
        self.is_sent: Final = is_sent


Attempt = Callable[[Server, float, bool], R]
"""Calls a server, with a deadline in seconds; True: waits until the server is there. Raises what
the store raised, or `UnansweredError`."""


class Servers:
    """Safe to use from many threads."""

    def __init__(self, addresses: Sequence[str], options: Options) -> None:
        self._servers: Final = [Server(address, options) for address in addresses]
        self._current = 0
        self._clock: Final = SystemClock()
        self._never: Final = threading.Event()

    @property
    def name(self) -> str:
        return ", ".join(server.address for server in self._servers)

    def check(self) -> None:
        """Raise `DeadlineError` when none of the servers answers."""
        end = self._clock.monotonic() + CONNECT_S
        share = CONNECT_S / len(self._servers)
        for number, server in enumerate(self._servers):
            if server.connect(max(0.0, min(share, end - self._clock.monotonic()))):
                self._current = number
                server.answered_at = self._clock.monotonic()
                return
        raise DeadlineError(
            f"no Penstock server answers at {self.name}; is `penstock serve` running there?"
        )

    def call(
        self,
        attempt: Attempt[R],
        deadline_s: float,
        *,
        waits: bool = True,
        may_repeat: bool = False,
    ) -> R:
        """Call a server. `waits`: until the deadline for one that is there, or not at all.
        `may_repeat`: the call may be sent again although it may have arrived."""
        if len(self._servers) == 1:
            try:
                return attempt(self._servers[0], deadline_s, waits)
            except UnansweredError as failed:
                raise failed.error from failed
        end = self._clock.monotonic() + deadline_s
        failures: list[StoreError] = []
        while True:
            reply = self._round(attempt, end, failures, may_repeat=may_repeat)
            if reply is not None:
                return reply
            left = end - self._clock.monotonic()
            if failures and (not waits or left <= _PAUSE_S):
                raise failures[-1]
            if not waits or left <= 0:
                raise DeadlineError(f"no Penstock server answers at {self.name}; nothing was done")
            self._clock.wait(self._never, min(_PAUSE_S, left))

    def _round(
        self, attempt: Attempt[R], end: float, failures: list[StoreError], *, may_repeat: bool
    ) -> R | None:
        """Ask each server at most once; return None when none answered. `failures` gets the last
        error of one that may have done what it was asked."""
        first, count = self._current, len(self._servers)
        for step in range(count):
            number = (first + step) % count
            server = self._servers[number]
            now = self._clock.monotonic()
            if now >= end or not server.await_ready(min(_TRY_S, end - now), now):
                server.answered_at = None
                continue
            left = max(0.001, end - self._clock.monotonic())
            # Half of the time is left for the others, should this server hang.
            budget = left / 2 if may_repeat and step < count - 1 else left
            try:
                reply = attempt(server, budget, False)
            except UnansweredError as error:
                if not error.is_sent:
                    server.answered_at = None
                    continue
                failed: StoreError = error.error
            except (DeadlineError, StaleReadError, ClosedError) as error:
                failed = error  # it answered that it cannot: it is without a majority, or stops
            else:
                self._current = number
                server.answered_at = self._clock.monotonic()
                return reply
            server.answered_at = None
            if not may_repeat:
                raise failed
            failures[:] = [failed]
        return None

    def close(self) -> None:
        if len(self._servers) > 1:
            # gRPC's thread that looked at a connection ends a moment later, and complains about a
            # channel that was closed under it.
            looked_at = max(server.looked_at for server in self._servers)
            left = looked_at + _LOOK_S - self._clock.monotonic()
            self._clock.wait(self._never, max(0.0, left))
        for server in self._servers:
            server.channel.close()
