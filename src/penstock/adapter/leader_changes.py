"""Repeats calls to a shard while its leader changes.

`NotLeaderError` says that nothing was done: the metadata of this node are older than those of the
leader, the new leader is not ready, or the old one is about to stop. So does `NotSentError`: the
leader is not there, and another one will follow. The call is made again until the shard has a
leader that serves it, for a bounded time. A shard with one copy, or without a replica that may
lead, is not waited for. An error that leaves the outcome open ends the repetition.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from penstock.engine.contract import Written
from penstock.engine.handler import StorageEngineHandler
from penstock.errors import NotLeaderError, NotSentError, StoreError
from penstock.record import Record

WAIT_S: Final = 10.0
"""How long a call waits for a leader, at most."""
_PAUSE_S: Final = 0.02

UNDONE: Final = (NotLeaderError, NotSentError)
"""Errors of a call that had no effect."""

T = TypeVar("T")
Part = tuple[str, Sequence[Record]]
Result = Written | StoreError


class LeaderChanges:
    def __init__(self, handler: StorageEngineHandler) -> None:
        self._handler: Final = handler
        self._never: Final = threading.Event()

    def repeat(self, shard: str, error: StoreError, call: Callable[[], T]) -> T:
        """Return what `call` returns, which raised `error`, one of `UNDONE`, first."""
        until = self._handler.clock.monotonic() + WAIT_S
        while self._may_wait(shard, until):
            try:
                return call()
            except UNDONE as again:
                error = again
        raise error

    def repeat_parts(
        self,
        parts: Sequence[Part],
        results: list[Result],
        write: Callable[[Sequence[Part]], list[Result]],
    ) -> list[Result]:
        """Return the results of `write`, of which the first call returned `results`, in the order
        of the parts."""
        until = self._handler.clock.monotonic() + WAIT_S
        while True:
            moved = [
                number
                for number, result in enumerate(results)
                if isinstance(result, UNDONE) and self._has_leader(parts[number][0])
            ]
            if not moved or not self._may_wait(parts[moved[0]][0], until):
                return results
            for number, result in zip(moved, write([parts[n] for n in moved]), strict=True):
                results[number] = result

    def _may_wait(self, shard: str, until: float) -> bool:
        """Wait a moment; return whether to try again."""
        clock = self._handler.clock
        if not self._has_leader(shard) or clock.monotonic() >= until:
            return False
        clock.wait(self._never, _PAUSE_S)
        return True

    def _has_leader(self, shard: str) -> bool:
        entry = self._handler.cache.shards.get(shard)
        if entry is None or entry.meta is None or not entry.is_replicated:
            return False
        return entry.meta.leader is not None
