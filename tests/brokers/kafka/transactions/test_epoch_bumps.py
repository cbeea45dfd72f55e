"""Transactions whose client announces no partitions, and gets a new epoch with every end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers.kafka.running import Running, WireClient, running
from tests.brokers.kafka.waiting import wait_until_ended
from tests.brokers.kafka.wire.batch_oracle import batch_of
from tests.engine.quick_directory import quick_directory

from penstock.brokers.kafka.wire.fields import Fields
from penstock.engine.contract import Isolation
from penstock.meta import TransactionClient, TransactionState
from penstock.record import Offset, StoredRecord

PRODUCE, FIND, API_VERSIONS, INIT, END, OFFSET_COMMIT, OFFSET_FETCH = 0, 10, 18, 22, 26, 28, 9
FENCED, PRODUCER_FENCED, BAD_STATE, UNKNOWN = 47, 90, 48, 49
KINDS: dict[str, dict[str, object]] = {"batch": {"queue": "batch"}, "simple": {}}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with quick_directory() as directory, running(Path(directory) / "data") as started:
        yield started


class Producer:
    """Speaks the newest versions of the requests of a transaction."""

    def __init__(self, client: WireClient, transactional_id: str) -> None:
        self._client, self.name = client, transactional_id
        begun = client.ask(
            INIT,
            4,
            transactional_id=transactional_id,
            transaction_timeout_ms=60_000,
            transaction_timeout=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        assert begun.number("error_code") == 0
        self.id, self.epoch = begun.number("producer_id"), begun.number("producer_epoch")
        self._sequences: dict[str, int] = {}

    def write(
        self, topic: str, value: bytes, *, epoch: int | None = None, sequence: int | None = None
    ) -> int:
        if sequence is None:
            sequence = self._sequences.get(topic, 0)
        epoch = self.epoch if epoch is None else epoch
        record = StoredRecord(Offset(0), value, None, (), (), 1_000, None, 0, 0)
        data = batch_of([record], "", (self.id, epoch, sequence))
        response = self._client.ask(
            PRODUCE,
            12,
            transactional_id=self.name,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[{"name": topic, "partition_data": [{"index": 0, "records": data}]}],
        )
        partition = response.items_of("responses")[0].items_of("partition_responses")[0]
        code = partition.number("error_code")
        if code == 0:
            self._sequences[topic] = sequence + 1
        return code

    def end(self, *, commit: bool, epoch: int | None = None, version: int = 5) -> Fields:
        return self._client.ask(
            END,
            version,
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=self.epoch if epoch is None else epoch,
            committed=commit,
        )

    def go_on(self, ended: Fields) -> None:
        assert ended.number("error_code") == 0
        self.id, self.epoch = ended.number("producer_id"), ended.number("producer_epoch")
        self._sequences.clear()


@pytest.fixture
def client(server: Running) -> Iterator[WireClient]:
    with WireClient(server.server.port) as connected:
        yield connected


@pytest.fixture(params=sorted(KINDS))
def topic(request: pytest.FixtureRequest, server: Running) -> str:
    kind: str = request.param
    name = f"{kind}-{request.function.__name__[-50:]}"
    server.node.admin.create_topic_full(name, 1, KINDS[kind])
    return name


def values(server: Running, topic: str) -> list[bytes | None]:
    found = server.node.driver_manager.read_by_offset(
        topic, 0, Offset(0), isolation=Isolation.COMMITTED
    )
    return [record.value for record in found]


def state_of(server: Running, transactional_id: str) -> TransactionState:
    meta = server.node.meta
    assert isinstance(meta, TransactionClient)
    (state,) = [
        state for state in meta.list_transactions() if state.transactional_id == transactional_id
    ]
    return state


def test_clients_are_told_that_partitions_need_not_be_announced(client: WireClient) -> None:
    told = client.ask(API_VERSIONS, 3, client_software_name="x", client_software_version="1")
    (feature,) = told.items_of("finalized_features")
    assert feature.text("name") == "transaction.version"
    assert feature.number("max_version_level") == 2
    assert told.number("finalized_features_epoch") == 1


def test_every_end_gives_the_producer_its_next_epoch(
    server: Running, client: WireClient, topic: str
) -> None:
    producer = Producer(client, topic)
    first = producer.epoch
    assert producer.write(topic, b"kept") == 0
    producer.go_on(producer.end(commit=True))
    assert producer.epoch == first + 1
    assert producer.write(topic, b"dropped") == 0
    producer.go_on(producer.end(commit=False))
    assert producer.epoch == first + 2
    assert producer.write(topic, b"kept, too") == 0
    producer.go_on(producer.end(commit=True))
    wait_until_ended(server.node, topic)
    assert values(server, topic) == [b"kept", b"kept, too"]


def test_a_late_batch_of_a_transaction_does_not_become_part_of_the_next(
    server: Running, client: WireClient, topic: str
) -> None:
    producer = Producer(client, topic)
    assert producer.write(topic, b"dropped") == 0
    old = producer.epoch
    producer.go_on(producer.end(commit=False))
    assert producer.write(topic, b"late", epoch=old, sequence=1) == FENCED
    assert producer.write(topic, b"kept") == 0
    assert producer.write(topic, b"late", epoch=old, sequence=1) == FENCED
    producer.go_on(producer.end(commit=True))
    wait_until_ended(server.node, topic)
    assert values(server, topic) == [b"kept"]


def test_an_end_that_is_asked_for_again_changes_nothing(
    server: Running, client: WireClient, topic: str
) -> None:
    producer = Producer(client, topic)
    old = producer.epoch
    assert producer.write(topic, b"kept") == 0
    told = [producer.end(commit=True, epoch=old) for _ in range(3)]
    assert {one.number("producer_epoch") for one in told} == {old + 1}
    other = producer.end(commit=False, epoch=old)
    assert other.number("error_code") == PRODUCER_FENCED
    producer.go_on(told[0])
    assert producer.write(topic, b"dropped") == 0
    late = producer.end(commit=True, epoch=old)
    assert late.number("error_code") == PRODUCER_FENCED, "the next transaction has begun"
    producer.go_on(producer.end(commit=False))
    wait_until_ended(server.node, topic)
    assert values(server, topic) == [b"kept"]


def test_an_abort_before_the_first_record_gives_an_epoch_and_a_commit_is_refused(
    server: Running, client: WireClient
) -> None:
    producer = Producer(client, "nothing-written")
    first = producer.epoch
    assert producer.end(commit=True).number("error_code") == BAD_STATE
    producer.go_on(producer.end(commit=False))
    assert producer.epoch == first + 1
    producer.go_on(producer.end(commit=False))
    assert producer.epoch == first + 2
    assert state_of(server, "nothing-written").status == "complete-abort"


def test_older_clients_keep_their_epoch(server: Running, client: WireClient) -> None:
    topic = "older"
    server.node.admin.create_topic_full(topic, 1, {"queue": "batch"})
    producer = Producer(client, topic)
    assert producer.write(topic, b"kept") == 0
    assert producer.end(commit=True, version=4).number("error_code") == 0
    assert producer.write(topic, b"kept, too") == 0
    assert producer.end(commit=True, version=4).number("error_code") == 0
    wait_until_ended(server.node, topic)
    assert values(server, topic) == [b"kept", b"kept, too"]


def test_another_producer_is_given_an_error_for_its_batches(
    server: Running, client: WireClient
) -> None:
    topic = "another"
    server.node.admin.create_topic_full(topic, 1, {"queue": "batch"})
    old = Producer(client, topic)
    assert old.write(topic, b"dropped") == 0
    new = Producer(client, topic)
    assert old.write(topic, b"fenced") == FENCED
    assert old.end(commit=True).number("error_code") == PRODUCER_FENCED
    old.id += 1_000
    assert old.write(topic, b"unknown") == UNKNOWN
    assert new.write(topic, b"kept") == 0
    new.go_on(new.end(commit=True))
    wait_until_ended(server.node, topic)
    assert values(server, topic) == [b"kept"]


def test_offsets_are_committed_in_a_transaction_without_an_announcement(
    server: Running, client: WireClient
) -> None:
    topic = "offsets"
    server.node.admin.create_topic_full(topic, 1, {"queue": "batch"})
    producer = Producer(client, topic)
    partition = {"partition_index": 0, "committed_offset": 17, "committed_leader_epoch": -1}
    for commit, offset in ((False, 17), (True, 23)):
        partition["committed_offset"] = offset
        told = client.ask(
            OFFSET_COMMIT,
            5,
            transactional_id=topic,
            group_id="g",
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            generation_id_or_member_epoch=-1,
            generation_id=-1,
            member_id="",
            topics=[{"name": topic, "partitions": [partition | {"committed_metadata": ""}]}],
        )
        (answered,) = told.items_of("topics")[0].items_of("partitions")
        assert answered.number("error_code") == 0
        producer.go_on(producer.end(commit=commit))
    fetched = client.ask(
        OFFSET_FETCH,
        5,
        group_id="g",
        require_stable=True,
        topics=[{"name": topic, "partition_indexes": [0]}],
    )
    (found,) = fetched.items_of("topics")[0].items_of("partitions")
    assert found.number("committed_offset") in {-1, 23}
