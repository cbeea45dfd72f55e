"""Sends calls to one of several servers of the same store, and to the next when one is away.

Any node takes any call, so the first server that answers is as good as another. What may be sent
twice is a matter of the call:

  * before anything was sent, every call goes to the next server
  * after that, only a call that may be repeated does: a read, or a write with a producer. Of any
    other call the outcome is unknown, and the error says so

A server that refuses connections costs no time: the next one is asked immediately. One that neither
refuses nor answers is given up after a second, before anything was sent to it. With one address
nothing is different from a plain connection.
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
"""How long one of several servers may take to connect and to answer a probe."""
_TRUSTED_S: Final = 1.0
_PAUSE_S: Final = 0.2
_RECONNECT: Final = (
    # A server that is back is used again within a second or so, however long it was away.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # The time of one attempt: an address that drops packets gets new ones soon.
    ("grpc.min_reconnect_backoff_ms", 5_000),
)
_PROBE: Final = "/grpc.health.v1.Health/Check"
"""The empty request is valid. A server without the method answers, too: that it has none."""
_AWAY: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})

R = TypeVar("R")
Options = Sequence[tuple[str, int]]


class Server:
    """One address, and the connection to it."""

    def __init__(self, address: str, options: Options) -> None:
        self.address: Final = address
        self.channel: Final = grpc.insecure_channel(address, options=[*options, *_RECONNECT])
        self.answered_at: float | None = None
        """When it last answered; None: not yet, or not the last time."""

    def await_ready(self, seconds: float, now: float) -> bool:
        """Return whether the server answers, after `seconds` at most; one that answered a moment
        ago does."""
        if self.answered_at is not None and now - self.answered_at < _TRUSTED_S:
            return True
        return self.connect(seconds)

    def connect(self, seconds: float, *, waits: bool = False) -> bool:
        """Return whether the server answers, after `seconds` at most. `waits`: also for one that
        refuses connections; else that is known immediately.

        The answer is that to a call. gRPC can also watch a connection, from a thread: a program
        that ends while this thread runs, without closing the channel, waits for it forever.
        """
        try:
            probe = self.channel.unary_unary(
                _PROBE, request_serializer=bytes, response_deserializer=bytes
            )
            probe(b"", timeout=seconds, wait_for_ready=waits)
        except grpc.RpcError as error:
            call: object = error
            return not isinstance(call, grpc.Call) or call.code() not in _AWAY
        except ValueError:
            return True  # closed by another thread: the call itself says so
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
        count = len(self._servers)
        while True:
            for number, server in enumerate(self._servers):
                left = max(0.0, end - self._clock.monotonic())
                if server.connect(min(CONNECT_S / count, left), waits=count == 1):
                    self._current = number
                    server.answered_at = self._clock.monotonic()
                    return
            left = end - self._clock.monotonic()
            if left <= 0:
                break
            self._clock.wait(self._never, min(_PAUSE_S, left))
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
            share = (end - now) / (count - step)
            if now >= end or not server.await_ready(min(_TRY_S, share), now):
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
        for server in self._servers:
            server.channel.close()
