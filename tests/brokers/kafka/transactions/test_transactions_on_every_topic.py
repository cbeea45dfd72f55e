"""Transactions on topics of every engine and kind of queue: all or nothing, over restarts, too."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.brokers.kafka.running import Running, WireClient, running
from tests.brokers.kafka.transactions.test_exactly_once import serving
from tests.brokers.kafka.transactions.test_transactions import (
    WAIT_S,
    in_transaction,
    read,
    transactional,
    write,
)
from tests.brokers.kafka.waiting import wait_until_ended
from tests.brokers.kafka.wire.batch_oracle import batch_of
from tests.brokers.kafka.wire.test_data_requests import patched
from tests.engine.quick_directory import quick_directory
from tests.kafka_clients import Producer
from tests.meta.raft.cluster_in_process import wait_until

from penstock.adapter.requests import ReadByKey, ReadByTag
from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.transactions.participant import TransactionParticipant
from penstock.engine.contract import Isolation, ShardInfo
from penstock.errors import BusyError
from penstock.meta import DEFAULT_NAMESPACE, TransactionClient, TransactionState
from penstock.node.node import Node
from penstock.record import Offset, Record, StoredRecord
from penstock.record import Producer as ProduceHandler

KINDS: dict[str, dict[str, object]] = {
    "batch": {"queue": "batch"},
    "simple": {},
    "rocksdb": {"storage": "rocksdb"},
    "memory": {"storage": "memory"},
}
DURABLE = ["batch", "simple", "rocksdb"]
INVALID_TXN_STATE = 48
START = Offset(0)
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with (
        quick_directory() as directory,
        running(Path(directory) / "data", {"transaction_check_interval_ms": 50}) as started,
    ):
        yield started


@pytest.fixture(params=sorted(KINDS))
def topic(request: pytest.FixtureRequest, server: Running) -> str:
    """A topic of a test and a kind."""
    kind: str = request.param
    name = f"{kind}-{request.function.__name__[-40:]}-{next(NUMBERS)}"
    server.node.admin.create_topic_full(name, 1, KINDS[kind])
    return name


def values(node: Node, topic: str, isolation: Isolation = Isolation.COMMITTED) -> list[bytes]:
    found = node.driver_manager.read_by_offset(topic, 0, START, isolation=isolation)
    return [one.value or b"" for one in found]


def test_transactions_of_two_producers_end_each_in_its_own_way(server: Running, topic: str) -> None:
    node = server.node
    kept, dropped = (transactional(server.address, f"{topic}-{name}") for name in "ab")
    plain = Producer({"bootstrap.servers": server.address, "linger.ms": 0})
    write(plain, topic, b"before")
    kept.begin_transaction()
    dropped.begin_transaction()
    write(kept, topic, b"kept 1", b"kept 2")
    write(dropped, topic, b"dropped 1", b"dropped 2")
    write(plain, topic, b"between")
    write(kept, topic, b"kept 3")
    write(dropped, topic, b"dropped 3")
    opened = [b"kept 1", b"kept 2", b"dropped 1", b"dropped 2", b"between", b"kept 3", b"dropped 3"]
    assert read(server.address, topic, 1) == values(node, topic) == [b"before"]
    assert values(node, topic, Isolation.UNCOMMITTED) == [b"before", *opened]
    assert read(server.address, topic, 8, committed=False) == [b"before", *opened]
    assert node.driver_manager.shard_info(topic, 0).commit == 1
    dropped.abort_transaction(WAIT_S)
    assert read(server.address, topic, 1) == values(node, topic) == [b"before"]
    kept.commit_transaction(WAIT_S)
    wait_until_ended(node, topic)
    shown = [b"before", b"kept 1", b"kept 2", b"between", b"kept 3"]
    assert read(server.address, topic, 5) == values(node, topic) == shown


def test_a_reader_comes_to_the_end_of_a_topic_that_ends_with_an_abort(
    server: Running, topic: str
) -> None:
    producer = transactional(server.address, topic)
    in_transaction(producer, topic, b"kept")
    for _ in range(2):
        in_transaction(producer, topic, b"dropped", b"dropped, too", commit=False)
    wait_until_ended(server.node, topic)
    # `read` waits until the client says that it is at the end.
    assert read(server.address, topic, 1) == [b"kept"]
    if not topic.startswith("batch"):
        assert read(server.address, topic, 1, committed=False) == [b"kept"], "they are deleted"


@pytest.mark.parametrize("is_open_before", [False, True])
def test_an_abort_keeps_the_transaction_that_ended_while_this_node_became_the_leader(
    server: Running, topic: str, is_open_before: bool
) -> None:
    node, producer = server.node, transactional(server.address, topic)
    shard = node.driver_manager.routes.find(topic, DEFAULT_NAMESPACE).shard(0)
    in_transaction(producer, topic, b"kept")
    meta = node.meta
    assert isinstance(meta, TransactionClient)

    def last() -> TransactionState:
        (state,) = [one for one in meta.list_transactions() if one.transactional_id == topic]
        return state

    wait_until(lambda: last().status == "complete-commit", "the transaction is over")
    ended = last()
    resume = node.handler.resume_transactions
    assert resume is not None
    producer.begin_transaction()
    if is_open_before:
        write(producer, topic, b"dropped")
    # A node that becomes the leader loads what is open. The last leader ends it meanwhile, and
    # this one hears nothing of that.
    node.handler.limits.hold_written(shard, ended.producer_id, 0, ended.started_ms)
    resume([shard])
    if not is_open_before:
        assert node.handler.limits.stable_until(shard) is None
        assert values(node, topic) == [b"kept"]
        write(producer, topic, b"dropped")
    assert values(node, topic) == [b"kept"]
    producer.abort_transaction(WAIT_S)
    wait_until_ended(node, topic)
    assert read(server.address, topic, 1) == values(node, topic) == [b"kept"]


def test_a_transaction_begins_at_the_commit_offset_and_waits_until_the_leader_knows_it(
    server: Running, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, asked = server.node, 0
    in_transaction(transactional(server.address, f"{topic}-first"), topic, b"a", b"b")
    wait_until_ended(node, topic)
    committed = node.driver_manager.shard_info(topic, 0).latest
    real = KafkaBroker.shard_info

    def info_of_a_new_leader(broker: KafkaBroker, shard: str) -> ShardInfo:
        nonlocal asked
        asked += 1
        info = real(broker, shard)
        if asked < 3:
            return replace(info, latest=START, is_lagging=True)
        return replace(info, appended=Offset(info.latest + 50))  # cut off by the next leader

    monkeypatch.setattr(KafkaBroker, "shard_info", info_of_a_new_leader)
    producer = transactional(server.address, topic)
    producer.begin_transaction()
    write(producer, topic, b"c")
    assert asked >= 3
    assert isinstance(node.meta, TransactionClient)
    (state,) = [one for one in node.meta.list_transactions() if one.transactional_id == topic]
    assert [one.first_offset for one in state.partitions] == [committed]
    producer.commit_transaction(WAIT_S)


def test_what_is_found_by_key_tag_and_time_is_committed(server: Running, topic: str) -> None:
    node, producer = server.node, transactional(server.address, topic)

    def put(value: bytes) -> None:
        producer.produce(topic, value, key=b"k", partition=0, headers={"tag": "x"})
        assert producer.flush(WAIT_S) == 0

    def found() -> list[object]:
        newest = node.driver_manager.execute(ReadByKey(topic, b"k"))
        tagged = node.driver_manager.execute(ReadByTag(topic, "x", partition=0))
        return [None if newest is None else newest.value, [one.value for one in tagged]]

    for value, commit in ((b"first", True), (b"second", False), (b"third", True)):
        before = found()
        producer.begin_transaction()
        put(value)
        assert found() == before
        if commit:
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)
        wait_until_ended(node, topic)
    assert found() == [b"third", [b"first", b"third"]]


def test_a_compaction_leaves_open_transactions_alone(server: Running) -> None:
    node = server.node
    for kind, options in KINDS.items():
        node.admin.create_topic_full(f"{kind}-keys", 1, {**options, "cleanup": "compact"})
    topics = [f"{kind}-keys" for kind in KINDS]
    producer = transactional(server.address, "keys")

    def put(value: bytes, *, end: bool = True, commit: bool = True) -> None:
        producer.begin_transaction()
        for topic in topics:
            producer.produce(topic, value, key=b"k", partition=0)
        assert producer.flush(WAIT_S) == 0
        if end and commit:
            producer.commit_transaction(WAIT_S)
        elif end:
            producer.abort_transaction(WAIT_S)

    put(b"old")
    put(b"kept")
    put(b"dropped", commit=False)
    put(b"open", end=False)
    node.run_upkeep()
    for topic in topics:
        assert values(node, topic) == [b"kept"], topic
        assert values(node, topic, Isolation.UNCOMMITTED) == [b"kept", b"open"], topic
    producer.commit_transaction(WAIT_S)
    for topic in topics:
        wait_until_ended(node, topic)
    node.run_upkeep()
    assert [values(node, topic) for topic in topics] == [[b"open"]] * len(topics)


@pytest.mark.parametrize("call", ["read_by_offset", "read_by_tag", "read_by_key", "query_by_key"])
def test_a_read_during_an_abort_shows_nothing_of_it(
    server: Running, topic: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's answer holds records of the transaction; when it is looked at, it is over."""
    if topic.startswith("batch"):
        return  # there markers and ranges tell
    handler = server.node.handler
    shard = f"{server.node.broker_cache.get_topic(topic).topic_id}_0"
    record = Record(b"dropped", key=b"k", tags=("t",))
    handler.write(shard, Record(b"kept", key=b"k", tags=("t",)))
    handler.limits.hold(shard, 1, 1)
    handler.batch_write(shard, [record], producer=ProduceHandler(1, 0, 0, is_transactional=True))
    entry = handler.find(shard)
    engine = type(handler._reader(entry))
    read = getattr(engine, call)
    ended: list[int] = []

    def late(self: object, *arguments: object, **options: object) -> object:
        found = read(self, *arguments, **options)
        if not ended:
            ended.append(handler.end_transaction(entry, 1, START, is_commit=False))
            handler.limits.release(1)
        return found

    monkeypatch.setattr(engine, call, late)
    asked = {"read_by_offset": START, "read_by_tag": "t", "read_by_key": b"k", "query_by_key": b"k"}
    found = getattr(handler, call)(shard, asked[call])
    assert ended == [1]
    assert [one.value for one in (found if isinstance(found, list) else [found])] == [b"kept"]


