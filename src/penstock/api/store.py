"""`Store`: the API of a message store.

    with penstock.open("data") as store:
        orders = store.create_topic("orders", partitions=3)
        orders.write(b"3 apples", key=b"o-17", tags=["eu"])
        for message in store.consumer("billing", ["orders"]):
            ...

Thread-safe. The methods are the same for a store in this process and for a remote one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self, Unpack
from weakref import WeakSet

from penstock.adapter.topics import TopicOptions
from penstock.api.backend import Backend
from penstock.api.consumer import Consumer, ConsumerArguments, as_options
from penstock.api.requests.groups import DeleteGroup, DescribeGroup, ListGroups, ResetOffsets
from penstock.api.requests.node import AllocateProducerId, ConfirmClock, ReadClock, RunUpkeep
from penstock.api.requests.topics import AlterTopic, CreateTopic, ListTopics, LocateTopic
from penstock.api.topic import Topic, as_record
from penstock.api.topic_info import GroupInfo, TopicInfo
from penstock.api.validation import as_list, check_name, check_places
from penstock.errors import AlreadyExistsError, BadRequestError, UnknownTopicError
from penstock.meta import DEFAULT_NAMESPACE
from penstock.platform.clock_guard import ClockStatus
from penstock.record import Location, Offset, Record


class Store:
    """Use `penstock.open`."""

    def __init__(
        self,
        backend: Backend,
        namespace: str = DEFAULT_NAMESPACE,
        consumers: WeakSet[Consumer] | None = None,
    ) -> None:
        self._backend: Final = backend
        self._namespace: Final = namespace
        self._consumers: Final[WeakSet[Consumer]] = WeakSet() if consumers is None else consumers
        """Consumers to close with the store, so that their groups rebalance immediately."""

    def __repr__(self) -> str:
        inside = "" if self._namespace == DEFAULT_NAMESPACE else f" namespace={self._namespace!r}"
        return f"<Store {self._backend.place!r}{inside}>"

    # Topics

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        exist_ok: bool = False,
        **options: Unpack[TopicOptions],
    ) -> Topic:
        """Create a topic and return it; it accepts writes immediately.

        Options: storage ("segment", "rocksdb", "memory"), flush ("async", "sync"), cleanup
        ("delete", "compact"), partitioner ("round_robin", "key"), retention_ms, retention_bytes,
        retention_records, record_size_max, and more in `TopicOptions`.
        """
        try:
            self.create_topic_info(name, partitions, dict(options))
        except AlreadyExistsError:
            if not exist_ok:
                raise
        return self.topic(name)

    def create_topic_info(
        self, name: str, partitions: int | None, options: Mapping[str, object]
    ) -> TopicInfo:
        """Create a topic with options by name; return its description."""
        return self._backend.execute(
            CreateTopic(name, partitions, options, namespace=self._namespace)
        )

    def alter_topic_info(
        self, name: str, partitions: int | None, options: Mapping[str, object]
    ) -> TopicInfo:
        """Alter a topic with options by name; return its description."""
        return self._backend.execute(
            AlterTopic(name, partitions, options, namespace=self._namespace)
        )

    def topic(self, name: str) -> Topic:
        """Return a handle on a topic; it is not checked for existence until it is used."""
        check_name(name, "a topic's name")
        return Topic(self._backend, self._namespace, name)

    __getitem__ = topic

    def topics(self) -> list[str]:
        """Return the names of the topics, sorted."""
        return [topic.name for topic in self.list_topics()]

    def list_topics(self) -> list[TopicInfo]:
        """Return the topics of this namespace, with their options and partitions."""
        return self._backend.execute(ListTopics(self._namespace))

    def __contains__(self, name: str) -> bool:
        check_name(name, "a topic's name")
        try:
            self._backend.execute(LocateTopic(name, namespace=self._namespace))
        except UnknownTopicError:
            return False
        return True

    def write_many(self, batch: Iterable[tuple[str, bytes | Record | None]]) -> Sequence[Location]:
        """Append records to several topics, given as pairs of topic and record; return their
        locations in the same order."""
        given = as_list(batch, "pairs of topic and record")
        try:
            pairs = [(topic, as_record(value)) for topic, value in given]
        except (TypeError, ValueError) as error:
            raise BadRequestError("a batch must be pairs of topic and record") from error
        return self._backend.batch_write_topics(pairs, namespace=self._namespace)

    # Groups of consumers

    def consumer(
        self, group: str, topics: str | Iterable[str], **options: Unpack[ConsumerArguments]
    ) -> Consumer:
        """Return a member of `group`, which shares the partitions of `topics` with the group's
        other members. It goes on where the group last committed, or begins at `start`: "earliest",
        "latest" or a moment.

        Options: start, assign ("all" partitions, or pairs of topic and partition, without being a
        member), on_assigned, on_revoked, on_lost, on_error, session_timeout, max_poll_interval,
        instance_id; see `ConsumerArguments`.
        """
        names = [topics] if isinstance(topics, str) else as_list(topics, "topics")
        consumer = Consumer(self._backend, self._namespace, group, names, as_options(**options))
        self._consumers.add(consumer)
        return consumer

    def groups(self) -> list[str]:
        """Return the names of the groups that have members or committed offsets."""
        return [info.group for info in self._backend.execute(ListGroups(self._namespace))]

    def describe_group(self, group: str) -> GroupInfo:
        """Return the committed offsets, lag and members of a group."""
        return self._backend.execute(DescribeGroup(group, namespace=self._namespace))

    def reset_group(self, group: str, offsets: dict[tuple[str, int], int]) -> None:
        """Set the committed offsets of a group by topic and partition, also backwards. Earlier
        commits are fenced off. Raises `GroupNotEmptyError` while the group has members."""
        check_places(offsets)
        positions = {place: Offset(offset) for place, offset in offsets.items()}
        self._backend.execute(ResetOffsets(group, positions, namespace=self._namespace))

    def delete_group(self, group: str) -> None:
        """Delete a group and its offsets. Raises `GroupNotEmptyError` while it has members."""
        self._backend.execute(DeleteGroup(group, namespace=self._namespace))

    # The store

    def namespace(self, name: str) -> Store:
        """Return the same store with the topics and groups of another namespace. Closing either
        closes both."""
        check_name(name, "a namespace")
        return Store(self._backend, name, self._consumers)

    def allocate_producer_id(self) -> int:
        """Return a new id for `Producer`."""
        return self._backend.execute(AllocateProducerId())

    def run_upkeep(self) -> None:
        """Run background maintenance now: retention, compaction, sealing of segments."""
        self._backend.execute(RunUpkeep())

    def clock_status(self) -> ClockStatus:
        """Return the node's clock and whether deletion by age is held because of a suspected clock
        step."""
        return self._backend.execute(ReadClock())

    def confirm_clock(self) -> ClockStatus:
        """Confirm that the node's clock is right, and resume deletion by age."""
        return self._backend.execute(ConfirmClock())

    def close(self) -> None:
        """Close the consumers, sync everything to disk and release the store. Closing twice does
        nothing."""
        for consumer in tuple(self._consumers):
            consumer.close()
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
