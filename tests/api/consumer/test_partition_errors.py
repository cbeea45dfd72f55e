"""A partition that cannot be read does not hold up the others."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import pytest

import penstock
from penstock.adapter.requests import OffsetsAt
from penstock.api import Consumer, EmbeddedBackend, Store
from penstock.api.backend import TopicPartition
from penstock.api.requests.node import Request
from penstock.api.requests.topics import DescribePartition
from penstock.errors import (
    BadRequestError,
    CorruptionError,
    NotLeaderError,
    RetryableError,
    StoreError,
    UnreadableContentError,
)
from penstock.node.node import Node
from penstock.record import Offset, StoredRecord

R = TypeVar("R")


class DeadPartitions(EmbeddedBackend):
    """A store of which some partitions are on a node that is down, or damaged."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        vars(self).update(read_by_offset=self._read, wait_for_records=self._wait)
        self.dead: dict[TopicPartition, StoreError] = {}
        self.damaged: dict[TopicPartition, int] = {}

    def _check(self, at: TopicPartition) -> None:
        if at in self.dead:
            raise self.dead[at]

    def execute(self, request: Request[R]) -> R:
        if isinstance(request, DescribePartition):
            self._check((request.topic, request.partition))
        if isinstance(request, OffsetsAt) and self.dead:
            raise next(iter(self.dead.values()))
        return super().execute(request)

    def _read(
        self, topic: str, partition: int, offset: Offset, *, max_records: int, namespace: str
    ) -> list[StoredRecord]:
        at = (topic, partition)
        self._check(at)
        bad = self.damaged.get(at)
        if bad == offset:
            raise CorruptionError("commitlog", position=17, reason="checksum")
        page = self._drivers.read_by_offset(
            topic, partition, offset, max_records=max_records, namespace=namespace
        )
        return [one for one in page if bad is None or one.offset < bad or offset > bad]

    def _wait(
        self, positions: Mapping[TopicPartition, Offset], seconds: float, *, namespace: str
    ) -> bool:
        for at in positions:
            self._check(at)
        return self._drivers.wait_for_records(positions, seconds, namespace=namespace)


@pytest.fixture
def backend(tmp_path: Path) -> DeadPartitions:
    backend = DeadPartitions(Node(tmp_path / "data"))
    store = Store(backend)
    work = store.create_topic("work", partitions=4)
    for partition in range(4):
        work.write_many([b"%d" % number for number in range(10)], partition=partition)
    return backend


DOWN = NotLeaderError("work_2", leader=None)


def read_all(consumer: Consumer) -> list[TopicPartition]:
    return [(message.topic, message.partition) for message in consumer.poll(0.01)]


def test_one_dead_node_stops_only_its_own_partitions(backend: DeadPartitions) -> None:
    heard: list[tuple[TopicPartition, StoreError]] = []
    with Store(backend) as store:
        backend.dead["work", 2] = DOWN
        with store.consumer("g", ["work"], on_error=lambda *one: heard.append(one)) as consumer:
            found = read_all(consumer)
            assert {partition for _, partition in found} == {0, 1, 3}
            assert consumer.poll(0.05) == []  # the others are at their end, which is no error
            assert consumer.errors() == {("work", 2): DOWN}
            assert heard == [(("work", 2), DOWN)]
            store["work"].write(b"more", partition=0)
            assert [message.value for message in consumer.poll(5.0)] == [b"more"]
            consumer.commit()
            assert ("work", 2) not in consumer.committed()
            with pytest.raises(RetryableError):
                list(consumer)  # says at its end that something is missing
            assert ("work", 2) not in consumer.lag()
            del backend.dead["work", 2]
            back = [message.partition for message in consumer]
            assert back == [2] * 10
            assert consumer.errors() == {}


def test_a_consumer_raises_when_none_of_its_partitions_can_be_read(backend: DeadPartitions) -> None:
    with Store(backend) as store, store.consumer("g", ["work"]) as consumer:
        backend.dead.update({("work", partition): DOWN for partition in range(4)})
        with pytest.raises(RetryableError):
            consumer.poll()
        with pytest.raises(RetryableError):
            consumer.poll(5.0)  # not after five seconds only
        backend.dead.clear()
        assert len(consumer.poll()) == 40


@pytest.mark.parametrize("start", ["earliest", "latest", datetime(2020, 1, 1, tzinfo=UTC)])
def test_a_consumer_without_offsets_begins_also_while_a_node_is_down(
    backend: DeadPartitions, start: datetime
) -> None:
    backend.dead["work", 1] = DOWN
    with Store(backend) as store, store.consumer("g", ["work"], start=start) as consumer:
        assert ("work", 1) not in consumer.positions
        assert consumer.errors()["work", 1] is DOWN
        backend.dead.clear()
        found = [message.partition for message in consumer.follow(timeout=1.5)]
        assert found.count(1) == (0 if start == "latest" else 10)
        assert sorted(consumer.positions) == [("work", partition) for partition in range(4)]


def test_a_damaged_record_is_reported_and_can_be_skipped(backend: DeadPartitions) -> None:
    backend.damaged["work", 3] = 4
    with Store(backend) as store, store.consumer("g", ["work"]) as consumer:
        with pytest.raises(CorruptionError):
            list(consumer)
        assert consumer.positions == {
            **{("work", partition): 10 for partition in range(3)},
            ("work", 3): 4,
        }
        assert isinstance(consumer.errors()["work", 3], CorruptionError)
        with pytest.raises(BadRequestError):
            consumer.skip("work", 0)
        assert consumer.skip("work", 3) == 5
        assert [message.offset for message in consumer] == [5, 6, 7, 8, 9]
        consumer.commit()
        assert consumer.committed()["work", 3] == 10


def test_skipping_content_that_cannot_be_decoded_goes_on_after_all_of_it(
    backend: DeadPartitions,
) -> None:
    with Store(backend) as store, store.consumer("g", ["work"]) as consumer:
        backend.dead["work", 0] = UnreadableContentError(
            "work_0", offset=0, next_offset=7, timestamp_ms=0, reason="opaque"
        )
        consumer.poll()
        del backend.dead["work", 0]
        assert consumer.skip("work", 0) == 7


def test_seeking_past_a_partition_in_error_ends_the_error(backend: DeadPartitions) -> None:
    with Store(backend) as store, store.consumer("g", ["work"], assign="all") as consumer:
        backend.dead["work", 0] = DOWN
        assert len(consumer.poll()) == 30
        del backend.dead["work", 0]
        consumer.seek("work", 0, 8)
        assert consumer.errors() == {}
        assert [message.offset for message in consumer] == [8, 9]


def test_the_package_names_the_errors_of_groups() -> None:
    assert issubclass(penstock.GroupFencedError, StoreError)
    assert issubclass(penstock.GroupNotEmptyError, StoreError)