class Transacting:
    """One transaction over several topics, message by message: it goes on after a restart."""

    def __init__(self, topics: list[str], name: str) -> None:
        self._topics, self._name = topics, name
        self._producer = (-1, -1)
        self._sequence = 0

    def begin(self, client: WireClient) -> None:
        begun = client.ask(22, 4, transactional_id=self._name, transaction_timeout=60_000)
        self._producer = (begun.number("producer_id"), begun.number("producer_epoch"))
        self._sequence = 0
        response = client.ask(
            24,
            3,
            v3_and_below_transactional_id=self._name,
            v3_and_below_producer_id=self._producer[0],
            v3_and_below_producer_epoch=self._producer[1],
            v3_and_below_topics=[{"name": name, "partitions": [0]} for name in self._topics],
        )
        for one in response.items_of("results_by_topic_v3_and_below"):
            assert one.items_of("results_by_partition")[0].number("partition_error_code") == 0

    def write(self, client: WireClient, value: bytes, *, transactional: bool = True) -> set[int]:
        """Return the error codes."""
        record = StoredRecord(Offset(0), value, None, (), (), 1_000, None, 0, 0)
        batch = batch_of([record], "", (*self._producer, self._sequence))
        if not transactional:
            batch = plain_batch(record, (*self._producer, self._sequence))
        response = client.ask(
            0,
            9,
            transactional_id=self._name if transactional else None,
            acks=-1,
            topic_data=[
                {"name": name, "partition_data": [{"index": 0, "records": batch}]}
                for name in self._topics
            ],
        )
        codes = {
            one.items_of("partition_responses")[0].number("error_code")
            for one in response.items_of("responses")
        }
        self._sequence += codes == {0}
        return codes

    def end(self, client: WireClient, *, commit: bool) -> None:
        response = client.ask(
            26,
            3,
            transactional_id=self._name,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            committed=commit,
        )
        assert response.number("error_code") == 0


