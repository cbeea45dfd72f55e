"""`Consumer`: reads topics as a member of a consumer group.

    with store.consumer("billing", ["orders"]) as consumer:
        for message in consumer:            # until the present end
            handle(message)
        consumer.commit()

    for message in consumer.follow():       # and waits for more
        ...

Consumers of one group share the partitions of their topics, also those that a topic gets later,
with the group's members that are Kafka clients. The group rebalances when a member joins or leaves,
and calls `on_assigned` and `on_revoked` in the reading thread. A consumer with `assign` is not a
member: it reads all partitions, or the given ones, and can commit only while the group has no
members.

Positions advance as records are returned; `commit` stores them for the group. Records returned but
not committed are read again by the next owner of the partition: at-least-once delivery. A consumer
that exceeded its session or poll interval has lost its partitions, and its commits raise
`GroupFencedError`.

A partition that cannot be read does not block the others: `errors` returns the reasons, `skip`
skips a damaged record.

A topic that is deleted and created again is a new topic, read from its start: positions of the old
one do not carry over.

A consumer may be used from one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Final, Self
from weakref import finalize

from penstock.adapter import Message
from penstock.api.backend import Backend, TopicPartition
from penstock.api.consumer.group_commits import GroupCommits
from penstock.api.consumer.group_membership import SETTLE_S, Membership, Pending
from penstock.api.consumer.options import (
    ConsumerOptions,
    OnPartitions,
    Start,
    assigned_partitions,
    check_start,
)
from penstock.api.consumer.partition_errors import PartitionErrors
from penstock.api.consumer.partition_fetcher import PartitionFetcher
from penstock.api.consumer.partition_positions import PartitionPositions
from penstock.api.long_poll import SLICE_S
from penstock.api.requests.groups import CommitOffsets
from penstock.api.validation import (
    as_seconds,
    check_mapping,
    check_name,
    check_partition,
    check_places,
)
from penstock.codec.validation import check_limit, check_offset
from penstock.errors import (
    BadRequestError,
    BusyError,
    ClosedError,
    StoreError,
    TopicReplacedError,
    UnreadableContentError,
)
from penstock.platform.clock import SystemClock
from penstock.record import Offset

PAGE: Final = 500
MEMBER_SLICE_S: Final = 1.0
"""How long a member waits for records before it checks for a rebalance."""
_COMMIT_TRIES: Final = 10
_CHANGES_MAX: Final = 8

_PLAIN: Final = ConsumerOptions()


class Consumer:
    """Use `Store.consumer`."""

    def __init__(
        self,
        backend: Backend,
        namespace: str,
        group: str,
        topics: Sequence[str],
        options: ConsumerOptions = _PLAIN,
    ) -> None:
        if not topics:
            raise BadRequestError("a consumer needs at least one topic")
        check_name(group, "a group")
        if not group:
            raise BadRequestError("the group name must not be empty")
        for topic in topics:
            check_name(topic, "a topic's name")
        check_start(options.start)
        self.group: Final = group
        self.topics: Final = tuple(dict.fromkeys(topics))
        self._backend: Final = backend
        self._namespace: Final = namespace
        self._options: Final = options
        self._clock: Final = SystemClock()
        self._commits: Final = GroupCommits(backend, self._clock)
        self._errors: Final = PartitionErrors(self._clock, options.on_error)
        self._places: Final = PartitionPositions(
            backend, namespace, group, options.start, self._errors, self._clock
        )
        self._places.mine = assigned_partitions(options.assign, self.topics)
        self._positions: Final = self._places.positions
        self._fetcher: Final = PartitionFetcher(
            backend, namespace, self._places, self._errors, self._clock
        )
        self._closed = False
        self._membership: Membership | None = None
        if options.assign is None:
            self._join()
        self._assign()

    def __repr__(self) -> str:
        closed = " closed" if self._closed else ""
        return f"<Consumer {self.group!r} of {', '.join(self.topics)}{closed}>"

    def _join(self) -> None:
        for topic in self.topics:
            self._places.locate(topic)  # before anything else is changed
        self._places.mine = set()
        membership = Membership(
            self._backend, self._namespace, self.group, self.topics, self._options.member
        )
        self._membership = membership
        finalize(self, membership.abandon).atexit = False
        membership.start()
        membership.wait_for_rebalance(SETTLE_S)
        self._follow_group()

    # Reading

    def poll(self, timeout: float = 0.0, *, max_records: int = PAGE) -> list[Message]:
        """Return the next records, at most `max_records`; when there are none, wait for some, up to
        `timeout` seconds."""
        page = self.fetch(self.check_poll(timeout, max_records), max_records)
        for _ in self.hand_out(page):
            pass
        return page

    def __iter__(self) -> Iterator[Message]:
        """Iterate up to the present end. A position advances when its record
        is handed out, so that a loop can commit, or seek, in its midst. Raises the error of a
        partition that cannot be read, when the others are at their end."""
        self._errors.retry_now()
        yield from self._messages(0.0)
        if not self._closed:
            self.check_errors()

    def follow(self, timeout: float | None = None) -> Iterator[Message]:
        """Iterate forever, waiting for records; with `timeout`, until none arrived for that many
        seconds."""
        seconds = SLICE_S if timeout is None else as_seconds(timeout, "timeout")
        while not self._closed:
            yield from self._messages(seconds)
            if timeout is not None:
                return

    # Positions

    @property
    def positions(self) -> Mapping[TopicPartition, Offset]:
        """The next offset to read, by topic and partition, of the partitions of this consumer."""
        return dict(self._positions)

    def errors(self) -> dict[TopicPartition, StoreError]:
        """Return the errors of partitions that cannot be read at present; later reads retry
        them."""
        return self._errors.all()

    def check_errors(self) -> None:
        """Raise the first of `errors`, if there is one."""
        self._errors.check()

    def skip(self, topic: str, partition: int) -> Offset:
        """Skip the unreadable record of a partition in `errors`; return the next offset that is
        read."""
        self._check_open()
        place = (topic, partition)
        error = self._errors.get(place)
        position = self._positions.get(place)
        if error is None or position is None:
            raise BadRequestError(
                f"partition {partition} of {topic!r} has no record to skip; see errors(), or use "
                "seek()"
            )
        following = position + 1
        if isinstance(error, UnreadableContentError):
            following = max(following, error.next_offset)
        self._positions[place] = Offset(following)
        self._errors.clear(place)
        return Offset(following)

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit the positions, or the given offsets, for the group.

        Positions in a topic that was deleted and created again are forgotten, and the new one
        begins. Offsets that are given are for the topics that have the names now.
        """
        self._check_open()
        if offsets is None:
            self._commit_positions()
            return
        check_mapping(offsets)
        news = {place: Offset(offset) for place, offset in offsets.items()}
        if news:
            try:
                self._commit(news, {})
            except (TypeError, ValueError):
                check_places(news)  # only now: commits are many, and mistakes are few
                raise

    def committed(self) -> dict[TopicPartition, Offset]:
        """Return the committed offsets of the group, without partitions that have none."""
        return self._places.committed_of(self.topics)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Continue reading at `offset`."""
        self._check_open()
        check_partition(partition)
        check_offset(offset)
        if topic not in self.topics:
            raise BadRequestError(f"this consumer does not read topic {topic!r}")
        self._places.assign_topic(topic)  # where to read on is said of the topic that is there now
        place = (topic, partition)
        if place not in self._positions and place not in self._places.unplaced:
            raise BadRequestError(f"this consumer does not read partition {partition} of {topic!r}")
        self._places.unplaced.pop(place, None)
        self._errors.clear(place)
        self._positions[place] = Offset(offset)

    def seek_to(self, start: Start) -> None:
        """Continue reading all partitions at the start, the end or a timestamp."""
        self._check_open()
        check_start(start)
        self._assign()
        for topic in self.topics:
            known = self._places.all_mine()
            self._places.place(topic, [p for name, p in known if name == topic], start)

    def lag(self) -> dict[TopicPartition, int]:
        """Return the offsets between each position and the end, without partitions whose end is
        unavailable (see `errors`)."""
        self._assign()
        lags = {}
        for place, offset in list(self._positions.items()):
            info = self._places.info(place)
            if info is not None:
                lags[place] = max(0, info.commit - max(offset, info.earliest))
        self._errors.check_any_read(self._positions)
        return lags

    def close(self) -> None:
        """Stop reading and leave the group; without a commit."""
        self._closed = True
        if self._membership is not None:
            self._membership.close()

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
        """Check the arguments of `poll`; return the seconds to wait."""
        check_limit(max_records, "max_records")
        return as_seconds(timeout, "timeout")

    def hand_out(self, page: Sequence[Message]) -> Iterator[Message]:
        """Yield the records of `fetch`; a position advances when its record is yielded."""
        expected = self._places.expected = dict(self._positions)
        membership = self._membership
        for message in page:
            if membership is not None:
                membership.last_poll = self._clock.monotonic()
            place = (message.topic, message.partition)
            if self._positions.get(place) != expected.get(place):
                continue  # sought, or another topic: the rest of this partition is not wanted
            self._positions[place] = expected[place] = Offset(message.offset + 1)
            yield message
            if self._closed:
                return

    def commit_handled(self, offsets: Mapping[TopicPartition, Offset]) -> bool:
        """Commit the offsets of handled records; used with `fetch`. False: a topic was created
        again; nothing was committed, and the next records are from the new topic."""
        try:
            self._commit(dict(offsets), self._places.topic_ids)
        except TopicReplacedError:
            self._assign()
            return False
        return True

    def fetch(self, timeout: float, max_records: int) -> list[Message]:
        """Return records like `poll` without advancing the positions."""
        deadline = self._clock.monotonic() + timeout
        while True:
            self._check_open()
            self._follow_group()
            if self._errors and all(place in self._errors for place in self._places.all_mine()):
                self._errors.retry_now()  # so that a raised error is current
            self._assign()
            messages = self._fetcher.read(max_records)
            left = deadline - self._clock.monotonic()
            if messages or left <= 0:
                return messages
            if self._membership is not None:
                left = min(left, MEMBER_SLICE_S)
            if self._fetcher.wait(left):
                self._follow_group()
                messages = self._fetcher.read(max_records)
                if messages:
                    return messages
                self._fetcher.skip_holes()

    # The group

    def _follow_group(self) -> None:
        """Apply the group's assignment: release and take over partitions."""
        membership = self._membership
        if membership is None:
            return
        self._apply_pending(membership)
        if not self._places.mine:
            membership.poll_coordinator(SETTLE_S)
            self._apply_pending(membership)

    def _apply_pending(self, membership: Membership) -> None:
        for _ in range(_CHANGES_MAX):
            pending = membership.pending()
            if pending is None:
                return
            assert self._places.mine is not None, "a member has partitions of its own"
            if pending.revoked:
                self._revoke(pending)
            self._places.mine |= pending.assigned
            membership.set_owned(self._places.mine, pending)
            if pending.assigned:
                self._assign()
                self._call(self._options.on_assigned, pending.assigned)

    def _revoke(self, pending: Pending) -> None:
        options = self._options
        lost = options.on_lost or options.on_revoked
        self._call(lost if pending.is_lost else options.on_revoked, pending.revoked)
        assert self._places.mine is not None, "a member has partitions of its own"
        self._places.mine -= pending.revoked
        for place in pending.revoked:
            self._places.drop_partition(place)

    @staticmethod
    def _call(callback: OnPartitions | None, partitions: Iterable[TopicPartition]) -> None:
        if callback is not None:
            callback(sorted(partitions))

    # Positions of the group

    def _commit_positions(self) -> None:
        for _ in range(_COMMIT_TRIES):
            news = {
                place: offset
                for place, offset in self._positions.items()
                if self._places.committed.get(place) != offset
            }
            if not news:
                return
            try:
                self._commit(news, self._places.topic_ids)
            except TopicReplacedError:
                self._assign()
            else:
                return
        raise BusyError(
            f"a topic of {', '.join(self.topics)} keeps being deleted and created again; "
            "nothing was committed, try again"
        )

    def _commit(self, news: dict[TopicPartition, Offset], topic_ids: Mapping[str, str]) -> None:
        if self._membership is None:
            self._commits.send(
                CommitOffsets(self.group, news, topic_ids, namespace=self._namespace)
            )
        else:
            self._membership.commit(news, topic_ids)
        self._places.committed.update(news)

    def _assign(self) -> None:
        counts = {topic: self._places.assign_topic(topic) for topic in self.topics}
        membership = self._membership
        if membership is not None and membership.update_partition_counts(counts):
            membership.wait_for_rebalance(SETTLE_S)
            self._apply_pending(membership)
        self._errors.keep(self._places.all_mine())
        for place in [place for place in self._places.unplaced if self._errors.is_due(place)]:
            self._places.place(place[0], [place[1]], self._places.unplaced[place])

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"this consumer of {self.group!r} was closed")
