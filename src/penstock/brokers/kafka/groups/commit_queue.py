"""Batches the commits of Kafka clients: one call carries all that wait.

A commit gets its response when the meta service's log has it. Its cost, a sync on a majority of
nodes, is shared: while one call is under way new commits wait, and the next call carries all of
them, of all groups and connections, in one log entry per offset group.

Bounds: `WAITING_MAX` commits may wait, further ones are rejected with `BusyError`; one call carries
at most `TOGETHER_MAX`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Final

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.errors import BusyError, StoreError
from penstock.offsets import GroupCommit

WAITING_MAX: Final = 20_000
TOGETHER_MAX: Final = 1_000

_Waiting = tuple[GroupCommit, "asyncio.Future[StoreError | None]"]


class CommitQueue:
    """Used from the event loop only."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker: Final = broker
        self._waiting: Final[deque[_Waiting]] = deque()
        self._is_sending = False

    async def commit(self, commit: GroupCommit) -> None:
        """Return when the offsets are stored, all or none; raise why they are not."""
        if len(self._waiting) >= WAITING_MAX:
            raise BusyError(
                f"{len(self._waiting)} commits wait to be stored (limit {WAITING_MAX}); try again"
            )
        outcome: asyncio.Future[StoreError | None]
        outcome = asyncio.get_running_loop().create_future()
        self._waiting.append((commit, outcome))
        if not self._is_sending:
            self._is_sending = True
            self._broker.spawn(self._send(), "offset commits")
        # A client that goes away takes its wait along, not the commit.
        error = await asyncio.shield(outcome)
        if error is not None:
            raise error

    async def _send(self) -> None:
        try:
            while self._waiting:
                count = min(len(self._waiting), TOGETHER_MAX)
                await self._send_together([self._waiting.popleft() for _ in range(count)])
        finally:
            self._is_sending = False
            for _, outcome in self._waiting:
                outcome.cancel()
            self._waiting.clear()

    async def _send_together(self, together: list[_Waiting]) -> None:
        commits = [commit for commit, _ in together]
        store = partial(self._broker.offsets.commit_groups, commits)
        outcomes: list[StoreError | None]
        try:
            outcomes = await self._broker.run_blocking(store)
        except StoreError as error:
            outcomes = [error] * len(together)
        except BaseException:
            for _, waiting in together:
                waiting.cancel()
            raise
        for (_, waiting), outcome in zip(together, outcomes, strict=True):
            if not waiting.done():
                waiting.set_result(outcome)
