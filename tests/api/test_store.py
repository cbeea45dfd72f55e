"""The store as a program uses it, with every engine."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import penstock
from penstock import Location, PartialWriteError, Producer, Record
from penstock.api import Store
from penstock.errors import (
    AlreadyExistsError,
    BadRequestError,
    LockedError,
    RecordTooLargeError,
    StoreError,
    UnknownGroupError,
    UnknownTopicError,
)
from penstock.node.node import Node


def nodes() -> set[int]:
    gc.collect()
    return {id(each) for each in gc.get_objects() if isinstance(each, Node)}


def test_a_store_that_was_closed_does_not_stay_in_memory(directory: Path) -> None:
    before = nodes()
    for _ in range(2):
        with penstock.open(directory) as store:
            for kind in ("memory", "rocksdb", "segment"):
                store.create_topic(kind, storage=kind, exist_ok=True).write(b"a", key=b"k")
        del store
    assert nodes() <= before


def test_a_tour(store: Store, kind: str) -> None:
    orders = store.create_topic("orders", partitions=3, storage=kind, partitioner="key")
    where = orders.write(
        b"3 apples",
        key=b"o-17",
        tags=["eu", "fruit/red"],
        headers={"trace": b"7", "empty": None},
        timestamp=datetime(2026, 1, 2, tzinfo=UTC),
    )
    (record,) = orders.read(where.partition, where.offset)
    assert (record.value, record.key, record.tags) == (b"3 apples", b"o-17", ("eu", "fruit/red"))
    assert record.headers == (("trace", b"7"), ("empty", None))
    assert record.timestamp_ms == 1_767_312_000_000
    places = orders.write_many([b"a", Record(b"b", key=b"o-18", tags=("us",)), None])
    assert len(places) == 3
    assert sorted(message.value or b"" for message in orders) == [b"", b"3 apples", b"a", b"b"]
    orders.write(b"5 apples", key=b"o-17")
    newest = orders.read_by_key(b"o-17")
    assert newest is not None
    assert newest.value == b"5 apples"
    assert [message.value for message in orders.query(b"o-17")] == [b"5 apples", b"3 apples"]
    assert [message.value for message in orders.read_by_tag("fruit/red")] == [b"3 apples"]
    assert orders.read_by_tag("fruit") == []
    assert [message.value for message in orders.records(tag="us")] == [b"b"]
    assert orders.delete_by_key(b"o-17") == 2
    assert orders.read_by_key(b"o-17") is None
    assert store.topics() == ["orders"]
    assert "orders" in store
    assert "pears" not in store
    orders.delete()
    assert store.topics() == []


def test_a_consumer_reads_what_its_group_has_not_committed(store: Store, kind: str) -> None:
    orders = store.create_topic("orders", partitions=2, storage=kind)
    orders.write_many([b"%d" % number for number in range(10)])
    first = store.consumer("billing", "orders")
    assert sorted(int(message.value or b"") for message in first) == list(range(10))
    assert set(first.lag().values()) == {0}
    again = store.consumer("billing", ["orders"], assign="all")
    assert len(again.poll()) == 10
    first.commit()
    first.close()
    assert store.consumer("billing", ["orders"]).poll() == []
    orders.write(b"10")
    assert [message.value for message in store.consumer("billing", ["orders"])] == [b"10"]
    assert store.groups() == ["billing"]
    assert store.describe_group("billing").total_lag == 1


def test_describing_shows_configuration_and_bounds(store: Store, kind: str) -> None:
    orders = store.create_topic("orders", partitions=2, storage=kind, retention_records=1_000)
    orders.write_many([bytes(100)] * 10)
    info = orders.describe()
    assert (info.name, info.storage, info.partition_count, info.records) == ("orders", kind, 2, 10)
    assert info.size >= 1_000
    assert info.config.retention_records == 1_000
    assert [(one.earliest, one.latest) for one in info.partitions] == [(0, 5), (0, 5)]
    altered = orders.alter(partitions=4, retention_records=None, flush="sync")
    assert altered.config.retention_records is None
    assert orders.partitions == 4
    orders.write(b"synced", partition=3)
    assert orders.describe().records == 11
    with pytest.raises(BadRequestError, match="cannot become fewer"):
        orders.alter(partitions=1)


def test_creating_twice_is_refused_unless_it_may_exist(store: Store) -> None:
    store.create_topic("orders", partitions=2)
    with pytest.raises(AlreadyExistsError):
        store.create_topic("orders")
    assert store.create_topic("orders", exist_ok=True).partitions == 2


def test_namespaces_keep_names_apart(store: Store) -> None:
    other = store.namespace("tenant")
    store.create_topic("orders").write(b"mine")
    other.create_topic("orders").write(b"theirs")
    assert [message.value for message in store.topic("orders")] == [b"mine"]
    assert [message.value for message in other["orders"]] == [b"theirs"]
    other.topic("orders").delete()
    assert (store.topics(), other.topics()) == (["orders"], [])


def test_records_can_go_to_several_topics_at_once(store: Store) -> None:
    for name in ("a", "b"):
        store.create_topic(name)
    places = store.write_many([("a", b"0"), ("b", b"1"), ("a", b"2")])
    assert list(places) == [(0, 0), (0, 0), (0, 1)]
    with pytest.raises(UnknownTopicError):
        store.write_many([("a", b"0"), ("nothing", b"1")])


def test_offsets_are_found_by_time(store: Store, kind: str) -> None:
    orders = store.create_topic("orders", partitions=2, storage=kind)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for hour in range(6):
        orders.write(b"v", timestamp=start + timedelta(hours=hour), partition=hour % 2)
    assert orders.offset_at(start + timedelta(hours=2)) == 1
    assert orders.offset_at(start + timedelta(hours=2), partition=1) == 1
    assert orders.offsets_at(start + timedelta(days=9)) == {0: 3, 1: 3}
    with pytest.raises(BadRequestError):
        orders.offset_at(start, partition=7)
    with pytest.raises(BadRequestError, match="a timestamp must be"):
        orders.offset_at("yesterday")  # type: ignore[arg-type] # wrong on purpose


def test_expired_records_are_gone(store: Store, kind: str) -> None:
    orders = store.create_topic("orders", storage=kind)
    orders.write(b"old", expires=datetime.now(UTC) - timedelta(seconds=1))
    orders.write(b"young", expires=datetime.now(UTC) + timedelta(hours=1))
    assert [record.value for record in orders.read()] == [b"young"]


def test_single_records_and_everything_before_an_offset_can_be_deleted(
    store: Store, kind: str
) -> None:
    orders = store.create_topic("orders", storage=kind)
    orders.write_many([b"%d" % number for number in range(6)])
    assert orders.delete_by_offset(0, 3)
    assert not orders.delete_by_offset(0, 3)
    assert orders.delete_before(0, 2) == 2
    assert [record.value for record in orders.read()] == [b"2", b"4", b"5"]
    assert [message.value for message in orders] == [b"2", b"4", b"5"]


def test_a_compacted_topic_keeps_the_newest_of_each_key(store: Store, kind: str) -> None:
    table = store.create_topic("table", storage=kind, cleanup="compact")
    for number in range(6):
        table.write(b"%d" % number, key=b"k%d" % (number % 2))
    assert table.compact().records == 4
    assert [record.value for record in table.read()] == [b"4", b"5"]


def test_upkeep_can_be_done_at_once(store: Store, kind: str) -> None:
    orders = store.create_topic("orders", storage=kind, retention_records=3)
    orders.write_many([b"v"] * 10)
    store.run_upkeep()
    assert orders.describe().partitions[0].earliest == 7


def test_a_repeated_write_of_a_producer_is_written_once(store: Store, kind: str) -> None:
    orders = store.create_topic("orders", partitions=2, storage=kind)
    producer = Producer(store.allocate_producer_id(), epoch=0, sequence=0)
    first = orders.write_many([b"a", b"b"], partition=1, producer=producer)
    assert orders.write_many([b"a", b"b"], partition=1, producer=producer) == first
    assert orders.describe().records == 2
    assert store.allocate_producer_id() > producer.id


def test_64_threads_each_get_exactly_their_own_offsets(store: Store, kind: str) -> None:
    orders = store.create_topic("orders", partitions=3, storage=kind)
    claims: dict[bytes, Location] = {}

    def work(writer: int) -> None:
        for turn in range(5):
            values = [b"%d/%d/%d" % (writer, turn, number) for number in range(turn + 1)]
            claims.update(zip(values, orders.write_many(values), strict=True))
            value = b"%d/%d" % (writer, turn)
            claims[value] = orders.write(value)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = {Location(m.partition, m.offset): m.value for m in orders}
    assert len(stored) == len(claims) == 64 * 20
    assert all(stored[where] == value for value, where in claims.items())


def test_a_handle_survives_the_deletion_of_its_topic(store: Store) -> None:
    orders = store.create_topic("orders")
    orders.write(b"old")
    orders.delete()
    with pytest.raises(UnknownTopicError):
        orders.write(b"nowhere")
    store.create_topic("orders")
    assert orders.write(b"new") == (0, 0)
    assert [message.value for message in orders] == [b"new"]


BAD_CALLS: dict[str, Callable[[Store], object]] = {
    "no topic": lambda s: s.topic("nothing").write(b"v"),
    "a topic without a name": lambda s: s.create_topic(""),
    "an unknown option": lambda s: s.create_topic("t", colour="red"),  # type: ignore[call-arg] # wrong on purpose
    "text as a value": lambda s: s.topic("t").write("text"),  # type: ignore[arg-type] # wrong on purpose
    "text as a key": lambda s: s.topic("t").write(b"v", key="k"),  # type: ignore[arg-type] # wrong on purpose
    "one text as tags": lambda s: s.topic("t").write(b"v", tags="eu"),
    "a record and a key": lambda s: s.topic("t").write(Record(b"v"), key=b"k"),
    "a number in a batch": lambda s: s.topic("t").write_many([b"v", 7]),  # type: ignore[list-item] # wrong on purpose
    "no record": lambda s: s.topic("t").write_many([]),
    "a partition that is not there": lambda s: s.topic("t").write(b"v", partition=9),
    "a negative offset": lambda s: s.topic("t").read(0, -1),
    "no limit": lambda s: s.topic("t").read(0, 0, max_records=0),
    "a huge record": lambda s: s.topic("t").write(bytes(5 << 20)),
    "an empty group": lambda s: s.consumer("", ["t"]),
    "a group without topics": lambda s: s.consumer("g", []),
    "a consumer of nothing": lambda s: s.consumer("g", ["nothing"]),
    "a start that is no moment": lambda s: s.consumer("g", ["t"], start="noon"),  # type: ignore[arg-type] # wrong on purpose
    "an unknown group": lambda s: s.describe_group("nobody"),
    "a negative commit": lambda s: s.consumer("g", ["t"]).commit({("t", 0): -1}),
    "a reset of nothing": lambda s: s.reset_group("g", {}),
}


@pytest.mark.parametrize("call", BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_bad_input_is_a_typed_error_and_the_store_works_on(
    store: Store, call: Callable[[Store], object]
) -> None:
    store.create_topic("t", partitions=2)
    with pytest.raises(StoreError) as caught:
        call(store)
    expected = (BadRequestError, UnknownTopicError, UnknownGroupError, RecordTooLargeError)
    assert isinstance(caught.value, expected)
    assert store.topic("t").write(b"v", partition=0) == (0, 0)


def test_a_batch_in_part_says_which(store: Store) -> None:
    orders = store.create_topic("orders", partitions=2, record_size_max=10)
    with pytest.raises(PartialWriteError) as caught:
        orders.write_many([b"small", bytes(11)])
    assert list(caught.value.locations) == [(0, 0), None]


def test_a_store_works_where_an_event_loop_runs(directory: Path) -> None:
    """As in the cells of a notebook, which run inside of one."""

    async def cells() -> list[bytes | None]:
        store = penstock.open(directory)
        notes = store.create_topic("notes", exist_ok=True)
        notes.write(b"one")
        with store.consumer("reader", ["notes"]) as consumer:
            found = [message.value for message in consumer]
            consumer.commit()
        # A cell that is run again while the first store is still there gets a clear answer.
        with pytest.raises(LockedError):
            penstock.open(directory)
        store.close()
        with penstock.open(directory) as again:
            found += [message.value for message in again.topic("notes")]
        return found

    assert asyncio.run(cells()) == [b"one", b"one"]
