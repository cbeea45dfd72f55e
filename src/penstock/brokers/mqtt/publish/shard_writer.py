"""Appends the publishes of all connections, shard by shard and in their order.

    appends that may not wait ──▶ one driver call on the event loop, microseconds
    others                    ──▶ queue of the shard ──▶ one driver call in the pool for all that
                                  waits, so that writers share a sync of the device

A shard has one call in the pool at a time: later appends wait for it, which keeps the order of
every connection's publishes. When a call fails because of one record, the records are written one
by one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from penstock.adapter import StorageDriverManager
from penstock.adapter.topics import TopicRoute
from penstock.brokers.mqtt.deliver.message import Message
from penstock.brokers.mqtt.topics.mapping import MappedTopic
from penstock.engine.contract import Written
from penstock.errors import BadRequestError, RecordTooLargeError, StoreError
from penstock.record import Offset, Record

if TYPE_CHECKING:
    from penstock.brokers.mqtt.sessions.session import Session

NO_PARTITION: Final = -1
TOGETHER_SIZE_MAX: Final = 4 << 20
"""Bytes of the appends that one call in the pool combines."""

Outcome = int | StoreError
"""The offset of a record, or why it was not stored."""
Done = Callable[["Append", Sequence[Outcome]], None]


class Following(Protocol):
    """Takes messages that were stored to their subscribers; `Delivery` in `deliver`."""

    def expect(self, shard_name: str) -> None:
        """An append runs in the pool; one of the other two calls follows."""
        ...

    def appended(self, shard_name: str, first: Offset, messages: Sequence[Message]) -> None: ...

    def append_failed(self, shard_name: str) -> None: ...


class Append:
    """Records of one connection, or of the front end itself, for one shard."""

    __slots__ = ("done", "mapped", "messages", "records", "session", "size", "tokens")

    def __init__(self, mapped: MappedTopic, done: Done) -> None:
        self.mapped: Final = mapped
        self.done: Final = done
        """Called on the event loop with the outcome of each record, when the contract of the
        storage acknowledges it."""
        self.session: Session | None = None
        """Whose client publishes; None: the node itself."""
        self.records: Final[list[Record]] = []
        self.messages: Final[list[Message]] = []
        """The records as subscribers get them; empty for records that have no subscribers."""
        self.tokens: Final[list[object]] = []
        """For each record, what the caller keeps of it."""
        self.size = 0


class ShardWriter:
    def __init__(
        self,
        drivers: StorageDriverManager,
        spawn: Callable[[Coroutine[None, None, None], str], asyncio.Task[None]],
        delivery: Following,
    ) -> None:
        self._drivers: Final = drivers
        self._spawn: Final = spawn
        self._delivery: Final = delivery
        self._queues: Final[dict[str, deque[Append]]] = {}
        """By shard: what waits for the call in the pool; a shard without one is not in here."""
        self.waiting_size = 0
        """Bytes of all appends that wait for the pool."""
        self.writes_now = True
        """Whether appends that do not wait for a device are made on the event loop."""
        self.delayed: Final[set[str]] = set()
        """Shards that do not wait for a device, and whose records are written one by one."""

    def write(self, append: Append) -> None:
        """Append records; `append.done` gets the outcome, now or later."""
        mapped = append.mapped
        queue = self._queues.get(mapped.shard_name)
        if queue is None and self.writes_now and not mapped.may_wait:
            outcomes = self._write_now(append)
            if outcomes is not None:
                append.done(append, outcomes)
                return
        self.waiting_size += append.size
        if queue is not None:
            queue.append(append)
            return
        if not mapped.may_wait:
            self.delayed.add(mapped.shard_name)
        self._queues[mapped.shard_name] = queue = deque((append,))
        self._spawn(self._drain(mapped.shard_name, queue), "mqtt-append")

    def _write_now(self, append: Append) -> Sequence[Outcome] | None:
        """Append on the event loop; None: the records have to be written one by one."""
        mapped, records = append.mapped, append.records
        assert mapped.route is not None, "a topic without a route is created first"
        try:
            written = mapped.route.driver.batch_write(mapped.shard_name, records)
        except (BadRequestError, RecordTooLargeError) as error:
            return [error] if len(records) == 1 else None
        except StoreError as error:
            return [error] * len(records)
        if append.messages:
            self._delivery.appended(mapped.shard_name, written.first, append.messages)
        return written.offsets

    async def _drain(self, shard_name: str, queue: deque[Append]) -> None:
        """Write what waits for a shard, until nothing does."""
        try:
            while queue:
                together = _first_of(queue)
                outcomes = await self._write_later(shard_name, together)
                for append, outcome in zip(together, outcomes, strict=True):
                    self.waiting_size -= append.size
                    append.done(append, outcome)
        finally:
            del self._queues[shard_name]
            self.delayed.discard(shard_name)
            for append in queue:
                self.waiting_size -= append.size

    async def _write_later(
        self, shard_name: str, together: list[Append]
    ) -> list[Sequence[Outcome]]:
        records = [record for append in together for record in append.records]
        messages = [message for append in together for message in append.messages]
        if messages:
            self._delivery.expect(shard_name)
        written: Written | None = None
        try:
            written = await self._append(together, records)
        except (BadRequestError, RecordTooLargeError) as error:
            if len(records) == 1:
                return [[error]]
            return [await self._write_singly(shard_name, append) for append in together]
        except StoreError as error:
            return [[error] * len(append.records) for append in together]
        finally:
            if messages and written is None:
                self._delivery.append_failed(shard_name)
        first = written.first
        if messages:
            self._delivery.appended(shard_name, first, messages)
        outcomes: list[Sequence[Outcome]] = []
        for append in together:
            outcomes.append(range(first, first + len(append.records)))
            first = Offset(first + len(append.records))
        return outcomes

    async def _append(self, together: Sequence[Append], records: Sequence[Record]) -> Written:
        """Append the records of some appends in the pool, all or none."""
        mapped = together[0].mapped
        route = mapped.route
        assert route is not None, "a topic without a route is created first"
        return await self._drivers.run_blocking(
            lambda: route.driver.batch_write(mapped.shard_name, records)
        )

    async def _write_singly(self, shard_name: str, append: Append) -> list[Outcome]:
        """Write records whose batch was refused, so that only the bad ones are."""
        route = append.mapped.route
        assert route is not None, "a topic without a route is created first"
        outcomes: list[Outcome] = []
        for number, record in enumerate(append.records):
            outcome = await self._drivers.run_blocking(
                partial(_write_one, route, shard_name, record)
            )
            if isinstance(outcome, StoreError):
                outcomes.append(outcome)
                continue
            outcomes.append(outcome.first)
            if append.messages:
                # Without `expect`: delivery may have read it from the log already.
                message = append.messages[number]
                self._delivery.appended(shard_name, outcome.first, [message])
        return outcomes


def _place_of(append: Append) -> int:
    return NO_PARTITION if append.session is None else append.session.partition


def _write_one(route: TopicRoute, shard_name: str, record: Record) -> Written | StoreError:
    try:
        return route.driver.write(shard_name, record)
    except StoreError as error:
        return error


def _first_of(queue: deque[Append]) -> list[Append]:
    """Remove and return the appends that one call writes: those of sessions that end here
    together, when another node leads their partition."""
    together = [queue.popleft()]
    size, place = together[0].size, _place_of(together[0])
    while queue and size + queue[0].size <= TOGETHER_SIZE_MAX and _place_of(queue[0]) == place:
        size += queue[0].size
        together.append(queue.popleft())
    return together
