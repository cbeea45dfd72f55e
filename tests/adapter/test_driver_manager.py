"""Storage operations by topic name."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from tests.adapter.bench import Bench

from penstock.adapter.engine_adapter import EngineStorageAdapter
from penstock.adapter.requests import (
    Compact,
    DeleteBefore,
    DeleteByKey,
    DeleteByOffset,
    OffsetsAt,
    QueryByKey,
    ReadByKey,
    ReadByTag,
)
from penstock.adapter.topics.partitioning import key_hash
from penstock.engine.contract import AdapterOffsetStrategy
from penstock.errors import (
    BadRequestError,
    PartialWriteError,
    RecordTooLargeError,
    SequenceGapError,
    UnknownShardError,
    UnknownTopicError,
)
from penstock.record import Location, Offset, Producer, Record, ShardId


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench() as bench:
        bench.create("orders", 3)
        yield bench


def records(count: int) -> list[Record]:
    return [Record(b"%d" % number) for number in range(count)]


def test_a_driver_is_made_once_for_each_storage_type(bench: Bench) -> None:
    bench.create("others")
    manager = bench.manager
    assert list(manager.driver_list) == []
    driver = manager.routes.find("orders").driver
    assert isinstance(driver, EngineStorageAdapter)
    assert manager.routes.find("others").driver is driver
    topic = bench.broker_cache.get_topic("orders")
    handle = manager.open_partition(topic, 2)
    assert handle is not None
    assert handle.driver is driver
    assert handle.name == f"{topic.topic_id}_2"
    assert manager.open_partition(topic, 3) is None
    assert manager.open_shard(handle.name).entry is handle.entry
    assert list(manager.driver_list) == ["EngineMemory"]
    with pytest.raises(UnknownTopicError):
        manager.routes.find("nothing")
    with pytest.raises(UnknownShardError):
        manager.open_shard("nothing_0")


def test_threads_that_need_a_driver_together_get_one(bench: Bench) -> None:
    barrier = threading.Barrier(8)
    drivers = []

    def find() -> None:
        barrier.wait()
        drivers.append(bench.manager.driver_list["EngineSegment"])

    threads = [threading.Thread(target=find) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, drivers))) == 1


def test_every_message_without_a_named_partition_advances_message_seq(bench: Bench) -> None:
    manager = bench.manager
    bench.create("single")
    bench.create("keyed", 4, partitioner="key")
    counted = 0
    for topic in ("single", "orders", "keyed"):
        for partition in range(manager.routes.find(topic).partitions):
            manager.write(topic, Record(b"v"), partition=partition)  # opens the shard
        manager.write(topic, Record(b"v", key=b"k"))
        manager.write(topic, Record(b"v"))
        assert manager.try_write(topic, Record(b"v")) is not None
        manager.batch_write(topic, [Record(b"v", key=b"k"), Record(b"v"), Record(b"v")])
        counted += 6
        assert manager.message_seq == counted, topic
        manager.write(topic, Record(b"v"), partition=0)
        manager.try_write(topic, Record(b"v"), partition=0)
        manager.batch_write(topic, records(3), partition=0)
        assert manager.message_seq == counted, topic
    manager.batch_write_topics([("single", Record(b"v")), ("orders", Record(b"v"))])
    assert manager.message_seq == counted + 2


def test_the_turn_of_a_message_counts_those_of_topics_with_one_partition(bench: Bench) -> None:
    bench.create("single")
    assert bench.manager.write("orders", Record(b"v")).partition == 0
    bench.manager.batch_write("single", records(1))
    assert bench.manager.write("orders", Record(b"v")).partition == 2


def test_a_quick_write_that_is_left_to_a_thread_does_not_use_a_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.create("synced", 3, flush="sync")
    assert bench.manager.try_write("synced", Record(b"v")) is None
    monkeypatch.setattr(bench.engine, "try_write", lambda _shard, _record: None)
    assert bench.manager.try_write("orders", Record(b"v")) is None
    assert bench.manager.message_seq == 0
    assert bench.manager.write("orders", Record(b"v")).partition == 0


def test_messages_go_round_over_all_topics_with_one_counter(bench: Bench) -> None:
    bench.create("others", 3)
    places = [
        bench.manager.write("orders", Record(b"v")).partition,
        bench.manager.write("others", Record(b"v")).partition,
        bench.manager.write("orders", Record(b"v")).partition,
        bench.manager.write("orders", Record(b"v")).partition,
    ]
    assert places == [0, 1, 2, 0]
    assert bench.manager.message_seq == 4


def test_each_message_of_a_batch_goes_round_by_itself(bench: Bench) -> None:
    found = bench.manager.batch_write("orders", records(7))
    assert list(found) == [Location(number % 3, Offset(number // 3)) for number in range(7)]
    for number, (partition, offset) in enumerate(found):
        page = bench.manager.read_by_offset("orders", partition, offset, max_records=1)
        assert page[0].value == b"%d" % number


def test_a_key_chooses_the_partition_where_the_topic_says_so(bench: Bench) -> None:
    bench.create("keyed", 4, partitioner="key")
    batch = [Record(b"%d" % n, key=b"k%d" % (n % 9)) for n in range(40)]
    found = bench.manager.batch_write("keyed", batch)
    for record, (partition, offset) in zip(batch, found, strict=True):
        assert record.key is not None
        assert partition == key_hash(record.key) % 4
        page = bench.manager.read_by_offset("keyed", partition, offset, max_records=1)
        assert page[0].value == record.value
    assert bench.manager.write("keyed", batch[0]).partition == found[0].partition
    spread = Counter(bench.manager.write("keyed", Record(b"v")).partition for _ in range(8))
    assert spread == {0: 2, 1: 2, 2: 2, 3: 2}


def test_an_explicit_partition_wins(bench: Bench) -> None:
    assert bench.manager.write("orders", Record(b"v"), partition=2) == (2, 0)
    found = bench.manager.batch_write("orders", records(3), partition=2)
    assert list(found) == [(2, 1), (2, 2), (2, 3)]
    for wrong in (3, -1, "0", 1.0, True):
        with pytest.raises(BadRequestError):
            bench.manager.write("orders", Record(b"v"), partition=wrong)  # type: ignore[arg-type] # wrong on purpose


def test_a_batch_over_several_topics_is_answered_in_its_order(bench: Bench) -> None:
    bench.create("others", 2)
    batch = [("orders", Record(b"0")), ("others", Record(b"1")), ("orders", Record(b"2"))]
    found = bench.manager.batch_write_topics(batch)
    for (topic, record), (partition, offset) in zip(batch, found, strict=True):
        page = bench.manager.read_by_offset(topic, partition, offset, max_records=1)
        assert page[0].value == record.value
    with pytest.raises(UnknownTopicError):
        bench.manager.batch_write_topics([("orders", Record(b"v")), ("nothing", Record(b"v"))])
    assert bench.manager.message_seq == 3


def too_large(bench: Bench) -> list[Record]:
    bench.admin.alter_topic("orders", options={"record_size_max": 10})
    return [Record(b"0"), Record(bytes(11)), Record(b"2"), Record(b"3")]


def test_a_batch_that_goes_in_part_says_which_part(bench: Bench) -> None:
    batch = too_large(bench)
    with pytest.raises(PartialWriteError) as caught:
        bench.manager.batch_write("orders", batch)
    assert list(caught.value.locations) == [(0, 0), None, (2, 0), (0, 1)]
    assert isinstance(caught.value.errors[1], RecordTooLargeError)  # type: ignore[index] # by partition here
    assert "1 of 4 records" in str(caught.value)
    assert bench.manager.shard_info("orders", 1).latest == 0


def test_a_part_of_a_batch_over_several_topics_may_fail(bench: Bench) -> None:
    bench.create("others", 1)
    batch = [("orders", record) for record in too_large(bench)]
    with pytest.raises(PartialWriteError) as caught:
        bench.manager.batch_write_topics([("others", Record(b"v")), *batch])
    # The message for "others" was the first one.
    assert list(caught.value.locations) == [(0, 0), (1, 0), None, (0, 0), (1, 1)]
    assert list(caught.value.errors) == [("orders", 2)]


def test_a_batch_of_which_nothing_was_written_fails_as_its_first_part(bench: Bench) -> None:
    bench.admin.alter_topic("orders", options={"record_size_max": 10})
    with pytest.raises(RecordTooLargeError):
        bench.manager.batch_write("orders", [Record(bytes(11))] * 5)
    with pytest.raises(RecordTooLargeError):
        bench.manager.batch_write_topics([("orders", Record(bytes(11)))] * 5)


@pytest.mark.parametrize("batch", [[], (), None, b"bytes", "text", iter(())])
def test_what_is_no_batch_is_refused(bench: Bench, batch: list[Record]) -> None:
    with pytest.raises(BadRequestError):
        bench.manager.batch_write("orders", batch)
    with pytest.raises(BadRequestError):
        bench.manager.batch_write("orders", batch)


def test_a_producer_writes_once_to_the_partition_it_names(bench: Bench) -> None:
    producer = Producer(id=7, epoch=0, sequence=0)
    first = bench.manager.batch_write("orders", records(3), partition=1, producer=producer)
    again = bench.manager.batch_write("orders", records(3), partition=1, producer=producer)
    assert first == again
    assert bench.manager.shard_info("orders", 1).latest == 3
    with pytest.raises(SequenceGapError):
        bench.manager.write("orders", Record(b"v"), partition=1, producer=Producer(7, 0, 9))
    with pytest.raises(BadRequestError, match="names its partition"):
        bench.manager.batch_write("orders", records(3), producer=producer)
    with pytest.raises(BadRequestError, match="names its partition"):
        bench.manager.write("orders", Record(b"v"), producer=producer)


def test_keys_are_found_over_all_partitions(bench: Bench) -> None:
    for number in range(7):
        bench.clock.advance(1)
        bench.manager.write("orders", Record(b"%d" % number, key=b"k"))
    newest = bench.manager.execute(ReadByKey("orders", b"k"))
    assert newest is not None
    assert (newest.value, newest.topic, newest.partition) == (b"6", "orders", 0)
    history = bench.manager.execute(QueryByKey("orders", b"k", limit=5))
    assert [message.value for message in history] == [b"6", b"5", b"4", b"3", b"2"]
    start = history[-1].timestamp_ms
    span = bench.manager.execute(QueryByKey("orders", b"k", begin_ms=start, end_ms=start + 1000))
    assert [message.value for message in span] == [b"3", b"2"]
    assert bench.manager.execute(DeleteByKey("orders", b"k")) == 7
    assert bench.manager.execute(ReadByKey("orders", b"k")) is None


def test_tags_are_found_over_all_partitions_and_read_on(bench: Bench) -> None:
    batch = [Record(b"%d" % n, tags=("a",) if n % 2 else ("a/b",)) for n in range(30)]
    bench.manager.batch_write("orders", batch)
    found = bench.manager.execute(ReadByTag("orders", "a"))
    assert sorted(int(message.value or b"") for message in found) == list(range(1, 30, 2))
    starts: dict[int, Offset] = {}
    paged = []
    while page := bench.manager.execute(
        ReadByTag("orders", "a", start_offset=starts, max_records=4)
    ):
        assert len(page) <= 4
        paged += page
        for message in page:
            starts[message.partition] = Offset(message.offset + 1)
    assert paged == found
    one = bench.manager.execute(ReadByTag("orders", "a", partition=1, start_offset=Offset(5)))
    assert one == [m for m in found if m.partition == 1 and m.offset >= 5]


def test_a_moment_is_found_in_every_partition(bench: Bench) -> None:
    for number in range(9):
        bench.manager.write("orders", Record(b"v", timestamp_ms=number * 100))
    assert bench.manager.execute(OffsetsAt("orders", 400)) == {0: 2, 1: 1, 2: 1}
    earliest = AdapterOffsetStrategy.EARLIEST
    assert bench.manager.execute(OffsetsAt("orders", 9_999)) == {0: 3, 1: 3, 2: 3}
    assert bench.manager.execute(OffsetsAt("orders", 9_999, earliest)) == {0: 0, 1: 0, 2: 0}


def test_records_are_deleted_by_offset_and_before_it(bench: Bench) -> None:
    bench.manager.batch_write("orders", records(9), partition=0)
    assert bench.manager.execute(DeleteByOffset("orders", 0, Offset(4)))
    assert not bench.manager.execute(DeleteByOffset("orders", 0, Offset(4)))
    assert bench.manager.execute(DeleteBefore("orders", 0, Offset(2))) == 2
    page = bench.manager.read_by_offset("orders", 0, Offset(0))
    assert [record.offset for record in page] == [2, 3, 5, 6, 7, 8]
    assert bench.manager.shard_info("orders", 0).earliest == 2


def test_a_compacted_topic_keeps_the_newest_of_each_key(bench: Bench) -> None:
    bench.create("table", 2, partitioner="key", cleanup="compact")
    for number in range(6):
        bench.manager.write("table", Record(b"%d" % number, key=b"k%d" % (number % 2)))
    assert bench.manager.execute(Compact("table")).records == 4


def test_groups_commit_by_topic_and_partition(bench: Bench) -> None:
    offsets = bench.manager.offsets
    offsets.commit_offset("billing", {("orders", 0): 4, ("orders", 2): 1})
    assert offsets.get_offset_by_group("billing") == {("orders", 0): 4, ("orders", 2): 1}
    assert offsets.get_offset_by_group("billing", ["orders"]) == {
        ("orders", 0): 4,
        ("orders", 2): 1,
    }
    assert offsets.get_offset_by_group("unknown") == {}
    topic_id = bench.broker_cache.get_topic("orders").topic_id
    assert bench.offset_manager.get_offset("billing", ShardId(topic_id, 2)) is not None
    offsets.reset_offsets("billing", {("orders", 0): 0})
    assert offsets.get_offset_by_group("billing")["orders", 0] == 0
    with pytest.raises(BadRequestError):
        offsets.commit_offset("billing", {("orders", 7): 1})


@pytest.mark.parametrize("name", ["nothing", "", 7, None, ["orders"]])
def test_a_topic_that_does_not_exist_is_unknown_to_every_operation(bench: Bench, name: str) -> None:
    topics, key = bench.manager, b"k"
    calls: list[Callable[[], object]] = [
        lambda: topics.write(name, Record(b"v")),
        lambda: topics.batch_write(name, records(2)),
        lambda: topics.read_by_offset(name, 0, Offset(0)),
        lambda: topics.execute(ReadByTag(name, "t")),
        lambda: topics.execute(ReadByKey(name, key)),
        lambda: topics.execute(QueryByKey(name, key)),
        lambda: topics.execute(DeleteByKey(name, key)),
        lambda: topics.execute(OffsetsAt(name, 0)),
        lambda: topics.execute(Compact(name)),
        lambda: topics.shard_info(name, 0),
    ]
    for call in calls:
        with pytest.raises((UnknownTopicError, BadRequestError)):
            call()
