"""Which partition a record goes to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.adapter.bench import Bench

from penstock.adapter.topics.partitioning import (
    MessageSequence,
    choose_all_by_key,
    group_by_partition,
    key_hash,
    murmur2,
    offsets_by_choice,
    offsets_in_turn,
    split_in_turn,
)
from penstock.record import Record, ShardId

KAFKA = [
    # The vectors of Kafka's own test of its hash, as signed numbers.
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.parametrize(("key", "expected"), KAFKA)
def test_the_hash_is_that_of_kafkas_clients(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF
    assert key_hash(key) == expected & 0x7FFFFFFF


@given(st.binary(max_size=40))
def test_every_key_has_a_partition(key: bytes) -> None:
    assert 0 <= key_hash(key) < 1 << 31


@given(st.integers(0, 1 << 40), st.integers(1, 9), st.integers(1, 50))
def test_a_batch_in_turn_sends_its_nth_message_to_the_nth_partition(
    first: int, partitions: int, count: int
) -> None:
    records = [Record(value=b"%d" % number) for number in range(count)]
    parts = split_in_turn(records, first, range(partitions))
    where = {record.value: partition for partition, part in parts for record in part}
    assert [where[b"%d" % n] for n in range(count)] == [
        (first + n) % partitions for n in range(count)
    ]


@given(st.integers(0, 100), st.integers(1, 9), st.integers(1, 50), st.integers(0, 1000))
def test_offsets_come_back_in_the_order_of_the_batch(
    first: int, partitions: int, count: int, base: int
) -> None:
    records = [Record(value=b"%d" % number) for number in range(count)]
    parts = split_in_turn(records, first, range(partitions))
    firsts = {partition: base * (partition + 1) for partition, _ in parts}
    stored = stored_at(parts, firsts)
    chosen = [(first + n) % partitions for n in range(count)]
    in_turn = offsets_in_turn([firsts[partition] for partition, _ in parts], count)
    assert in_turn == list(offsets_by_choice(chosen, firsts))
    assert [stored[b"%d" % n] for n in range(count)] == list(zip(chosen, in_turn, strict=True))


@given(st.lists(st.one_of(st.none(), st.binary(max_size=3)), min_size=1, max_size=40))
def test_records_of_one_key_keep_their_order_in_one_partition(keys: list[bytes | None]) -> None:
    records = [Record(value=b"%d" % n, key=key) for n, key in enumerate(keys)]
    chosen = choose_all_by_key(records, 0, 4, range(4))
    for record, partition in zip(records, chosen, strict=True):
        if record.key is not None:
            assert partition == key_hash(record.key) % 4
    for partition, part in group_by_partition(records, chosen):
        numbers = [int(record.value or b"") for record in part]
        assert numbers == sorted(numbers)
        assert {chosen[number] for number in numbers} == {partition}


def run_in_threads(work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("batch", [1, 5])
def test_no_number_is_used_twice_by_many_threads(batch: int) -> None:
    sequence = MessageSequence()
    used: list[int] = []

    def use() -> None:
        for _ in range(300):
            first = sequence.next() if batch == 1 else sequence.advance(batch)
            used.extend(range(first, first + batch))

    run_in_threads(use)
    assert sorted(used) == list(range(8 * 300 * batch))
    assert sequence.value == 8 * 300 * batch


def test_messages_and_batches_of_many_threads_are_counted_exactly() -> None:
    sequence = MessageSequence()

    def use() -> None:
        for number in range(300):
            if number % 3:
                sequence.next()
            else:
                sequence.advance(3)
                sequence.add(4)

    run_in_threads(use)
    assert sequence.value == 8 * (200 + 100 * 7)
    assert sequence.next() == 8 * (200 + 100 * 7)
    assert sequence.advance(3) == sequence.value - 3


def stored_at(
    parts: Sequence[tuple[int, Sequence[Record]]], firsts: dict[int, int]
) -> dict[bytes | None, tuple[int, int]]:
    return {
        record.value: (partition, firsts[partition] + number)
        for partition, part in parts
        for number, record in enumerate(part)
    }


def test_partitions_without_a_leader_get_no_turn() -> None:
    bench = Bench()
    topic_id = bench.create("orders", 4)
    bench.meta.assign_leader(ShardId(topic_id, 2), None, 5)
    at = [bench.manager.write("orders", Record(b"v")).partition for _ in range(30)]
    at += [one.partition for one in bench.manager.batch_write("orders", [Record(b"v")] * 30)]
    assert set(at) == {0, 1, 3}
    bench.meta.assign_leader(ShardId(topic_id, 2), bench.meta.node_id, 6)
    at = [one.partition for one in bench.manager.batch_write("orders", [Record(b"v")] * 30)]
    assert set(at) == {0, 1, 2, 3}
    bench.close()


def test_a_key_stays_in_its_partition_also_without_a_leader() -> None:
    chosen = choose_all_by_key(
        [Record(b"v", key=b"%d" % number) for number in range(50)], 0, 4, (0, 1)
    )
    assert set(chosen) == {0, 1, 2, 3}
    assert set(choose_all_by_key([Record(b"v")] * 9, 0, 4, (0, 1))) == {0, 1}
