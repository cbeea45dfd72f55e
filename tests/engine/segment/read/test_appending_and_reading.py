"""What goes in comes out: by offset, as bytes, as Arrow, by key, by tag and by time."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codec.kafka_builder import kafka_batch
from tests.codec.record_strategies import any_records
from tests.engine.segment.batches import inner_batch
from tests.engine.segment.rig import (
    EVENTS,
    ORDERS,
    Rig,
    as_records,
    create,
    everything,
    fill,
    record,
)
from tests.engine.segment.shard_model import ShardModel, check_shard

from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.errors import (
    AlreadyExistsError,
    BadRequestError,
    NotSupportedError,
    RecordTooLargeError,
    UnknownShardError,
)
from penstock.record import QueueKind, Record, ShardId


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    create(rig.store)
    return rig


# Appending


def test_offsets_count_up_from_zero_in_every_shard(rig: Rig) -> None:
    create(rig.store, EVENTS)
    assert [rig.store.append(ORDERS, record(n)) for n in range(3)] == [0, 1, 2]
    assert rig.store.append(EVENTS, record(0)) == 0
    assert rig.store.append_many(ORDERS, [record(3), record(4)]) == 3


@settings(max_examples=40)
@given(records=st.lists(any_records, min_size=1, max_size=8))
def test_any_record_comes_back_as_it_went_in(records: list[Record]) -> None:
    rig = Rig()
    create(rig.store)
    rig.store.append(ORDERS, records[0])
    if len(records) > 1:
        rig.store.append_many(ORDERS, records[1:])
    for store in rig.lives():
        _check_same(as_records(everything(store, ORDERS)), _unexpired(records, rig))


def _unexpired(records: list[Record], rig: Rig) -> list[Record]:
    now = rig.clock.now_ms()
    return [each for each in records if each.expires_at_ms is None or each.expires_at_ms > now]


def _check_same(found: list[Record], expected: list[Record]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        fields = (one.value, one.key, one.tags, one.headers, one.expires_at_ms)
        assert fields == (other.value, other.key, other.tags, other.headers, other.expires_at_ms)
        assert other.timestamp_ms in (None, one.timestamp_ms)


def test_nothing_and_no_bytes_are_different_things(rig: Rig) -> None:
    rig.store.append_many(
        ORDERS, [Record(None), Record(b""), Record(b"v", key=b""), Record(b"v", key=None)]
    )
    found = [(each.value, each.key) for each in rig.kill().read(ORDERS, 0)]
    assert found == [(None, None), (b"", None), (b"v", b""), (b"v", None)]
    newest = rig.store.newest_by_key(ORDERS, b"")
    assert newest is not None
    assert newest.offset == 2


def test_a_record_without_a_timestamp_gets_the_stores(rig: Rig) -> None:
    rig.store.append(ORDERS, Record(b"v"))
    (found,) = rig.store.read(ORDERS, 0)
    assert found.timestamp_ms == found.store_timestamp_ms == rig.clock.now_ms()


def test_store_timestamps_never_go_back(rig: Rig) -> None:
    rig.store.append(ORDERS, Record(b"v"))
    before = rig.clock.now_ms()
    rig.clock.set_now_ms(before - 60_000)
    rig.store.append(ORDERS, Record(b"v"))
    rig.restart()
    rig.store.append(ORDERS, Record(b"v"))
    assert [each.store_timestamp_ms for each in rig.store.read(ORDERS, 0)] == [before] * 3


def test_columns_become_records(rig: Rig) -> None:
    first = rig.store.append_columns(
        ORDERS,
        pa.array([b"a", None, b"c"], pa.binary()),
        keys=pa.array([b"k", b"k", None], pa.large_binary()),
        tags=pa.array(["x", None, "y"], pa.string()),
        timestamps=pa.array([5, 6, 7], pa.timestamp("ms")),
    )
    assert first == 0
    assert as_records(rig.kill().read(ORDERS, 0)) == [
        Record(b"a", key=b"k", tags=("x",), timestamp_ms=5),
        Record(None, key=b"k", timestamp_ms=6),
        Record(b"c", tags=("y",), timestamp_ms=7),
    ]


def test_columns_of_a_table_may_be_in_chunks(rig: Rig) -> None:
    chunks = pa.chunked_array([[b"a"], [b"b", b"c"]], pa.binary())
    stamps = pa.chunked_array([[5, 6], [7]], pa.int64())
    assert rig.store.append_columns(ORDERS, chunks, keys=chunks, timestamps=stamps) == 0
    assert as_records(rig.store.read(ORDERS, 0)) == [
        Record(value, key=value, timestamp_ms=5 + n) for n, value in enumerate((b"a", b"b", b"c"))
    ]
    with pytest.raises(BadRequestError, match="at least one row"):
        rig.store.append_columns(ORDERS, pa.chunked_array([], pa.binary()))


def test_what_is_no_array_is_refused(rig: Rig) -> None:
    for wrong in ([b"a"], b"a", None):
        with pytest.raises(BadRequestError, match="values must be an Arrow array, got "):
            rig.store.append_columns(ORDERS, wrong)  # type: ignore[arg-type]  # is the test
    tags = ["x"]
    with pytest.raises(BadRequestError, match="tags must be an Arrow array, got list"):
        rig.store.append_columns(ORDERS, pa.array([b"a"]), tags=tags)  # type: ignore[arg-type]  # as above
    assert rig.store.bounds(ORDERS).next == 0


def test_limits_that_make_no_sense_are_refused_alike(rig: Rig) -> None:
    fill(rig.store, ORDERS, 3)
    rig.store.checkpoint()
    view = ReadOnlyStore.open("store", disk=rig.disk, clock=rig.clock)
    for reader in (rig.store, view):
        for read in (reader.read, reader.read_page, reader.read_raw):
            for offset, count, size in ((-1, 1, 1), (0, 0, 1), (0, 1, 0)):
                with pytest.raises(BadRequestError, match="offsets start at 0 and limits at 1"):
                    read(ORDERS, offset, max_records=count, max_size=size)
        with pytest.raises(BadRequestError, match="limit is -1"):
            reader.query_by_key(ORDERS, b"key-0", limit=-1)
        assert reader.query_by_key(ORDERS, b"key-0", limit=0) == []


def test_columns_that_do_not_fit_together_are_refused(rig: Rig) -> None:
    values = pa.array([b"a", b"b"])
    with pytest.raises(BadRequestError, match="keys has 1 rows"):
        rig.store.append_columns(ORDERS, values, keys=pa.array([b"k"]))
    with pytest.raises(BadRequestError, match="values is an array of int64"):
        rig.store.append_columns(ORDERS, pa.array([1]))
    with pytest.raises(BadRequestError, match="at least one row"):
        rig.store.append_columns(ORDERS, pa.array([], pa.binary()))
    assert rig.store.bounds(ORDERS).next == 0


def test_batches_of_both_forms_and_single_records_share_a_batch_shard(rig: Rig) -> None:
    create(rig.store, EVENTS, kind=QueueKind.BATCH)
    model = ShardModel()
    inner = [Record(b"i%d" % n, key=b"k", tags=("t",), timestamp_ms=10) for n in range(3)]
    assert rig.store.append_batch(EVENTS, inner_batch(inner), 3, born_ms=10) == 0
    model.append(inner)
    single = record(3, key=b"k", tag="t")
    assert rig.store.append(EVENTS, single) == 3
    model.append([single])
    kafka = [Record(b"x%d" % n, key=b"k", timestamp_ms=20 + n) for n in range(4)]
    assert rig.store.append_batch(EVENTS, kafka_batch(kafka), 4, kafka=True) == 4
    model.append(kafka)
    group = [record(8, key=b"k"), record(9)]
    assert rig.store.append_many(EVENTS, group) == 8
    model.append(group)
    for store in rig.lives():
        check_shard(store, EVENTS, model)
    assert [each.value for each in rig.store.read(EVENTS, 5, max_records=2)] == [b"x1", b"x2"]


def test_batches_need_a_batch_shard_and_a_sensible_count(rig: Rig) -> None:
    create(rig.store, EVENTS, kind=QueueKind.BATCH)
    with pytest.raises(NotSupportedError, match="takes no batches"):
        rig.store.append_batch(ORDERS, b"body", 1)
    for count in (0, 32_768):
        with pytest.raises(BadRequestError, match="1 to 32767"):
            rig.store.append_batch(EVENTS, b"body", count)
    with pytest.raises(BadRequestError):
        rig.store.append_batch(EVENTS, b"short", 1, kafka=True)
    assert rig.store.bounds(EVENTS).next == 0


def test_encoded_records_of_another_store_keep_all_their_fields(rig: Rig) -> None:
    source = Rig()
    create(source.store)
    fill(source.store, ORDERS, 5)
    source.store.append_many(ORDERS, [record(5, key=b"k"), record(6)])
    copied = source.store.read_raw(ORDERS, 0)
    assert len(copied) == 7
    assert rig.store.append_encoded(ORDERS, b"".join(copied[:3])) == 0
    assert rig.store.append_encoded(ORDERS, b"".join(copied[3:])) == 3
    assert everything(rig.kill(), ORDERS) == everything(source.store, ORDERS)
    newest = rig.store.newest_by_key(ORDERS, b"k")
    assert newest is not None
    assert newest.offset == 5


def test_encoded_records_must_follow_on_and_be_whole(rig: Rig) -> None:
    source = Rig()
    create(source.store)
    fill(source.store, ORDERS, 3)
    copied = source.store.read_raw(ORDERS, 0)
    damaged = bytearray(copied[0])
    damaged[-30] ^= 1
    for data in (copied[1], bytes(damaged), copied[0][:-1], b"", copied[0] + copied[2]):
        with pytest.raises(BadRequestError):
            rig.store.append_encoded(ORDERS, data)
    assert rig.store.bounds(ORDERS).next == 0


def test_what_is_too_large_is_refused_and_nothing_is_written(rig: Rig) -> None:
    rig.store.append(ORDERS, record(0))
    end = rig.store.bounds(ORDERS).end_position
    with pytest.raises(RecordTooLargeError):
        rig.store.append(ORDERS, record(1, size=9_000))
    with pytest.raises(RecordTooLargeError):
        rig.store.append_many(ORDERS, [record(n, size=3_000) for n in range(3)])
    with pytest.raises(BadRequestError):
        rig.store.append_many(ORDERS, [])
    assert rig.store.bounds(ORDERS).end_position == end
    assert rig.store.append(ORDERS, record(1)) == 1


def test_an_unknown_shard_is_named(rig: Rig) -> None:
    unknown = ShardId("nobody", 7)
    for call in (
        lambda: rig.store.append(unknown, record(0)),
        lambda: rig.store.read(unknown, 0),
        lambda: rig.store.bounds(unknown),
        lambda: rig.store.delete_before(unknown, 1),
        lambda: rig.store.truncate(unknown, 0),
        lambda: rig.store.seal(unknown),
    ):
        with pytest.raises(UnknownShardError, match="nobody_7"):
            call()


def test_a_shard_is_created_once_and_its_kind_stays(rig: Rig) -> None:
    rig.store.append(ORDERS, record(0))
    rig.store.create_shard(ORDERS)
    assert rig.store.bounds(ORDERS).next == 1
    with pytest.raises(AlreadyExistsError, match="SimpleCQ"):
        rig.store.create_shard(ORDERS, QueueKind.BATCH)
    for name in ("", "a/b", "x" * 300, "orders%ctl"):
        with pytest.raises(BadRequestError):
            rig.store.create_shard(ShardId(name, 0))
    with pytest.raises(BadRequestError):
        rig.store.create_shard(ShardId("orders", -1))
    assert rig.store.shards() == [ORDERS]


def test_an_empty_shard_survives_a_kill(rig: Rig) -> None:
    create(rig.store, EVENTS, kind=QueueKind.BATCH)
    store = rig.kill()
    assert store.shards() == [EVENTS, ORDERS]
    assert store.kind(EVENTS) is QueueKind.BATCH


# Reading


def test_limits_of_records_and_bytes_are_kept(rig: Rig) -> None:
    fill(rig.store, ORDERS, 10)
    size = len(rig.store.read_raw(ORDERS, 0)[0])
    assert len(rig.store.read(ORDERS, 0, max_records=3)) == 3
    assert len(rig.store.read(ORDERS, 0, max_size=3 * size)) in (2, 3)
    assert len(rig.store.read(ORDERS, 4, max_size=1)) == 1, "the first comes whatever its size"
    assert len(rig.store.read_raw(ORDERS, 0, max_records=4)) == 4
    assert len(rig.store.read_raw(ORDERS, 0, max_size=1)) == 1


def test_reading_at_and_past_the_end_finds_nothing(rig: Rig) -> None:
    fill(rig.store, ORDERS, 3)
    for offset in (3, 4, 1 << 40):
        page = rig.store.read_page(ORDERS, offset)
        assert (page.records, page.next_offset) == ([], offset)
    for offset, records, size in ((-1, 1, 1), (0, 0, 1), (0, 1, 0)):
        with pytest.raises(BadRequestError):
            rig.store.read_page(ORDERS, offset, max_records=records, max_size=size)


def test_nothing_is_shown_past_the_commit_offset(rig: Rig) -> None:
    fill(rig.store, ORDERS, 6)
    rig.store.set_commit_offset(ORDERS, 4)
    assert [each.offset for each in rig.store.read(ORDERS, 0)] == [0, 1, 2, 3]
    assert rig.store.newest_by_key(ORDERS, b"key-4") is None
    assert rig.store.offset_by_timestamp(ORDERS, 1_000_004) is None
    assert len(rig.store.read_raw(ORDERS, 0)) == 4
    assert sum(batch.num_rows for batch in rig.store.read_arrow(ORDERS)) == 4
    rig.store.set_commit_offset(ORDERS, None)
    assert len(rig.store.read(ORDERS, 0)) == 6


def test_every_way_to_read_agrees_before_and_after_a_restart(rig: Rig) -> None:
    model = ShardModel()
    model.append(fill(rig.store, ORDERS, 50))
    tombstone = Record(None, key=b"key-1", tags=("tag-1", "tag-2"), timestamp_ms=7)
    rig.store.append(ORDERS, tombstone)
    model.append([tombstone])
    check_shard(rig.store, ORDERS, model)
    rig.store.run_upkeep()
    check_shard(rig.store, ORDERS, model)
    check_shard(rig.restart(), ORDERS, model)
    check_shard(rig.kill(), ORDERS, model)


def test_arrow_batches_hold_what_records_hold(rig: Rig) -> None:
    fill(rig.store, ORDERS, 20)
    rig.store.append(ORDERS, Record(None, tags=("a", "b"), headers=(("h", None), ("h", b"1"))))
    rig.store.delete_offsets(ORDERS, [2])
    table = pa.Table.from_batches(list(rig.store.read_arrow(ORDERS)))
    rows = table.to_pylist()
    found = rig.store.read(ORDERS, 0)
    assert [row["offset"] for row in rows] == [each.offset for each in found]
    assert [(row["value"], row["key"]) for row in rows] == [(e.value, e.key) for e in found]
    assert [tuple(row["tags"]) for row in rows] == [each.tags for each in found]
    headers = [tuple((h["key"], h["value"]) for h in row["headers"]) for row in rows]
    assert headers == [each.headers for each in found]
    some = list(rig.store.read_arrow(ORDERS, 5, until=9, columns=["value"], tag="tag-0"))
    assert [row["value"] for batch in some for row in batch.to_pylist()] == [b"value-6"]
    with pytest.raises(BadRequestError, match="no column 'colour'"):
        list(rig.store.read_arrow(ORDERS, columns=["colour"]))


def test_keys_are_found_newest_first_within_a_range_of_times(rig: Rig) -> None:
    fill(rig.store, ORDERS, 20)
    offsets = [each.offset for each in rig.store.query_by_key(ORDERS, b"key-2")]
    assert offsets == [17, 12, 7, 2]
    some = rig.store.query_by_key(ORDERS, b"key-2", begin_ms=1_000_007, end_ms=1_000_012)
    assert [each.offset for each in some] == [12, 7]
    assert len(rig.store.query_by_key(ORDERS, b"key-2", limit=3)) == 3
    create(rig.store, ShardId("orders", 1))
    assert rig.store.query_by_key(ShardId("orders", 1), b"key-2") == []


def test_keys_whose_hashes_collide_are_told_apart(rig: Rig) -> None:
    rig.store.append(ORDERS, record(0, key=b"Aa"))
    rig.store.append(ORDERS, record(1, key=b"BB"))
    assert [each.offset for each in rig.store.by_key(ORDERS, b"Aa")] == [0]
    assert [each.offset for each in rig.store.by_key(ORDERS, b"BB")] == [1]


def test_a_tag_is_matched_whole(rig: Rig) -> None:
    for number, tag in enumerate(("a", "a/b", "aa", "a")):
        rig.store.append(ORDERS, record(number, tag=tag))
    assert [each.offset for each in rig.store.read_page(ORDERS, 0, tag="a").records] == [0, 3]
    assert rig.store.read_page(ORDERS, 0, tag="b") == ([], 4)


def test_times_in_any_order_are_found() -> None:
    rig = Rig()
    create(rig.store)
    model = ShardModel()
    for number in range(2_500):
        each = Record(b"", timestamp_ms=(number * 7919) % 5_000)
        rig.store.append(ORDERS, each)
        model.append([each])
        if number == 1_500:
            rig.restart()
    rig.kill()
    for time_ms in range(0, 5_200, 173):
        expected = next(
            (at for at, each in enumerate(model.records) if (each.timestamp_ms or 0) >= time_ms),
            None,
        )
        assert rig.store.offset_by_timestamp(ORDERS, time_ms) == expected


def test_an_expired_record_is_passed_over_everywhere(rig: Rig) -> None:
    now = rig.clock.now_ms()
    rig.store.append(ORDERS, Record(b"short", key=b"k", tags=("t",), expires_at_ms=now + 1_000))
    rig.store.append(ORDERS, Record(b"long", key=b"k", tags=("t",), timestamp_ms=now + 5))
    assert len(rig.store.read(ORDERS, 0)) == 2
    rig.clock.advance(1)
    for store in rig.lives():
        assert [each.value for each in store.read(ORDERS, 0)] == [b"long"]
        assert [each.value for each in store.by_key(ORDERS, b"k")] == [b"long"]
        assert [each.value for each in store.read_page(ORDERS, 0, tag="t").records] == [b"long"]
        assert store.offset_by_timestamp(ORDERS, 0) == 1
        assert sum(batch.num_rows for batch in store.read_arrow(ORDERS)) == 1
