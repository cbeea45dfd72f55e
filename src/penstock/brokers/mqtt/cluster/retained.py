"""`RetainedFollower`: keeps the index of retained messages of this node, also of other nodes.

It reads `__mqtt_retained` from the beginning, and goes on when the watch of a shard or the stream
of its leader says that there is more. A subscription waits until the index has what is committed
at that moment: what was acknowledged before by another node is delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.adapter import RecordWatch, StorageDriverManager
from penstock.brokers.mqtt.retained.store import PAGE_RECORDS, PAGE_SIZE, TOPIC, RetainedStore
from penstock.errors import RetryableError, StoreError, UnknownTopicError
from penstock.meta import DEFAULT_NAMESPACE
from penstock.platform.log import get_logger
from penstock.record import Offset, StoredRecord

RETRY_S: Final = 0.5
CATCH_UP_S: Final = 5.0

_log: Final = get_logger(__name__)


class _Shard:
    __slots__ = ("name", "partition", "position", "task", "watch", "woken")

    def __init__(self, name: str, partition: int) -> None:
        self.name: Final = name
        self.partition: Final = partition
        self.position = 0
        self.woken = False
        self.task: asyncio.Task[None] | None = None
        self.watch: RecordWatch | None = None


class RetainedFollower:
    def __init__(
        self,
        drivers: StorageDriverManager,
        store: RetainedStore,
        on_grown: Callable[[str, int], None],
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """`on_grown` is called with a shard and how far it was read."""
        self._drivers: Final = drivers
        self._store: Final = store
        self._on_grown: Final = on_grown
        self._namespace: Final = namespace
        self._shards: Final[dict[str, _Shard]] = {}
        self._moved: Final = asyncio.Condition()
        self._asking: asyncio.Task[list[int]] | None = None
        store.catch_up = self.catch_up

    def ends(self) -> dict[str, int]:
        return {shard.name: shard.position for shard in self._shards.values()}

    def update(self) -> None:
        """Follow the shards of the topic once it exists; called often."""
        if self._shards:
            return
        is_there = (self._namespace, TOPIC) in self._drivers.broker_cache.topics
        if not is_there:
            if not self._store.is_loaded:
                self._store.set_loaded()
            return
        try:
            route = self._drivers.routes.find(TOPIC, self._namespace)
        except (UnknownTopicError, RetryableError):
            return
        loop = asyncio.get_running_loop()
        for partition, name in enumerate(route.shards):
            shard = self._shards[name] = _Shard(name, partition)
            wake = partial(self._wake_from_thread, loop, shard)
            place = {(TOPIC, partition): Offset(0)}
            try:
                shard.watch = self._drivers.watch_records(place, wake, namespace=self._namespace)
            except StoreError as error:
                _log.warning("mqtt_shard_not_watched", shard=name, reason=str(error))
            self.look(shard)

    def _wake_from_thread(self, loop: asyncio.AbstractEventLoop, shard: _Shard) -> None:
        if not shard.woken:
            shard.woken = True
            loop.call_soon_threadsafe(self.look, shard)

    def advertised(self, name: str, end: int) -> None:
        """The leader of a shard says how far it goes."""
        shard = self._shards.get(name)
        if shard is not None and end > shard.position:
            self.look(shard)

    def look(self, shard: _Shard) -> None:
        """Read what a shard has more."""
        shard.woken = True
        if shard.task is None:
            shard.task = asyncio.get_running_loop().create_task(
                self._read(shard), name="mqtt-follow-retained"
            )

    async def _read(self, shard: _Shard) -> None:
        try:
            while shard.woken:
                shard.woken = False
                try:
                    await self._read_to_end(shard)
                except StoreError as error:
                    _log.warning("mqtt_retained_not_read", shard=shard.name, reason=str(error))
                    await asyncio.sleep(RETRY_S)
                    shard.woken = True
        finally:
            shard.task = None

    async def _read_to_end(self, shard: _Shard) -> None:
        while True:
            end = await self._info(shard)  # before the records: some may come in between
            if end <= shard.position:
                break
            records = await self._read_page(shard)
            for record in records:
                self._store.apply(record)
            # Without records, compaction has removed the rest.
            shard.position = records[-1].offset + 1 if records else end
            self._on_grown(shard.name, shard.position)
        async with self._moved:
            self._moved.notify_all()
        if not self._store.is_loaded and not any(
            other.woken or (other.task is not None and other is not shard)
            for other in self._shards.values()
        ):
            self._store.set_loaded()

    async def _read_page(self, shard: _Shard) -> list[StoredRecord]:
        call = partial(
            self._drivers.read_by_offset,
            TOPIC,
            shard.partition,
            Offset(shard.position),
            max_records=PAGE_RECORDS,
            max_size=PAGE_SIZE,
            namespace=self._namespace,
        )
        return await self._drivers.run_blocking(call)

    async def _info(self, shard: _Shard) -> int:
        call = partial(self._drivers.shard_info, TOPIC, shard.partition, namespace=self._namespace)
        return (await self._drivers.run_blocking(call)).commit

    # Subscribing

    async def catch_up(self) -> None:
        """Return when the index has what is committed now."""
        if not self._shards:
            if (self._namespace, TOPIC) not in self._drivers.broker_cache.topics:
                return
            self.update()
        try:
            ends = await self._ask_ends()
            shards = list(self._shards.values())
            for shard, end in zip(shards, ends, strict=False):
                if shard.position < end:
                    self.look(shard)
            async with asyncio.timeout(CATCH_UP_S), self._moved:
                await self._moved.wait_for(
                    lambda: all(s.position >= end for s, end in zip(shards, ends, strict=False))
                )
        except (StoreError, TimeoutError) as error:
            _log.warning("mqtt_retained_may_be_old", reason=str(error) or "no answer in time")

    async def _ask_ends(self) -> list[int]:
        """Return the ends of all shards now. Subscriptions that wait together ask once."""
        running = self._asking
        if running is not None:
            # It may have asked before the caller came: the next one has not.
            await asyncio.wait((running,))
        if self._asking is None or self._asking is running:
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> list[int]:
        places = [shard.partition for shard in self._shards.values()]
        info, namespace = self._drivers.shard_info, self._namespace

        def ask() -> list[int]:
            return [info(TOPIC, partition, namespace=namespace).commit for partition in places]

        return await self._drivers.run_blocking(ask)

    async def close(self) -> None:
        for shard in self._shards.values():
            if shard.watch is not None:
                shard.watch.close()
            if shard.task is not None:
                shard.task.cancel()