def plain_batch(record: StoredRecord, producer: tuple[int, int, int]) -> bytes:
    """Return a batch of a producer that says it belongs to no transaction."""
    return patched(batch_of([record], "", producer), attributes=0)


def created(path: Path, kinds: list[str]) -> list[str]:
    with running(path) as server:
        for kind in kinds:
            server.node.admin.create_topic_full(kind, 1, KINDS[kind])
    return kinds


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_goes_on_after_a_restart_of_the_server(data_path: Path, commit: bool) -> None:
    transaction = Transacting(created(data_path, DURABLE), "t")
    with running(data_path) as server, WireClient(server.server.port) as client:
        transaction.begin(client)
        assert transaction.write(client, b"1") == {0}
    with running(data_path) as server, WireClient(server.server.port) as client:
        node = server.node
        for topic in DURABLE:
            node.driver_manager.write(topic, Record(b"plain"), partition=0)
        assert transaction.write(client, b"2") == {0}
        for topic in DURABLE:
            assert values(node, topic) == [], topic
            assert values(node, topic, Isolation.UNCOMMITTED) == [b"1", b"plain", b"2"], topic
        transaction.end(client, commit=commit)
        shown = [b"1", b"plain", b"2"] if commit else [b"plain"]
        for topic in DURABLE:
            wait_until_ended(node, topic)
            assert values(node, topic) == shown, topic
    with running(data_path) as server:
        for topic in DURABLE:
            wait_until_ended(server.node, topic)  # the end itself may not have been noted before
            assert values(server.node, topic) == shown, topic


