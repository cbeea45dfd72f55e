"""The memory that replies to readers may take, all together.

A read takes its share before it begins: what it asked for, or what one batch may inflate to. It
keeps what its reply has until the call has ended. A read that finds no room waits, for a bounded
time and beside a bounded number of others, and is then refused with `BusyError`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeVar

from google.protobuf.message import Message as WireMessage

from penstock.errors import BusyError
from penstock.platform.calls.grpc import when_ended
from penstock.remote.wire.records import READ_SIZE_MAX

M = TypeVar("M", bound=WireMessage)

WAIT_S: Final = 20.0
WAITS_MAX: Final = 128
"""Threads of the server that may wait here: the others serve calls that do not read."""
READ_MEMORY_MAX: Final = 1 << 30
BATCH_SIZE: Final = 64 << 20
"""What one batch may inflate to (`kafka.batch_inflated_size_max`)."""
RECORD_SIZE: Final = 4 << 20
COPIES: Final = 3
"""A reply in memory: the records, the message that they become, and its bytes on their way."""


class ReadBudget:
    def __init__(self, size_max: int, wait_s: float = WAIT_S) -> None:
        self.size_max: Final = size_max
        self.wait_s: Final = wait_s
        self._used = 0
        self._changed: Final = threading.Condition()
        self._waits: Final = threading.Semaphore(WAITS_MAX)
        self._wakes: Final[dict[Callable[[], None], None]] = {}
        """Of streams that wait for room; each is there once."""

    @property
    def used(self) -> int:
        return self._used

    def reserve(self, size: int) -> Share:
        """Return a share of `size` bytes, which waits for others to end. One that is larger than
        the whole budget is taken when no other is held."""
        with self._changed:
            if not self._has_room(size):
                self._wait(size)
            self._used += size
        return Share(self, size)

    def reserve_or_call(self, size: int, wake: Callable[[], None]) -> Share | None:
        """Return a share, or None when there is no room: `wake` is called, once, when another share
        was given back. For a caller that must not wait in its thread."""
        with self._changed:
            if self._has_room(size):
                self._wakes.pop(wake, None)
                self._used += size
                return Share(self, size)
            self._wakes[wake] = None
            return None

    def give_up(self, wake: Callable[[], None]) -> BusyError:
        """Call `wake` no more; return why there is no share."""
        with self._changed:
            self._wakes.pop(wake, None)
        return self._refusal()

    def _has_room(self, size: int) -> bool:
        return self._used == 0 or self._used + size <= self.size_max

    def _wait(self, size: int) -> None:
        may_wait = self._waits.acquire(blocking=False)
        try:
            wait_s = self.wait_s if may_wait else 0.0
            if not self._changed.wait_for(lambda: self._has_room(size), wait_s):
                raise self._refusal()
        finally:
            if may_wait:
                self._waits.release()

    def _refusal(self) -> BusyError:
        return BusyError(
            f"replies to other readers take {self._used} bytes; the limit is "
            f"server.read_memory_max = {self.size_max}; read again later, or less at a time"
        )

    def change(self, size: int) -> None:
        """Count `size` bytes more, or less. Never waits: it is about memory that is taken."""
        wakes: list[Callable[[], None]] = []
        with self._changed:
            self._used += size
            if size < 0:
                self._changed.notify_all()
                if self._wakes:
                    wakes = list(self._wakes)
                    self._wakes.clear()
        for wake in wakes:
            wake()


class Share:
    """Bytes of a budget; given back once, by whichever end of a call comes first."""

    def __init__(self, budget: ReadBudget, size: int) -> None:
        self._budget: Final = budget
        self._lock: Final = threading.Lock()
        self._size = size
        self._is_held = True

    def resize(self, size: int) -> None:
        """Keep what a reply of `size` bytes takes, in place of what was taken for it."""
        with self._lock:
            if self._is_held:
                self._budget.change(COPIES * size - self._size)
                self._size = COPIES * size

    def release(self) -> None:
        with self._lock:
            if self._is_held:
                self._is_held = False
                self._budget.change(-self._size)

    def release_with(self, when_ended: Callable[[Callable[[], None]], bool]) -> None:
        """Release it at the end of the call, or now when the call has ended."""
        if not when_ended(self.release):
            self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


class ReadLimits:
    """What a read may take of the server's memory."""

    def __init__(
        self,
        size_max: int = READ_MEMORY_MAX,
        holds_batches: Callable[[str, str], bool] = lambda _namespace, _topic: False,
    ) -> None:
        """`holds_batches` says whether a topic has batches, each of which may inflate."""
        self.budget: Final = ReadBudget(size_max)
        self._holds_batches: Final = holds_batches

    def share(self, namespace: str, topic: str, max_size: int) -> Share:
        return self.budget.reserve(self.size_of(namespace, topic, max_size))

    def size_of(self, namespace: str, topic: str, max_size: int) -> int:
        """Return what a read takes before it begins."""
        least = BATCH_SIZE if self._holds_batches(namespace, topic) else RECORD_SIZE
        return max(min(max_size, READ_SIZE_MAX), least)


def with_share(share: Share, read: Callable[[], M]) -> M:
    """Return a reply, and hold its share until the call has ended."""
    try:
        reply = read()
        share.resize(reply.ByteSize())
    except BaseException:
        share.release()
        raise
    share.release_with(when_ended)
    return reply
