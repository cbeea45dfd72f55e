"""`Tails`: the shards that delivery follows, all those that the mapping can use.

A shard is followed from the end that it has when it is opened, or from its mark (`sessions.marks`)
after a start. Each has a watch, which says when another writer has appended.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Protocol

from penstock.adapter import StorageDriverManager
from penstock.brokers.mqtt.deliver.message import Message
from penstock.brokers.mqtt.deliver.shard_tail import ShardTail
from penstock.engine.contract import ShardInfo
from penstock.errors import StoreError
from penstock.meta import DEFAULT_NAMESPACE
from penstock.platform.log import get_logger
from penstock.record import Offset, StoredRecord

_log: Final = get_logger(__name__)


class StoredTopicName(Protocol):
    """A stored topic that a filter can reach."""

    @property
    def name(self) -> str: ...

    @property
    def shards(self) -> tuple[str, ...]: ...


class TopicNames(Protocol):
    """The mapping, as far as delivery uses it."""

    def name_of(self, key: bytes | None, stored_topic: str) -> str: ...


class MessageDecoder(Protocol):
    def decode(self, record: StoredRecord, topic: str) -> Message: ...


class Tails:
    def __init__(
        self,
        drivers: StorageDriverManager,
        look: Callable[[ShardTail], None],
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """`look` is called on the event loop when another writer may have appended to a shard."""
        self._drivers: Final = drivers
        self._look: Final = look
        self._namespace: Final = namespace
        self.by_name: Final[dict[str, ShardTail]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._is_closed = False

    def __iter__(self) -> Iterator[ShardTail]:
        return iter(self.by_name.values())

    def start(self) -> None:
        """Use the present event loop, and its thread."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def open(self, stored_topic: str, partition: int, shard_name: str, end: int) -> ShardTail:
        """Follow a shard from `end` on."""
        tail = self.by_name.get(shard_name)
        if tail is None:
            tail = self.by_name[shard_name] = ShardTail(shard_name, stored_topic, partition, end)
            self._watch(tail)
        return tail

    def open_topic(self, stored_topic: str, *, end: int = 0) -> list[ShardTail]:
        """Follow the shards of a stored topic that was just created; those that are followed
        already stay as they are."""
        route = self._drivers.routes.find(stored_topic, self._namespace)
        return [
            self.open(stored_topic, partition, name, end)
            for partition, name in enumerate(route.shards)
        ]

    def topic_name(self, topic_id: str) -> str | None:
        """Return the name of a stored topic; None: it was deleted."""
        names = self._drivers.routes.names_of({topic_id}, self._namespace)
        return names[0] if names else None

    async def info(self, tail: ShardTail) -> ShardInfo:
        """Return the bounds of a shard as readers see them."""
        call = partial(
            self._drivers.shard_info,
            tail.stored_topic,
            tail.partition,
            namespace=self._namespace,
        )
        return await self._drivers.run_blocking(call)

    def close_shard(self, tail: ShardTail) -> None:
        """Follow a shard no longer: its topic was deleted."""
        tail.is_gone = True
        self.by_name.pop(tail.name, None)
        if tail.watch is not None:
            tail.watch.close()
            tail.watch = None

    def close(self) -> None:
        self._is_closed = True
        for tail in list(self.by_name.values()):
            if tail.watch is not None:
                tail.watch.close()
                tail.watch = None

    def _watch(self, tail: ShardTail) -> None:
        loop, here = self._loop, self._thread
        assert loop is not None, "delivery was started"

        def wake() -> None:
            """Called by every writer, in its thread: this front end reports its own appends."""
            if tail.woken or tail.is_remote or threading.get_ident() == here:
                return
            tail.woken = True
            if not self._is_closed:
                loop.call_soon_threadsafe(self._look, tail)

        place = (tail.stored_topic, tail.partition)
        try:
            tail.watch = self._drivers.watch_records(
                {place: Offset(tail.known_end)}, wake, namespace=self._namespace
            )
        except StoreError as error:
            _log.warning("mqtt_shard_not_watched", shard=tail.name, reason=str(error))
