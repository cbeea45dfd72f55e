"""Views of stores that Penstock wrote: the same answers as the store itself gives."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.engine.segment.readonly.sample_store import (
    EMPTY,
    EVENTS,
    EVENTS_COUNT,
    ORDERS,
    ORDERS_COUNT,
    QUIET,
    fill,
    order,
    tree,
)

from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError, ClosedError, UnknownShardError
from penstock.record import Record, ShardId


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SegmentStore]:
    """An open store, filled and published. Its bounds are refreshed only by `run_upkeep`."""
    with SegmentStore.open(str(tmp_path / "open"), QUIET) as store:
        fill(store)
        store.run_upkeep()
        yield store


@pytest.fixture
def beside(store: SegmentStore, tmp_path: Path) -> ReadOnlyStore:
    return ReadOnlyStore.open(str(tmp_path / "open"))


def same_answers(view: ReadOnlyStore, store: SegmentStore) -> None:
    assert view.shards() == store.shards() == [EMPTY, EVENTS, ORDERS]
    for shard in store.shards():
        assert view.kind(shard) is store.kind(shard)
        bounds, expected = view.bounds(shard), store.bounds(shard)
        assert (bounds.earliest, bounds.commit, bounds.next) == (
            expected.earliest,
            expected.commit,
            expected.next,
        )
        assert view.read(shard, 0) == store.read(shard, 0)
        assert view.read_raw(shard, 3) == store.read_raw(shard, 3)
        assert view.read_page(shard, 5, tag="eu") == store.read_page(shard, 5, tag="eu")
        assert arrow_rows(view.read_arrow(shard)) == arrow_rows(store.read_arrow(shard))
        for key in (b"o-1", b"\xff odd 3", b"e-2", b"nothing"):
            assert view.newest_by_key(shard, key) == store.newest_by_key(shard, key)
            assert list(view.by_key(shard, key)) == list(store.by_key(shard, key))
            assert view.query_by_key(
                shard, key, begin_ms=1_000_100, end_ms=1_002_000, limit=3
            ) == store.query_by_key(shard, key, begin_ms=1_000_100, end_ms=1_002_000, limit=3)
        for time in (0, 5_010, 1_000_075, 1_001_234, 9_999_999):
            assert view.offset_by_timestamp(shard, time) == store.offset_by_timestamp(shard, time)


def arrow_rows(batches: Iterator[pa.RecordBatch]) -> list[dict[str, object]]:
    return [row for batch in batches for row in batch.to_pylist()]


def test_a_readonly_store_beside_an_open_store_answers_as_the_store_does(
    store: SegmentStore, beside: ReadOnlyStore
) -> None:
    same_answers(beside, store)


def test_a_readonly_store_of_a_closed_store_answers_as_the_store_did(
    copy: Path, tmp_path: Path
) -> None:
    again = Path(shutil.copytree(copy, tmp_path / "again"))
    with SegmentStore.open(str(again), QUIET) as store:
        same_answers(ReadOnlyStore.open(str(copy)), store)


def test_a_readonly_store_of_a_closed_store_changes_nothing(copy: Path) -> None:
    before = tree(copy)
    with ReadOnlyStore.open(str(copy)) as view:
        assert len(view.read(ORDERS, 0)) == ORDERS_COUNT - 3
        assert view.newest_by_key(EVENTS, b"e-1") is not None
        view.offset_by_timestamp(ORDERS, 1_002_000)
    assert tree(copy) == before


def test_what_penstock_wrote_can_be_read_without_its_own_files(copy: Path) -> None:
    """As RocketMQ would: without deletions, which its files cannot say."""
    shutil.rmtree(copy / "penstock")
    view = ReadOnlyStore.open(str(copy))
    assert {ORDERS, EVENTS} <= set(view.shards())
    assert [record.offset for record in view.read(ORDERS, 0)] == list(range(ORDERS_COUNT))
    assert [record.offset for record in view.read(EVENTS, 0)] == list(range(EVENTS_COUNT))
    newest = view.newest_by_key(ORDERS, b"o-1")
    assert newest is not None
    assert newest.offset == 281


def test_appends_are_seen_after_a_refresh(store: SegmentStore, beside: ReadOnlyStore) -> None:
    store.append_many(ORDERS, [Record(b"new", key=b"n")] * 40)
    store.run_upkeep()
    assert beside.bounds(ORDERS).next == ORDERS_COUNT
    assert beside.read(ORDERS, ORDERS_COUNT) == []
    assert beside.newest_by_key(ORDERS, b"n") is None
    beside.refresh()
    assert beside.read(ORDERS, ORDERS_COUNT) == store.read(ORDERS, ORDERS_COUNT)
    assert len(list(beside.by_key(ORDERS, b"n"))) == 40


def test_deletions_are_seen_after_a_refresh(store: SegmentStore, beside: ReadOnlyStore) -> None:
    store.delete_offsets(ORDERS, [10, 12])
    store.delete_before(ORDERS, 9)
    store.run_upkeep()
    beside.refresh()
    assert beside.bounds(ORDERS).earliest == 9
    assert [r.offset for r in beside.read(ORDERS, 0, max_records=3)] == [9, 11, 13]
    assert [r.offset for r in beside.by_key(ORDERS, order(12).key or b"")][-1] != 12


def test_a_readonly_store_never_shows_what_is_not_committed(
    store: SegmentStore, beside: ReadOnlyStore
) -> None:
    store.set_commit_offset(ORDERS, 250)
    store.append(ORDERS, Record(b"not yet", key=b"late"))
    store.run_upkeep()
    beside.refresh()
    assert beside.bounds(ORDERS).commit == 250
    assert beside.read(ORDERS, 0)[-1].offset == 249
    assert beside.newest_by_key(ORDERS, b"late") is None
    assert beside.offset_by_timestamp(ORDERS, 1_000_000 + 2_600) is None


def test_truncated_tails_are_gone_and_replaced(store: SegmentStore, beside: ReadOnlyStore) -> None:
    store.truncate(ORDERS, 200)
    store.run_upkeep()
    beside.refresh()
    assert beside.bounds(ORDERS).next == 200
    store.append(ORDERS, Record(b"other", key=b"o-1"))
    store.run_upkeep()
    # The view has not looked since the cut, and must not mix old bounds with new units.
    assert beside.read(ORDERS, 199) == store.read(ORDERS, 199, max_records=1)
    beside.refresh()
    assert [r.value for r in beside.read(ORDERS, 200)] == [b"other"]
    newest = beside.newest_by_key(ORDERS, b"o-1")
    assert newest is not None
    assert newest.offset == 200


def test_a_readonly_store_that_meets_a_truncation_looks_again_by_itself(
    store: SegmentStore, beside: ReadOnlyStore
) -> None:
    store.truncate(ORDERS, 200)
    store.run_upkeep()
    assert [r.offset for r in beside.read(ORDERS, 195)] == [195, 196, 197, 198, 199]


def test_deleted_shards_are_gone(store: SegmentStore, beside: ReadOnlyStore) -> None:
    store.delete_shard(EVENTS)
    store.run_upkeep()
    beside.refresh()
    assert beside.shards() == [EMPTY, ORDERS]
    with pytest.raises(UnknownShardError):
        beside.read(EVENTS, 0)


def test_a_shard_that_was_deleted_and_created_again_is_the_new_one(
    store: SegmentStore, beside: ReadOnlyStore
) -> None:
    store.delete_shard(ORDERS)
    store.create_shard(ORDERS)
    store.append(ORDERS, Record(b"second life"))
    store.run_upkeep()
    beside.refresh()
    assert [(r.offset, r.value) for r in beside.read(ORDERS, 0)] == [(0, b"second life")]


def test_files_that_retention_removed_are_not_asked_for(
    store: SegmentStore, beside: ReadOnlyStore
) -> None:
    while store.retention.remove_oldest_file():
        pass
    store.run_upkeep()
    kept = store.read(ORDERS, 0)
    assert 0 < len(kept) < ORDERS_COUNT
    # Without a refresh: the view finds out, looks again, and begins where the shard now does.
    assert beside.read(ORDERS, 0) == kept
    assert list(beside.by_key(ORDERS, b"o-1")) == list(store.by_key(ORDERS, b"o-1"))


def test_expired_records_are_not_shown(store: SegmentStore, beside: ReadOnlyStore) -> None:
    store.append(ORDERS, Record(b"old", expires_at_ms=1))
    store.append(ORDERS, Record(b"young"))
    store.run_upkeep()
    beside.refresh()
    assert [r.value for r in beside.read(ORDERS, ORDERS_COUNT)] == [b"young"]


def test_pages_end_at_their_limits(beside: ReadOnlyStore) -> None:
    page = beside.read_page(ORDERS, 5, max_records=3)
    assert ([r.offset for r in page.records], page.next_offset) == ([5, 6, 9], 10)
    assert len(beside.read(ORDERS, 0, max_size=1)) == 1
    assert beside.read_page(ORDERS, ORDERS_COUNT).next_offset == ORDERS_COUNT


def test_limits_that_make_no_sense_are_refused(beside: ReadOnlyStore) -> None:
    with pytest.raises(BadRequestError):
        beside.read(ORDERS, -1)
    with pytest.raises(BadRequestError):
        beside.read_raw(ORDERS, 0, max_records=0)


def test_arrow_batches_take_a_range_and_columns(beside: ReadOnlyStore) -> None:
    batches = list(beside.read_arrow(ORDERS, 5, until=12, columns=["offset", "value"]))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == [5, 6, 9, 10, 11]
    assert rows[0] == {"offset": 5, "value": b"order 5"}


def test_a_closed_readonly_store_says_so(copy: Path) -> None:
    view = ReadOnlyStore.open(str(copy))
    view.close()
    view.close()
    with pytest.raises(ClosedError):
        view.shards()


def test_the_control_queues_are_no_shards_of_the_user(beside: ReadOnlyStore) -> None:
    assert all(not shard.topic.endswith("%ctl") for shard in beside.shards())


def test_a_store_without_a_record_is_empty(tmp_path: Path) -> None:
    SegmentStore.open(str(tmp_path / "new"), QUIET).close()
    view = ReadOnlyStore.open(str(tmp_path / "new"))
    assert view.shards() == []


def test_a_new_store_has_no_shards_until_it_publishes_them(tmp_path: Path) -> None:
    """Its queues are not taken for RocketMQ's, or shards would come, go and come again."""
    with SegmentStore.open(str(tmp_path / "new"), QUIET) as store:
        view = ReadOnlyStore.open(str(tmp_path / "new"))
        fill(store)
        view.refresh()
        assert view.snapshot().is_own
        assert view.shards() == []
        store.run_upkeep()
        view.refresh()
        assert view.shards() == [EMPTY, EVENTS, ORDERS]


def test_a_store_whose_parts_lie_elsewhere_is_read_with_its_paths(tmp_path: Path) -> None:
    settings = QUIET.__class__(
        sizes=QUIET.sizes,
        background=False,
        commit_log_path=str(tmp_path / "fast"),
        consume_queue_path=str(tmp_path / "queues"),
        index_path=str(tmp_path / "index"),
    )
    with SegmentStore.open(str(tmp_path / "store"), settings) as store:
        fill(store)
    view = ReadOnlyStore.open(str(tmp_path / "store"), settings=settings)
    assert len(view.read(ORDERS, 0)) == ORDERS_COUNT - 3
    assert view.newest_by_key(ShardId("events", 3), b"e-3") is not None


def test_a_deleted_shard_is_not_shown_because_of_an_older_copy_of_its_state(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store"
    with SegmentStore.open(str(path), QUIET) as store:
        store.create_shard(EMPTY)
        store.run_upkeep()
        published = {each: each.read_bytes() for each in (path / "penstock/live").iterdir()}
        assert published
        store.delete_shard(EMPTY)
        store.checkpoint()
        for each, data in published.items():
            each.write_bytes(data)  # as a writer leaves it that is killed before it publishes
        assert ReadOnlyStore.open(str(path)).shards() == []