def test_a_transaction_of_a_memory_topic_goes_on_with_what_is_written_after_a_restart(
    data_path: Path,
) -> None:
    """The topic begins anew, at offsets before those at which the transaction began."""
    transaction = Transacting(created(data_path, ["memory"]), "t")
    with running(data_path) as server, WireClient(server.server.port) as client:
        server.node.driver_manager.batch_write(
            "memory", [Record(b"%d" % n) for n in range(10)], partition=0
        )
        transaction.begin(client)
        assert transaction.write(client, b"lost") == {0}
    with running(data_path) as server, WireClient(server.server.port) as client:
        assert transaction.write(client, b"dropped") == {0}
        server.node.driver_manager.write("memory", Record(b"plain"), partition=0)
        assert values(server.node, "memory") == []
        transaction.end(client, commit=False)
        wait_until_ended(server.node, "memory")
        assert values(server.node, "memory") == [b"plain"]
        transaction.begin(client)
        assert transaction.write(client, b"kept") == {0}
        transaction.end(client, commit=True)
        wait_until_ended(server.node, "memory")
        assert values(server.node, "memory") == [b"plain", b"kept"]


@pytest.mark.parametrize("commit", [True, False])
def test_a_decision_that_nobody_acted_on_is_completed_by_the_next_start(
    data_path: Path, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    transaction = Transacting(created(data_path, DURABLE), "t")
    asked = threading.Event()

    def fail(*_: object) -> None:
        asked.set()
        raise BusyError("the process is about to be killed")

    with monkeypatch.context() as failing:
        failing.setattr(TransactionParticipant, "_end", fail)
        with running(data_path) as server, WireClient(server.server.port) as client:
            transaction.begin(client)
            assert transaction.write(client, b"1") == {0}
            transaction.end(client, commit=commit)
            assert asked.wait(WAIT_S)
            assert [values(server.node, topic) for topic in DURABLE] == [[]] * len(DURABLE)
    with running(data_path) as server:
        for topic in DURABLE:
            wait_until_ended(server.node, topic)
            assert values(server.node, topic) == ([b"1"] if commit else []), topic


def test_a_server_that_is_killed_right_behind_the_answer_completes_the_transaction(
    data_path: Path,
) -> None:
    created(data_path, DURABLE)
    with serving(data_path) as server:
        producers = [transactional(server.address, name) for name in ("kept", "dropped")]
        for producer, value in zip(producers, (b"kept", b"dropped"), strict=True):
            producer.begin_transaction()
            for topic in DURABLE:
                producer.produce(topic, value, partition=0)
            assert producer.flush(WAIT_S) == 0
        producers[0].commit_transaction(WAIT_S)
        producers[1].abort_transaction(WAIT_S)
        server.kill()
        del producer, producers
        server.start()
        for topic in DURABLE:
            assert read(server.address, topic, 1) == [b"kept"], topic


def test_a_producer_writes_nothing_beside_its_open_transaction(server: Running, topic: str) -> None:
    transaction = Transacting([topic], topic)
    with WireClient(server.server.port) as client:
        transaction.begin(client)
        assert transaction.write(client, b"plain", transactional=False) == {INVALID_TXN_STATE}
        assert transaction.write(client, b"in it") == {0}
        transaction.end(client, commit=True)
    wait_until_ended(server.node, topic)
    assert values(server.node, topic) == [b"in it"]
