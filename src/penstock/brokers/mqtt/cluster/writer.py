"""`ClusterShardWriter`: appends publishes to shards that any node may lead.

Each call names this node as an idempotent producer. A call whose outcome is unknown, because the
leader of the shard died, is repeated until a leader answers: the store recognises what it has
already. So a publish is stored once, and is acknowledged or refused for certain.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Final

from penstock.adapter import StorageDriverManager
from penstock.brokers.mqtt.publish.shard_writer import (
    NO_PARTITION,
    Append,
    Following,
    ShardWriter,
)
from penstock.engine.contract import Written
from penstock.errors import (
    BusyError,
    DiskFullError,
    NotLeaderError,
    NotSentError,
    RetryableError,
    StoreError,
)
from penstock.meta import MetadataClient
from penstock.record import Producer, Record

UNDONE_WAIT_S: Final = 10.0
"""How long an append waits for a leader while nothing was written."""
UNKNOWN_WAIT_S: Final = 60.0
"""How long an append is repeated whose outcome is unknown."""
PAUSE_S: Final = 0.05
IDLE_PAUSE_S: Final = 0.005
_SEQUENCES: Final = 1 << 31
_UNDONE: Final = (NotLeaderError, NotSentError, BusyError)


class SessionMovedError(StoreError):
    """The session of a publish is not run by this node any more: nothing was written."""


class ClusterShardWriter(ShardWriter):
    def __init__(
        self,
        drivers: StorageDriverManager,
        spawn: Callable[[Coroutine[None, None, None], str], asyncio.Task[None]],
        delivery: Following,
        meta: MetadataClient,
    ) -> None:
        super().__init__(drivers, spawn, delivery)
        self.writes_now = False
        self._meta: Final = meta
        self._producers: Final[dict[str, Producer]] = {}
        """By shard, who writes, and the sequence number of the next record."""
        self.check: Callable[[int], None] = lambda _: None
        """Raises when this node may not act for the sessions of a partition; called in the pool."""
        self._attempts: Final[Counter[int]] = Counter()
        """By partition of the sessions, how many calls are in the pool."""

    async def until_idle(self, partition: int, seconds: float) -> None:
        """Return when no call for the sessions of a partition is in the pool, or after a time."""
        for _ in range(int(seconds / IDLE_PAUSE_S)):
            if not self._attempts[partition]:
                return
            await asyncio.sleep(IDLE_PAUSE_S)

    async def _append(self, together: Sequence[Append], records: Sequence[Record]) -> Written:
        mapped = together[0].mapped
        name, route = mapped.shard_name, mapped.route
        assert route is not None, "a topic without a route is created first"
        producer = self._producers.get(name)
        if producer is None:
            producer = await self._new_producer()
        self._producers[name] = producer

        sessions = [append.session for append in together if append.session is not None]
        partition = sessions[0].partition if sessions else NO_PARTITION

        def write() -> Written:
            if partition != NO_PARTITION:
                self.check(partition)
            if any(session.is_unloaded for session in sessions):
                raise SessionMovedError(f"another node runs the sessions of partition {partition}")
            return route.driver.batch_write(name, records, producer=producer)

        written = await self._repeat(name, partition, write)
        sequence = (producer.sequence + len(records)) % _SEQUENCES
        self._producers[name] = producer._replace(sequence=sequence)
        return written

    async def _repeat(self, name: str, partition: int, write: Callable[[], Written]) -> Written:
        """Return what a write returns, once its outcome is known."""
        loop = asyncio.get_running_loop()
        began, is_unknown = loop.time(), False
        while True:
            self._attempts[partition] += 1
            try:
                return await self._drivers.run_blocking(write)
            except (DiskFullError, SessionMovedError):
                if is_unknown:
                    self._producers.pop(name, None)
                raise
            except RetryableError as error:
                is_unknown = is_unknown or not isinstance(error, _UNDONE)
                limit_s = UNKNOWN_WAIT_S if is_unknown else UNDONE_WAIT_S
                if loop.time() - began > limit_s:
                    if is_unknown:
                        # The store may have the records: the next ones are not a repetition.
                        self._producers.pop(name, None)
                    raise
            finally:
                self._attempts[partition] -= 1
            await asyncio.sleep(PAUSE_S)

    async def _new_producer(self) -> Producer:
        ids = await self._drivers.run_blocking(lambda: self._meta.allocate_producer_ids(1))
        return Producer(ids[0], 0, 0)
