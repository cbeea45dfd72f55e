"""Consumers: positions, commits, waiting."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from penstock.api import Store
from penstock.errors import BadRequestError, ClosedError


def numbers(found: list[bytes | None]) -> list[int]:
    return sorted(int(value or b"") for value in found)


def test_positions_move_with_what_is_handed_out(store: Store) -> None:
    orders = store.create_topic("orders")
    orders.write_many([b"%d" % number for number in range(5)])
    consumer = store.consumer("g", ["orders"])
    seen = []
    for message in consumer:
        seen.append(message.value)
        if message.offset == 2:
            break
    assert consumer.positions == {("orders", 0): 3}
    consumer.commit()
    assert consumer.committed() == {("orders", 0): 3}
    consumer.close()
    rest = [message.value for message in store.consumer("g", ["orders"])]
    assert seen + rest == [b"0", b"1", b"2", b"3", b"4"]


def test_a_loop_may_commit_in_its_midst(store: Store) -> None:
    orders = store.create_topic("orders", partitions=3)
    orders.write_many([b"%d" % number for number in range(30)])
    consumer = store.consumer("g", ["orders"])
    for handled, _ in enumerate(consumer, 1):
        consumer.commit()
        assert sum(consumer.committed().values()) == handled


def test_seeking_goes_both_ways_also_in_a_loop(store: Store) -> None:
    orders = store.create_topic("orders")
    orders.write_many([b"%d" % number for number in range(10)])
    consumer = store.consumer("g", ["orders"])
    seen: list[int] = []
    for message in consumer:
        seen.append(message.offset)
        if message.offset == 3 and seen.count(3) == 1:
            consumer.seek("orders", 0, 2)
        if message.offset == 5:
            consumer.seek("orders", 0, 8)
    assert seen == [0, 1, 2, 3, 2, 3, 4, 5, 8, 9]
    consumer.seek_to("earliest")
    assert len(consumer.poll()) == 10
    consumer.seek_to("latest")
    assert consumer.poll() == []
    with pytest.raises(BadRequestError):
        consumer.seek("orders", 1, 0)
    with pytest.raises(BadRequestError):
        consumer.seek("orders", 0, -1)


def test_a_group_without_offsets_begins_where_it_is_told(store: Store) -> None:
    orders = store.create_topic("orders", partitions=2)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(6):
        orders.write(b"%d" % number, timestamp=now + timedelta(minutes=number))
    assert store.consumer("late", ["orders"], start="latest").poll() == []
    since = store.consumer("since", ["orders"], start=now + timedelta(minutes=3)).poll()
    assert numbers([message.value for message in since]) == [3, 4, 5]
    orders.delete_before(0, 2)
    early = store.consumer("early", ["orders"]).poll()
    assert numbers([message.value for message in early]) == [1, 3, 4, 5]


def test_no_partition_starves_the_others(store: Store) -> None:
    orders = store.create_topic("orders", partitions=3)
    for partition in range(3):
        orders.write_many([b"v"] * 50, partition=partition)
    consumer = store.consumer("g", ["orders"])
    seen = {message.partition for _ in range(3) for message in consumer.poll(max_records=10)}
    assert seen == {0, 1, 2}


def test_waiting_ends_when_a_record_comes(store: Store, kind: str) -> None:
    orders = store.create_topic("orders", partitions=2, storage=kind)
    consumer = store.consumer("g", ["orders"])
    assert consumer.poll(0.01) == []
    writer = threading.Timer(0.05, lambda: orders.write(b"now", partition=1))
    writer.start()
    assert [message.value for message in consumer.poll(30)] == [b"now"]
    writer.join()


def test_following_goes_on_until_nothing_comes(store: Store) -> None:
    orders = store.create_topic("orders")
    consumer = store.consumer("g", ["orders"])
    orders.write(b"0")
    seen = []
    for message in consumer.follow(timeout=0.05):
        seen.append(int(message.value or b""))
        if seen[-1] < 5:
            orders.write(b"%d" % (seen[-1] + 1))
    assert seen == [0, 1, 2, 3, 4, 5]


def test_a_follower_stops_when_it_is_closed(store: Store) -> None:
    orders = store.create_topic("orders")
    orders.write_many([b"v"] * 3)
    with store.consumer("g", ["orders"]) as consumer:
        for message in consumer.follow():
            if message.offset == 1:
                consumer.close()
    with pytest.raises(ClosedError):
        consumer.poll()
    with pytest.raises(ClosedError):
        consumer.commit()


def test_deleted_records_at_the_end_do_not_keep_a_consumer_busy(store: Store) -> None:
    orders = store.create_topic("orders")
    orders.write_many([b"v"] * 3)
    for offset in range(3):
        orders.delete_by_offset(0, offset)
    consumer = store.consumer("g", ["orders"])
    assert consumer.poll(0.02) == []
    assert consumer.positions == {("orders", 0): 3}
    orders.write(b"next")
    assert [message.offset for message in consumer.poll(1)] == [3]


def test_new_partitions_are_read_from_their_beginning(store: Store) -> None:
    orders = store.create_topic("orders")
    orders.write(b"before")
    consumer = store.consumer("g", ["orders"], start="latest")
    orders.alter(partitions=3)
    orders.write(b"in the new one", partition=2)
    assert [message.value for message in consumer.poll()] == [b"in the new one"]


def test_a_topic_created_again_is_read_from_its_start(store: Store) -> None:
    orders = store.create_topic("orders")
    orders.write_many([b"old"] * 5)
    consumer = store.consumer("g", ["orders"])
    assert len(consumer.poll()) == 5
    consumer.commit()
    orders.delete()
    store.create_topic("orders").write(b"new")
    assert [message.value for message in consumer.poll()] == [b"new"]


def test_a_reset_is_not_undone(store: Store) -> None:
    orders = store.create_topic("orders")
    orders.write_many([b"%d" % number for number in range(5)])
    consumer = store.consumer("g", ["orders"])
    consumer.poll()
    consumer.commit()
    consumer.close()
    store.reset_group("g", {("orders", 0): 2})
    with store.consumer("g", ["orders"]) as again:
        assert [message.value for message in again] == [b"2", b"3", b"4"]
    store.delete_group("g")
    assert store.groups() == []


def test_one_consumer_reads_several_topics(store: Store) -> None:
    for name in ("a", "b"):
        store.create_topic(name).write(name.encode())
    consumer = store.consumer("g", ["a", "b", "a"])
    assert sorted((m.topic, m.value) for m in consumer) == [("a", b"a"), ("b", b"b")]
    consumer.commit({("a", 0): 1})
    assert consumer.committed() == {("a", 0): 1}
