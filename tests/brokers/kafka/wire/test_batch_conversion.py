"""Batches for clients from records of other doors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.brokers.kafka.wire import batch_oracle

from penstock.brokers.kafka.wire.batch_conversion import batch_of, records_of
from penstock.brokers.kafka.wire.batch_validation import check_head, check_records
from penstock.codec.select import native_only
from penstock.errors import BadRequestError
from penstock.record import Offset, StoredRecord

text = st.text(max_size=5)
blobs = st.none() | st.binary(max_size=200)
stored = st.builds(
    StoredRecord,
    offset=st.integers(0, 5),
    value=blobs,
    key=blobs,
    tags=st.lists(text.filter(bool), max_size=2, unique=True).map(tuple),
    headers=st.lists(st.tuples(text | st.just("tag"), blobs), max_size=3).map(tuple),
    timestamp_ms=st.integers(0, 1 << 41),
    store_timestamp_ms=st.just(0),
    leader_epoch=st.integers(0, 1 << 33),
    expires_at_ms=st.none(),
)


@given(
    records=st.lists(stored, min_size=1, max_size=6),
    base=st.integers(0, 1 << 60),
    tag_header=st.sampled_from(["tag", "", "x"]),
    transaction=st.none() | st.just((7, 1, 3)),
)
def test_a_batch_is_what_the_slow_way_builds(
    records: list[StoredRecord],
    base: int,
    tag_header: str,
    transaction: tuple[int, int, int] | None,
) -> None:
    placed, offset = [], base
    for record in records:
        offset += record.offset
        placed.append(moved(record, offset))
        offset += 1
    built = batch_of(placed, tag_header, transaction)
    assert built == batch_oracle.batch_of(placed, tag_header, transaction)


def moved(record: StoredRecord, offset: int) -> StoredRecord:
    return StoredRecord(
        offset=Offset(offset),
        value=record.value,
        key=record.key,
        tags=record.tags,
        headers=record.headers,
        timestamp_ms=record.timestamp_ms,
        store_timestamp_ms=record.store_timestamp_ms,
        leader_epoch=record.leader_epoch,
        expires_at_ms=None,
    )


@given(records=st.lists(stored, min_size=1, max_size=6))
def test_a_batch_without_holes_may_be_written_again(records: list[StoredRecord]) -> None:
    placed = [moved(record, at) for at, record in enumerate(records)]
    data = batch_of(placed, "")
    head = check_head(memoryview(data), 1 << 20)
    assert (head.base_offset, head.record_count) == (0, len(placed))
    checked = check_records(
        memoryview(data), head, 1 << 20, native_only().check_batch, needs_keys=False
    )
    assert checked is not None
    assert checked.size == len(data) - 61
    times = [record.timestamp_ms for record in placed]
    assert (checked.oldest_ms, checked.newest_ms) == (min(times), max(times))
    again = records_of(memoryview(data))
    assert [(one.key, one.value, one.headers) for one in again] == [
        (one.key, one.value, one.headers) for one in placed
    ]


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(BadRequestError):
        batch_of([], "tag")
