"""`PendingCommits`: the batches of a Produce request that wait for the replicas of their shards."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Final, NamedTuple

from penstock.engine.contract import Acks, OnCommitted
from penstock.errors import DeadlineError, StoreError

WAIT_S: Final = 30.0


class Commit(NamedTuple):
    """What a write waits for before it is acknowledged."""

    acks: Acks = Acks.ALL
    on_committed: OnCommitted | None = None


WAIT_FOR_ALL: Final = Commit()
_ACKS: Final = {0: Commit(Acks.NONE), 1: Commit(Acks.LEADER)}


def acks_of(acks: int) -> Commit:
    """Return what a write with Kafka's `acks` waits for, in the thread that writes."""
    return _ACKS.get(acks, WAIT_FOR_ALL)


class PendingCommits:
    """Made on the event loop; `commit_of` may be called by any thread."""

    def __init__(self, acks: int) -> None:
        self._acks: Final = acks
        self._loop: Final = asyncio.get_running_loop()
        self._lock: Final = threading.Lock()
        self._all: Final = asyncio.Event()
        self._left: Final[set[int]] = set()
        self._errors: Final[dict[int, StoreError]] = {}

    def commit_of(self, index: int) -> Commit:
        """Return what the batch at `index` of the request has to wait for."""
        if self._acks >= 0:
            return acks_of(self._acks)
        with self._lock:
            self._left.add(index)
        return Commit(Acks.ALL, partial(self._done, index))

    def drop(self, index: int) -> None:
        """Wait no more for a batch that was not written."""
        self._done(index, None)

    def _done(self, index: int, error: StoreError | None) -> None:
        with self._lock:
            self._left.discard(index)
            if error is not None:
                self._errors[index] = error
            is_over = not self._left
        if is_over and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._all.set)

    async def wait(self) -> dict[int, StoreError]:
        """Wait until all batches are committed; return why some are not."""
        deadline = self._loop.time() + WAIT_S
        while True:
            self._all.clear()
            with self._lock:
                if not self._left:
                    return self._errors
            try:
                async with asyncio.timeout_at(deadline):
                    await self._all.wait()
            except TimeoutError:
                with self._lock:
                    late = DeadlineError(
                        f"the replicas did not have a batch within {WAIT_S:g} s; the outcome is "
                        "unknown"
                    )
                    return {**dict.fromkeys(self._left, late), **self._errors}
