"""Measuring topics: counts, sizes and times are those of the records, and fit the bounds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.engine.segment.readonly.sample_store import EVENTS_COUNT, ORDERS_COUNT, event, order

from penstock.errors import BadRequestError, NotAStoreError
from penstock.pipeline import jobs

LIVE = [order(n) for n in range(ORDERS_COUNT) if n not in (7, 8, 100)]


def test_rows_bytes_times_and_keys_are_those_of_the_records(
    spark: SparkSession, sample: Path
) -> None:
    result = jobs.stats(spark, str(sample), every_s=1, top_keys=3)
    topics = {each.topic: each for each in result.topics}
    assert list(topics) == ["empty", "events", "orders"]
    assert (topics["empty"].rows, topics["empty"].first_ms) == (0, None)
    orders, events = topics["orders"], topics["events"]
    sizes = [len(each.key or b"") + len(each.value or b"") for each in LIVE]
    assert orders.rows == orders.rows_bound == len(LIVE)
    assert (orders.bytes, orders.size_max) == (sum(sizes), max(sizes))
    times = [each.timestamp_ms or 0 for each in LIVE]
    assert (orders.first_ms, orders.last_ms) == (min(times), max(times))
    assert events.rows == EVENTS_COUNT
    assert result.rows == orders.rows + events.rows
    assert events.bytes == sum(
        len(event(n).value or b"") + len(event(n).key or b"") for n in range(EVENTS_COUNT)
    )
    per_second = Counter(each // 1000 * 1000 for each in times)
    assert {
        each.start_ms: each.rows for each in result.intervals if each.topic == "orders"
    } == per_second
    keys = Counter((each.key or b"").decode("utf-8", "backslashreplace") for each in LIVE)
    found = {each.key: each.rows for each in result.top_keys if each.topic == "orders"}
    assert len(found) == 3
    assert all(keys[key] == rows for key, rows in found.items())
    assert sorted(found.values(), reverse=True) == [n for _, n in keys.most_common(3)]


def test_one_topic_may_be_chosen_and_an_empty_one_measured(
    spark: SparkSession, sample: Path
) -> None:
    result = jobs.stats(spark, str(sample), topics=["empty"])
    assert (result.rows, result.intervals, result.top_keys) == (0, [], [])
    assert [each.topic for each in result.topics] == ["empty"]


def test_wrong_requests_are_refused(spark: SparkSession, sample: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match="did you mean 'orders'"):
        jobs.stats(spark, str(sample), topics=["order"])
    with pytest.raises(BadRequestError, match="every_s"):
        jobs.stats(spark, str(sample), every_s=0)
    with pytest.raises(NotAStoreError):
        jobs.stats(spark, str(tmp_path / "nothing"))
