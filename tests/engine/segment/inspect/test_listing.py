"""What is in a store: its shards, files and records, by every way of looking."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.codec.golden_store import GoldenStore
from tests.engine.segment.readonly.sample_store import (
    EMPTY,
    EVENTS,
    EVENTS_COUNT,
    ORDERS,
    ORDERS_COUNT,
    QUIET,
    flip,
    order,
)

from penstock.engine.segment.inspect import (
    files,
    find_by_key,
    find_by_tag,
    find_by_time,
    info,
    log_entries,
    record_detail,
    records,
    shard_infos,
    shards_named,
    topic_infos,
)
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.store import SegmentStore
from penstock.errors import (
    BadRequestError,
    CorruptionError,
    RequestError,
    UnknownShardError,
    UnknownTopicError,
)
from penstock.record import Record, ShardId


@pytest.fixture
def view(written: Path) -> ReadOnlyStore:
    return ReadOnlyStore.open(str(written))


def test_info_says_what_a_store_consists_of(written: Path, view: ReadOnlyStore) -> None:
    found = info(view)
    assert found.path == str(written)
    assert found.written_by == "penstock"
    assert found.closed
    assert found.writer_pid is None
    assert [shard.shard for shard in found.shards] == ["empty_0", "events_3", "orders_0"]
    parts = {part.part: part for part in found.parts}
    assert parts["commit log"].size == parts["commit log"].files * 16_384
    assert parts["key index"].files == len(list((written / "index").iterdir()))
    assert found.checkpoint.durable_position == found.end_position
    assert found.checkpoint.derived_position == found.end_position
    assert found.checkpoint.rocketmq is not None
    assert found.checkpoint.rocketmq["flushed_position"] == found.end_position
    assert found.damaged == []


def test_info_knows_rocketmqs_stores(golden: GoldenStore) -> None:
    found = info(ReadOnlyStore.open(str(golden.root)))
    assert found.written_by == "rocketmq"
    assert found.checkpoint.derived_position is None
    assert len(found.shards) == 8
    assert {shard.kind for shard in found.shards} == {"simple", "batch"}


def test_info_of_an_open_store_names_the_writer(tmp_path: Path) -> None:
    with SegmentStore.open(str(tmp_path / "store"), QUIET):
        found = info(ReadOnlyStore.open(str(tmp_path / "store")))
    assert not found.closed
    assert found.writer_pid is not None


def test_info_names_states_that_cannot_be_read(copy: Path) -> None:
    paths = sorted((copy / "penstock").glob("*/[0-9][0-9]"))
    for path in paths:
        flip(path, 30)
    found = info(ReadOnlyStore.open(str(copy)))
    assert set(found.damaged) <= {str(path) for path in paths}
    assert found.damaged
    assert found.shards == []


def test_shards_have_bounds_and_a_number_of_records(view: ReadOnlyStore) -> None:
    orders = {each.shard: each for each in shard_infos(view)}["orders_0"]
    assert (orders.earliest, orders.commit, orders.next) == (0, ORDERS_COUNT, ORDERS_COUNT)
    assert (orders.deleted, orders.records) == (3, ORDERS_COUNT - 3)


def test_topics_are_sums_of_their_shards(golden: GoldenStore) -> None:
    found = {each.topic: each for each in topic_infos(ReadOnlyStore.open(str(golden.root)))}
    assert found["TopicA"].shards == 2
    assert found["TopicA"].records == 106 + 114
    assert found["TopicBCQ"].kind == "batch"


def test_files_are_all_files_of_the_parts(written: Path, view: ReadOnlyStore) -> None:
    found = {each.path: each for each in files(view)}
    for name in ("commitlog", "consumequeue", "batchconsumequeue", "index", "penstock"):
        for path in (written / name).rglob("*"):
            if path.is_file():
                assert found[str(path)].size == path.stat().st_size


def test_records_of_a_range_come_in_order(view: ReadOnlyStore) -> None:
    assert [r.offset for r in records(view, ORDERS, offset=5, until=12)] == [5, 6, 9, 10, 11]
    assert [r.offset for r in records(view, ORDERS, offset=5, limit=3)] == [5, 6, 9]
    assert len(list(records(view, ORDERS))) == ORDERS_COUNT - 3
    assert list(records(view, EMPTY)) == []
    tagged = [r.offset for r in records(view, ORDERS, tag="big", until=40)]
    assert tagged == [0, 5, 10, 15, 20, 25, 30, 35]


def test_keys_tags_and_times_are_looked_for_in_all_shards(view: ReadOnlyStore) -> None:
    shards = view.shards()
    keyed = list(find_by_key(view, shards, b"o-1", limit=3))
    assert [(hit.shard, hit.record.offset) for hit in keyed] == [
        (ORDERS, 281),
        (ORDERS, 241),
        (ORDERS, 221),
    ]
    events = list(find_by_key(view, shards, b"e-1", limit=100))
    assert [hit.record.offset for hit in events] == [57, 50, 43, 36, 29, 22, 15, 8, 1]
    assert len(list(find_by_tag(view, shards, "big", limit=7))) == 7
    times = [(hit.shard, hit.record.offset) for hit in find_by_time(view, shards, 5_030)]
    assert times == [(EVENTS, 30), (ORDERS, 0)]


def test_names_mean_a_shard_or_a_topic_or_everything(view: ReadOnlyStore) -> None:
    assert shards_named(view, None) == [EMPTY, EVENTS, ORDERS]
    assert shards_named(view, "orders") == shards_named(view, "orders_0") == [ORDERS]
    with pytest.raises(UnknownTopicError, match="nothing"):
        shards_named(view, "nothing")


def test_one_record_has_all_its_fields(view: ReadOnlyStore) -> None:
    detail = record_detail(view, ORDERS, 49)
    assert detail.record.as_record() == order(49)
    assert detail.entry.position == view.snapshot().get(ORDERS).position_of(49)
    assert detail.entry.topic == "orders"
    assert detail.entry.queue_offset == 49
    assert detail.entry.properties["PSTK_ENV"] == "1"
    assert detail.store_host == "127.0.0.1:10911"
    assert not detail.in_batch


def test_a_message_of_a_batch_shows_its_batch(golden: GoldenStore) -> None:
    view = ReadOnlyStore.open(str(golden.root))
    detail = record_detail(view, ShardId("TopicBCQ", 0), 5)
    assert detail.record.offset == 5
    assert detail.in_batch
    assert "INNER_NUM" in detail.entry.properties


def test_hosts_are_written_as_people_do(golden: GoldenStore) -> None:
    detail = record_detail(ReadOnlyStore.open(str(golden.root)), ShardId("TopicA", 0), 0)
    assert (detail.born_host, detail.store_host) == ("10.1.2.1:40000", "127.0.0.1:10911")


def test_a_record_that_is_not_there_is_refused_with_the_reason(tmp_path: Path) -> None:
    with SegmentStore.open(str(tmp_path / "store"), QUIET) as store:
        store.create_shard(ORDERS)
        store.append(ORDERS, Record(b"old", expires_at_ms=1))
        store.append(ORDERS, Record(b"deleted"))
        store.delete_offsets(ORDERS, [1])
    view = ReadOnlyStore.open(str(tmp_path / "store"))
    with pytest.raises(RequestError, match="expired"):
        record_detail(view, ORDERS, 0)
    with pytest.raises(RequestError, match="deleted"):
        record_detail(view, ORDERS, 1)
    with pytest.raises(RequestError, match=r"holds offsets \[0, 2\)"):
        record_detail(view, ORDERS, 2)
    with pytest.raises(UnknownShardError):
        record_detail(view, EVENTS, 0)


def test_the_log_is_listed_record_by_record(golden: GoldenStore) -> None:
    entries = list(log_entries(ReadOnlyStore.open(str(golden.root))))
    expected = [line["physicalOffset"] for line in golden.lines("msg")]
    assert [entry.position for entry in entries] == expected


def test_the_log_is_listed_from_a_position_on(view: ReadOnlyStore) -> None:
    entries = list(log_entries(view))
    assert sum(entry.topic == "orders" for entry in entries) == ORDERS_COUNT
    assert sum(entry.topic == "events" for entry in entries) == EVENTS_COUNT
    assert list(log_entries(view, start=entries[200].position)) == entries[200:]
    with pytest.raises(BadRequestError, match="positions"):
        next(log_entries(view, start=1 << 40))


def test_listing_a_damaged_log_ends_with_the_place(copy: Path) -> None:
    entries = list(log_entries(ReadOnlyStore.open(str(copy))))
    flip(Path(entries[10].path), entries[10].position + 90)
    listed = log_entries(ReadOnlyStore.open(str(copy)))
    assert [next(listed) for _ in range(10)] == entries[:10]
    with pytest.raises(CorruptionError) as caught:
        next(listed)
    assert caught.value.position == entries[10].position
