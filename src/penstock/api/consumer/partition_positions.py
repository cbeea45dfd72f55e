"""`PartitionPositions`: where a consumer reads on in each of its partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from penstock.adapter.requests import OffsetsAt
from penstock.api.backend import Backend, TopicPartition
from penstock.api.consumer.options import Start
from penstock.api.consumer.partition_errors import OF_PARTITION, PartitionErrors
from penstock.api.requests.groups import CommittedOffsets
from penstock.api.requests.topics import DescribePartition, LocateTopic
from penstock.api.timestamps import to_timestamp_ms
from penstock.api.topic_info import PartitionInfo
from penstock.platform.clock import Clock
from penstock.record import Offset

_NOWHERE: Final = Offset(-1)
"""An offset that is never a position."""


class PartitionPositions:
    """A partition starts at the offset that the group committed, or at `start`."""

    def __init__(
        self,
        backend: Backend,
        namespace: str,
        group: str,
        start: Start,
        errors: PartitionErrors,
        clock: Clock,
    ) -> None:
        self._backend: Final = backend
        self._namespace: Final = namespace
        self._group: Final = group
        self._start: Final = start
        self._errors: Final = errors
        self._clock: Final = clock
        self.mine: set[TopicPartition] | None = None
        """The partitions of this consumer; None: all."""
        self.positions: Final[dict[TopicPartition, Offset]] = {}
        self.unplaced: Final[dict[TopicPartition, Start]] = {}
        """Partitions without a position: their bounds were not available yet."""
        self.committed: Final[dict[TopicPartition, Offset]] = {}
        self.topic_ids: Final[dict[str, str]] = {}
        """Ids of the topics of the positions, by name."""
        self._first_counts: Final[dict[str, int]] = {}
        """Partition counts of the topics when first seen."""
        self.expected: dict[TopicPartition, Offset] = {}
        """The positions after the page that is being returned."""

    def all_mine(self) -> list[TopicPartition]:
        return [*self.positions, *self.unplaced]

    def assign_topic(self, topic: str) -> int:
        """Add new partitions at the group's offset or the start; restart a topic that was deleted
        and created again. Return its partition count."""
        topic_id, count = self.locate(topic)
        known_id = self.topic_ids.get(topic)
        is_known = known_id == topic_id
        fresh = [
            p
            for p in range(count)
            if (self.mine is None or (topic, p) in self.mine)
            and not (is_known and self._is_placed((topic, p)))
        ]
        if is_known and not fresh:
            return count
        committed: dict[TopicPartition, Offset] = {}
        if fresh:
            committed = self.committed_of([topic])
        known = {place: offset for place, offset in committed.items() if place[1] in fresh}
        # All of it after the calls that may fail: until then the old positions keep their topic.
        if not is_known:
            self._drop_topic(topic)
            self._first_counts[topic] = count if known_id is None else 0
        self.topic_ids[topic] = topic_id
        self.positions.update(known)
        self.committed.update(known)
        missing = [p for p in fresh if (topic, p) not in known]
        # What came later, a partition or another topic, is read from its beginning, whatever the
        # start was.
        first = self._first_counts[topic]
        self.place(topic, [p for p in missing if p < first], self._start)
        self.place(topic, [p for p in missing if p >= first], "earliest")
        return count

    def place(self, topic: str, partitions: Sequence[int], start: Start) -> None:
        """Place partitions at `start`; those with unavailable bounds follow later."""
        if not partitions:
            return
        if isinstance(start, str):
            infos = {p: self.info((topic, p)) for p in partitions}
            offsets = {
                p: info.earliest if start == "earliest" else info.commit
                for p, info in infos.items()
                if info is not None
            }
        else:
            offsets = dict(self._offsets_at(topic, partitions, start))
        for p in partitions:
            if p in offsets:
                self.unplaced.pop((topic, p), None)
                self._errors.clear((topic, p))
                self.positions[topic, p] = offsets[p]
            else:
                self.unplaced[topic, p] = start

    def drop_partition(self, place: TopicPartition) -> None:
        self.positions.pop(place, None)
        self.unplaced.pop(place, None)
        self.committed.pop(place, None)
        self._errors.clear(place)
        self.expected[place] = _NOWHERE

    def info(self, place: TopicPartition) -> PartitionInfo | None:
        began = self._clock.monotonic()
        try:
            return self._backend.execute(DescribePartition(*place, namespace=self._namespace))
        except OF_PARTITION as error:
            self._errors.add(place, error, began)
            return None

    def locate(self, topic: str) -> tuple[str, int]:
        return self._backend.execute(LocateTopic(topic, namespace=self._namespace))

    def committed_of(self, topics: Sequence[str]) -> dict[TopicPartition, Offset]:
        return self._backend.execute(
            CommittedOffsets(self._group, topics, namespace=self._namespace)
        )

    def _is_placed(self, place: TopicPartition) -> bool:
        return place in self.positions or place in self.unplaced

    def _drop_topic(self, topic: str) -> None:
        for place in [place for place in (*self.positions, *self.unplaced) if place[0] == topic]:
            self.drop_partition(place)

    def _offsets_at(
        self, topic: str, partitions: Sequence[int], moment: int | datetime
    ) -> Mapping[int, Offset]:
        began = self._clock.monotonic()
        try:
            request = OffsetsAt(topic, to_timestamp_ms(moment), namespace=self._namespace)
            return self._backend.execute(request)
        except OF_PARTITION as error:
            for p in partitions:
                self._errors.add((topic, p), error, began)
            return {}
