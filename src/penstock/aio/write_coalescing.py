"""Write coalescing for coroutines: inline where a write takes microseconds, grouped otherwise.

    write ──▶ no wait needed: appended in the event loop

    write ─┐
    write ─┼─▶ lane of a topic ──▶ one call in a thread: one group, one sync
    write ─┘     writes that arrive meanwhile form the next group

An append to memory, or to a log that is synced later, is a hundred times faster than a call in a
thread. A coroutine with many inline writes yields to the event loop now and then (`is_long_run`).

Other writes run in a thread, with one call at a time per topic (and partition, if given). Each
coroutine gets its own result: the location of its record, or the error. Records are written in the
order of the `write` calls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.aio.thread_pool import CallExecutor
from penstock.api import Topic
from penstock.api.topic import try_write
from penstock.errors import PartialWriteError, RequestError, StoreError
from penstock.record import Location, Record

RECORDS_MAX: Final = 1_000
RUN_MAX: Final = 32
"""Consecutive inline writes before a coroutine yields to the event loop."""
SIZE_MAX: Final = 1 << 20
"""Maximum bytes of keys and values in a group; a single larger record is allowed."""

Answer = Location | StoreError
_Place = tuple[asyncio.AbstractEventLoop, str, int | None]


_BYTES: Final = (bytes, type(None))
_NUMBER: Final = (int, type(None))


def can_coalesce(record: Record, partition: object) -> bool:
    """Return whether a write can be coalesced; the store rejects the others."""
    return (
        type(record.value) in _BYTES and type(record.key) in _BYTES and type(partition) in _NUMBER
    )


class _Write(NamedTuple):
    record: Record
    answer: asyncio.Future[Location]


class WriteCoalescer:
    """The lanes of a store; a lane exists while it has pending writes."""

    def __init__(self, calls: CallExecutor) -> None:
        self._calls: Final = calls
        self._lanes: Final[dict[_Place, deque[_Write]]] = {}
        self._running: Final[set[asyncio.Task[None]]] = set()
        self._run = 0

    def try_write(self, topic: Topic, record: Record, partition: int | None) -> Location | None:
        """Write a record inline; None if that may block or would overtake pending writes."""
        if (asyncio.get_running_loop(), topic.name, partition) in self._lanes:
            return None
        return try_write(topic, record, partition)

    def is_long_run(self) -> bool:
        """Count an inline write; return whether the coroutine should yield."""
        self._run = (self._run + 1) % RUN_MAX
        return self._run == 0

    def write(
        self, topic: Topic, record: Record, partition: int | None
    ) -> asyncio.Future[Location]:
        loop = asyncio.get_running_loop()
        place = (loop, topic.name, partition)
        write = _Write(record, loop.create_future())
        lane = self._lanes.get(place)
        if lane is not None:
            lane.append(write)
        else:
            self._lanes[place] = deque((write,))
            task = loop.create_task(self._drain(topic, place))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return write.answer

    async def _drain(self, topic: Topic, place: _Place) -> None:
        lane, partition = self._lanes[place], place[2]
        try:
            while lane:
                group = _next_group(lane)
                if not group:
                    continue
                records = [write.record for write in group]
                answers: Sequence[Location | Exception]
                try:
                    answers = await self._calls.run(write_group, topic, records, partition)
                except asyncio.CancelledError:  # The loop ends.
                    lane.extendleft(group)
                    raise
                except Exception as error:  # noqa: BLE001 - set on the futures
                    answers = [error] * len(group)
                _set_results(group, answers)
        finally:
            # No await since the lane was found empty: no write was added meanwhile.
            del self._lanes[place]
            for write in lane:
                write.answer.cancel()


def _next_group(lane: deque[_Write]) -> list[_Write]:
    """Return the next group, without cancelled writes."""
    group: list[_Write] = []
    room = SIZE_MAX
    while lane and len(group) < RECORDS_MAX:
        record, answer = lane[0]
        room -= len(record.value or b"") + len(record.key or b"")
        if group and room < 0:
            break
        write = lane.popleft()
        if not answer.cancelled():
            group.append(write)
    return group


def _set_results(group: Sequence[_Write], answers: Sequence[Location | Exception]) -> None:
    for (_, waiting), answer in zip(group, answers, strict=True):
        if waiting.done():
            continue  # cancelled
        if isinstance(answer, Exception):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)


def write_group(topic: Topic, records: Sequence[Record], partition: int | None) -> list[Answer]:
    """Write records in one call; return the result of each.

    A group that is rejected was not written, and its records are retried one by one: a single bad
    record rejects a group. Any other failure applies to all records.
    """
    if len(records) == 1:
        return [_write_alone(topic, records[0], partition)]
    try:
        return list(topic.write_many(list(records), partition=partition))
    except RequestError:
        return [_write_alone(topic, record, partition) for record in records]
    except PartialWriteError as error:
        return _with_the_rest(topic, records, partition, error)
    except StoreError as error:
        return [error] * len(records)


def _with_the_rest(
    topic: Topic, records: Sequence[Record], partition: int | None, error: PartialWriteError
) -> list[Answer]:
    failures = [
        failure for failure in error.errors.values() if not isinstance(failure, RequestError)
    ]

    def answer(record: Record, location: Location | None) -> Answer:
        if location is not None:
            return location
        # The failed partition is unknown: do not retry, to avoid duplicates.
        return failures[0] if failures else _write_alone(topic, record, partition)

    return [answer(*pair) for pair in zip(records, error.locations, strict=True)]


def _write_alone(topic: Topic, record: Record, partition: int | None) -> Answer:
    try:
        return topic.write(record, partition=partition)
    except StoreError as error:
        return error
