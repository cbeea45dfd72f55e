"""`Consumer`: reads topics on behalf of a group, which remembers how far it came.

    with store.consumer("billing", ["orders"]) as consumer:
        for message in consumer:            # up to what is there now
            handle(message)
        consumer.commit()

    for message in consumer.follow():       # and waits for more
        ...

The consumer has all partitions of its topics, also those that a topic gets later. Its positions
move with what it hands out; `commit` makes them the group's. What was handed out and not committed
is read again by the next consumer of the group: every record is handled at least once.

A topic that is deleted and created again is another one. Positions belong to one topic and never
become those of the next that has its name: that one is read from its beginning.

A consumer is used from one thread at a time; a group is as many consumers as there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Final, Literal, Self

from penstock.adapter.locations import Message
from penstock.api.backend import Backend, TopicPartition
from penstock.api.checks import (
    as_seconds,
    check_mapping,
    check_name,
    check_partition,
    check_places,
)
from penstock.api.moments import as_ms
from penstock.api.waiting import SLICE_S
from penstock.clock import SystemClock
from penstock.engine.arguments import check_limit, check_offset
from penstock.engine.contract import SIZE_PER_READ, AdapterOffsetStrategy
from penstock.errors import BadRequestError, BusyError, ClosedError, TopicReplacedError
from penstock.record import Offset, StoredRecord

Start = Literal["earliest", "latest"] | int | datetime

PAGE: Final = 500
_COMMIT_TRIES: Final = 10
_NOWHERE: Final = Offset(-1)
"""What no position is."""


class Consumer:
    """Use `Store.consumer`."""

    def __init__(
        self,
        backend: Backend,
        namespace: str,
        group: str,
        topics: Sequence[str],
        *,
        start: Start = "earliest",
    ) -> None:
        if not topics:
            raise BadRequestError("a consumer reads at least one topic")
        check_name(group, "a group")
        if not group:
            raise BadRequestError("a group has a name")
        for topic in topics:
            check_name(topic, "a topic's name")
        _check_start(start)
        self.group: Final = group
        self.topics: Final = tuple(dict.fromkeys(topics))
        self._backend: Final = backend
        self._namespace: Final = namespace
        self._start: Final = start
        self._positions: dict[TopicPartition, Offset] = {}
        self._committed: dict[TopicPartition, Offset] = {}
        self._topic_ids: dict[str, str] = {}
        """Whose the positions are, by name."""
        self._expected: dict[TopicPartition, Offset] = {}
        """The positions as the page that is being handed out left them."""
        self._clock: Final = SystemClock()
        self._turn = 0
        self._closed = False
        self._assign()

    # Reading

    def poll(self, timeout: float = 0.0, *, max_records: int = PAGE) -> list[Message]:
        """Return the next records, at most `max_records`; when there are none, wait for some, up to
        `timeout` seconds."""
        page = self.fetch(self.check_poll(timeout, max_records), max_records)
        for _ in self.hand_out(page):
            pass
        return page

    def __iter__(self) -> Iterator[Message]:
        """Iterate until everything that is there was handed out. A position moves when its record
        is handed out, so that a loop can commit, or seek, in its midst."""
        return self._messages(0.0)

    def follow(self, timeout: float | None = None) -> Iterator[Message]:
        """Iterate for ever, waiting for records; with `timeout`, until none came for so many
        seconds."""
        seconds = SLICE_S if timeout is None else as_seconds(timeout, "timeout")
        while not self._closed:
            yield from self._messages(seconds)
            if timeout is not None:
                return

    # Positions

    @property
    def positions(self) -> Mapping[TopicPartition, Offset]:
        """The next offset to read, by topic and partition."""
        return dict(self._positions)

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Make the positions, or the offsets given, those of the group.

        Positions in a topic that was deleted and created again are forgotten, and the new one
        begins. Offsets that are given are for the topics that have the names now.
        """
        self._check_open()
        if offsets is None:
            self._commit_positions()
            return
        check_mapping(offsets)
        news = {at: Offset(offset) for at, offset in offsets.items()}
        if news:
            try:
                self._commit(news, {})
            except (TypeError, ValueError):
                check_places(news)  # only now: commits are many, and mistakes are few
                raise

    def committed(self) -> dict[TopicPartition, Offset]:
        """Return what the group has committed; partitions without are left out."""
        return self._backend.committed(self._namespace, self.group, self.topics)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read on from `offset`."""
        self._check_open()
        check_partition(partition)
        check_offset(offset)
        if topic not in self.topics:
            raise BadRequestError(f"this consumer does not read a topic {topic!r}")
        self._assign_topic(topic)  # where to read on is said of the topic that is there now
        at = (topic, partition)
        if at not in self._positions:
            raise BadRequestError(f"this consumer does not read partition {partition} of {topic!r}")
        self._positions[at] = Offset(offset)

    def seek_to(self, start: Start) -> None:
        """Read on from the beginning, the end or a moment, in all partitions."""
        self._check_open()
        _check_start(start)
        self._assign()
        for topic in self.topics:
            partitions = [p for name, p in self._positions if name == topic]
            self._positions.update(self._starts(topic, partitions, start))

    def lag(self) -> dict[TopicPartition, int]:
        """Return how many offsets lie between each position and the end."""
        self._assign()
        found = {}
        for (topic, partition), offset in self._positions.items():
            info = self._backend.partition_info(self._namespace, topic, partition)
            found[topic, partition] = max(0, info.commit - max(offset, info.earliest))
        return found

    def close(self) -> None:
        """Stop reading; nothing is committed by this."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Inside

    def _messages(self, timeout: float) -> Iterator[Message]:
        while page := self.fetch(timeout, PAGE):
            yield from self.hand_out(page)
            if self._closed:
                return

    @staticmethod
    def check_poll(timeout: object, max_records: object) -> float:
        """Check what `poll` was asked for; return how many seconds it waits."""
        check_limit(max_records, "max_records")
        return as_seconds(timeout, "timeout")

    def hand_out(self, page: Sequence[Message]) -> Iterator[Message]:
        """Yield what `fetch` returned; a position moves when its record is handed out."""
        expected = self._expected = dict(self._positions)
        for message in page:
            at = (message.topic, message.partition)
            if self._positions.get(at) != expected.get(at):
                continue  # sought, or another topic: the rest of this partition is not wanted
            self._positions[at] = expected[at] = Offset(message.offset + 1)
            yield message
            if self._closed:
                return

    def commit_handled(self, offsets: Mapping[TopicPartition, Offset]) -> bool:
        """Commit how far what this consumer returned was handled: for those who handle records by
        themselves. False: a topic was created again since; nothing was committed, and the next
        records are the new one's."""
        try:
            self._commit(dict(offsets), self._topic_ids)
        except TopicReplacedError:
            self._assign()
            return False
        return True

    def fetch(self, timeout: float, max_records: int) -> list[Message]:
        """Return what `poll` returns and leave the positions where they are: for those who hand the
        records out by themselves."""
        deadline = self._clock.monotonic() + timeout
        while True:
            self._check_open()
            self._assign()
            found = self._read(max_records)
            left = deadline - self._clock.monotonic()
            if found or left <= 0:
                return found
            slice_s = min(left, SLICE_S)
            if self._backend.wait_for_records(self._namespace, self._positions, slice_s):
                found = self._read(max_records)
                if found:
                    return found
                self._skip_holes()

    def _read(self, max_records: int) -> list[Message]:
        found: list[Message] = []
        parts = list(self._positions)
        # Each call begins with another partition, so that a busy one does not starve the others.
        self._turn = (self._turn + 1) % len(parts)
        for topic, partition in [*parts[self._turn :], *parts[: self._turn]]:
            if len(found) >= max_records:
                break
            page = self._read_partition(topic, partition, max_records - len(found))
            found += [Message(topic, partition, record) for record in page]
        return found

    def _read_partition(self, topic: str, partition: int, max_records: int) -> list[StoredRecord]:
        position = self._positions[topic, partition]
        return self._backend.read(
            self._namespace, topic, partition, position, max_records, SIZE_PER_READ
        )

    def _skip_holes(self) -> None:
        """Pass over what was deleted at the end of a partition, or waiting would end at once."""
        for (topic, partition), position in list(self._positions.items()):
            end = self._backend.partition_info(self._namespace, topic, partition).commit
            # Read behind that look: a record that came in between is not passed over.
            if end > position and not self._read_partition(topic, partition, 1):
                self._positions[topic, partition] = end

    def _commit_positions(self) -> None:
        for _ in range(_COMMIT_TRIES):
            news = {
                at: offset
                for at, offset in self._positions.items()
                if self._committed.get(at) != offset
            }
            if not news:
                return
            try:
                self._commit(news, self._topic_ids)
            except TopicReplacedError:
                self._assign()
            else:
                return
        raise BusyError(
            f"a topic of {', '.join(self.topics)} is deleted and created again all the time; "
            "nothing was committed, try again"
        )

    def _commit(self, news: dict[TopicPartition, Offset], topic_ids: Mapping[str, str]) -> None:
        self._backend.commit(self._namespace, self.group, news, topic_ids)
        self._committed.update(news)

    def _assign(self) -> None:
        for topic in self.topics:
            self._assign_topic(topic)

    def _assign_topic(self, topic: str) -> None:
        """Take partitions that are new, with the group's offset or the start; begin anew with a
        topic that was deleted and created again."""
        topic_id, count = self._backend.locate_topic(self._namespace, topic)
        known_id = self._topic_ids.get(topic)
        is_known = known_id == topic_id
        fresh = [p for p in range(count) if not is_known or (topic, p) not in self._positions]
        if not fresh:
            return
        committed = self._backend.committed(self._namespace, self.group, [topic])
        known = {at: offset for at, offset in committed.items() if at[1] in fresh}
        missing = [p for p in fresh if (topic, p) not in known]
        # What came later, a partition or another topic, is read from its beginning, whatever the
        # start was.
        start = self._start if known_id is None else "earliest"
        begun = {**known, **self._starts(topic, missing, start)}
        # All at once: when one of the calls above fails, the old positions keep their topic.
        if not is_known:
            self._forget(topic)
        self._topic_ids[topic] = topic_id
        self._positions.update(begun)
        self._committed.update(known)

    def _forget(self, topic: str) -> None:
        for at in [at for at in self._positions if at[0] == topic]:
            del self._positions[at]
            self._committed.pop(at, None)
            self._expected[at] = _NOWHERE

    def _starts(
        self, topic: str, partitions: Sequence[int], start: Start
    ) -> dict[TopicPartition, Offset]:
        if not partitions:
            return {}
        if isinstance(start, str):
            infos = {p: self._backend.partition_info(self._namespace, topic, p) for p in partitions}
            return {
                (topic, p): info.earliest if start == "earliest" else info.commit
                for p, info in infos.items()
            }
        found = self._backend.offsets_at(
            self._namespace, topic, as_ms(start), AdapterOffsetStrategy.LATEST
        )
        return {(topic, p): found[p] for p in partitions}

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"this consumer of {self.group!r} was closed")


def _check_start(start: object) -> None:
    if not isinstance(start, str):
        as_ms(start)
    elif start not in {"earliest", "latest"}:
        raise BadRequestError(f'start is "earliest", "latest" or a moment, not {start!r}')
