"""`RowWriter`: appends rows to `__mqtt_sessions`, those of one turn of the loop together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from penstock.adapter import StorageDriverManager
from penstock.adapter.topics import TopicRoute, key_hash
from penstock.errors import AlreadyExistsError, StoreError, UnknownTopicError
from penstock.meta import DEFAULT_NAMESPACE
from penstock.platform.log import get_logger
from penstock.record import Record

TOPIC: Final = "__mqtt_sessions"
PARTITIONS: Final = 4
OPTIONS: Final[Mapping[str, object]] = {
    "storage": "segment",
    "queue": "simple",
    "cleanup": "compact",
    "partitioner": "key",
    "retention_ms": -1,
}
ROWS_PER_WRITE: Final = 2_000

Done = Callable[[StoreError | None], None]
Row = tuple[bytes | int, bytes, bytes | None]
"""Client id, which decides the partition, or the partition itself; key; value."""
Fence = Callable[[int], None]
"""Raises when this node must not write rows of a partition."""

_log: Final = get_logger(__name__)


class RowWriter:
    """Rows of one partition are written in the order of `put`."""

    def __init__(
        self,
        drivers: StorageDriverManager,
        options: Mapping[str, object] = OPTIONS,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """`options` are those with which the topic is created."""
        self._options: Final = options
        self._drivers: Final = drivers
        self._namespace: Final = namespace
        self._queue: list[tuple[list[Row], Done | None]] = []
        self._is_scheduled = False
        self._writing: asyncio.Task[None] | None = None
        self.partitions = PARTITIONS
        """With how many the topic is created."""
        self.fence: Fence | None = None
        """In a cluster of several nodes: rows are written where their partition is led, or not."""
        self.before_write: Callable[[], None] = lambda: None
        """Called before each write, to add rows that wait for the end of the turn."""
        self.rows = 0
        self.failures = 0

    async def create_topic(self) -> TopicRoute:
        """Create the topic if it is not there."""
        with suppress(UnknownTopicError):
            return self.route()
        create = partial(
            self._drivers.admin.create_topic_full,
            TOPIC,
            self.partitions,
            self._options,
            namespace=self._namespace,
        )
        with suppress(AlreadyExistsError):
            await self._drivers.run_blocking(create)
        return self.route()

    def has_topic(self) -> bool:
        return (self._namespace, TOPIC) in self._drivers.broker_cache.topics

    def all_partitions(self) -> range:
        return range(self.route().partitions if self.has_topic() else self.partitions)

    def route(self) -> TopicRoute:
        return self._drivers.routes.find(TOPIC, self._namespace)

    def put(self, rows: list[Row], done: Done | None = None) -> None:
        """Write rows at the end of this turn; then call `done`, with the error if that fails."""
        self._queue.append((rows, done))
        self.schedule()

    def put_now(self, rows: list[Row], done: Done) -> None:
        """Add rows to the write that is about to begin; only from `before_write`."""
        self._queue.append((rows, done))

    async def write(self, rows: list[Row]) -> None:
        """Write rows; raise what the storage raises."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: StoreError | None) -> None:
            if written.done():
                return
            if error is None:
                written.set_result(None)
            else:
                written.set_exception(error)

        self.put(rows, done)
        await written

    def schedule(self) -> None:
        if not self._is_scheduled and self._writing is None:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._write)

    async def close(self) -> None:
        """Write what is queued."""
        while self._writing is not None or self._queue:
            if self._writing is not None:
                await asyncio.wait((self._writing,))
            else:
                self._write()

    def _write(self) -> None:
        self._is_scheduled = False
        if self._writing is not None:
            return  # continues when that has ended
        self.before_write()
        if not self._queue:
            return
        queue, self._queue = self._queue, []
        try:
            route = self.route()
        except StoreError:
            route = None  # the topic is created with the first rows
        if route is None or route.may_wait or self.fence is not None:
            self._writing = asyncio.get_running_loop().create_task(
                self._write_later(queue), name="mqtt-session-rows"
            )
            return
        failures = _write_parts(route, _by_partition(queue, route), None)
        self._report(queue, failures, route.partitions)

    async def _write_later(self, queue: list[tuple[list[Row], Done | None]]) -> None:
        count = self.partitions
        try:
            route = await self.create_topic()
            count = route.partitions
            parts = _by_partition(queue, route)
            failures = await self._drivers.run_blocking(
                partial(_write_parts, route, parts, self.fence)
            )
        except StoreError as error:
            failures = dict.fromkeys(range(count), error)
        finally:
            self._writing = None
        self._report(queue, failures, count)
        if self._queue:
            self.schedule()

    def _report(
        self,
        queue: list[tuple[list[Row], Done | None]],
        failures: dict[int, StoreError],
        count: int,
    ) -> None:
        for partition, error in failures.items():
            self.failures += 1
            _log.error("mqtt_session_rows_not_written", cause=error, partition=partition)
            if len(failures) == count:
                break  # all for the same reason
        for rows, done in queue:
            failure = None
            if failures:
                failed = (failures.get(_partition_of(row, count)) for row in rows)
                failure = next((error for error in failed if error is not None), None)
            if failure is None:
                self.rows += len(rows)
            if done is not None:
                done(failure)


def _by_partition(
    queue: list[tuple[list[Row], Done | None]], route: TopicRoute
) -> dict[int, list[Record]]:
    parts: dict[int, list[Record]] = {}
    for rows, _ in queue:
        for row in rows:
            partition = _partition_of(row, route.partitions)
            parts.setdefault(partition, []).append(Record(row[2], row[1]))
    return parts


def _partition_of(row: Row, partitions: int) -> int:
    place = row[0]
    return place if isinstance(place, int) else key_hash(place) % partitions


def _write_parts(
    route: TopicRoute, parts: dict[int, list[Record]], fence: Fence | None
) -> dict[int, StoreError]:
    """Write rows; return why those of some partitions were not written."""
    failures: dict[int, StoreError] = {}
    for partition, records in parts.items():
        try:
            for start in range(0, len(records), ROWS_PER_WRITE):
                if fence is not None:
                    fence(partition)
                route.driver.batch_write(
                    route.shards[partition],
                    records[start : start + ROWS_PER_WRITE],
                    is_local=fence is not None,
                )
        except StoreError as error:
            failures[partition] = error
    return failures
