"""The check of a store through Spark: a whole one is whole, damage is found and told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.engine.segment.readonly.sample_store import (
    EVENTS_COUNT,
    ORDERS,
    ORDERS_COUNT,
    QUIET,
    flip,
    order,
)
from tests.pipeline.sample_tier import upload

from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.store import SegmentStore
from penstock.errors import NotAStoreError
from penstock.pipeline import jobs

LIVE_COUNT = ORDERS_COUNT - 3


def test_a_whole_store_gives_every_record(spark: SparkSession, sample: Path) -> None:
    result = jobs.verify(spark, str(sample))
    assert result.is_whole
    assert {each.shard: (each.rows, each.rows_max) for each in result.shards} == {
        "empty_0": (0, 0),
        "events_3": (EVENTS_COUNT, EVENTS_COUNT),
        "orders_0": (LIVE_COUNT, LIVE_COUNT),
    }
    assert result.rows == LIVE_COUNT + EVENTS_COUNT
    assert result.bytes > 0


def test_a_flipped_bit_is_found_and_the_rest_is_read(
    spark: SparkSession, sample: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(sample, tmp_path / "store"))
    with ReadOnlyStore.open(str(path)) as view:
        position = view.snapshot().get(ORDERS).position_of(2)
    assert position is not None
    flip(path / "commitlog" / f"{0:020d}", position + 100)
    result = jobs.verify(spark, str(path))
    assert not result.is_whole
    assert position in {each.position for each in result.report.findings}
    orders = next(each for each in result.shards if each.shard == "orders_0")
    assert (orders.rows, orders.rows_max) == (LIVE_COUNT - 1, LIVE_COUNT)


def test_a_directory_that_is_no_store_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError):
        jobs.verify(spark, str(tmp_path / "nothing"))


def test_a_store_and_its_tier_are_compared(
    spark: SparkSession, sample: Path, tmp_path: Path
) -> None:
    path, url = Path(shutil.copytree(sample, tmp_path / "store")), f"file://{tmp_path}/tier"
    with SegmentStore.open(str(path), QUIET) as store:
        upload(store, url)
        store.delete_offsets(ORDERS, [20])  # the tier has not heard of it, which is no fault
    found = jobs.verify(spark, str(path), tier=url)
    assert found.problems == []
    checks = {each.shard: (each.start, each.end, each.rows, each.missing) for each in found.tier}
    assert checks["orders_0"] == (0, ORDERS_COUNT, ORDERS_COUNT - 4, 0)
    # Another store of the same shape: one record is another.
    other = f"file://{tmp_path}/other"
    with SegmentStore.open(str(tmp_path / "changed"), QUIET) as store:
        store.create_shard(ORDERS)
        for number in range(ORDERS_COUNT):
            store.append(ORDERS, order(number if number != 30 else 31))
        upload(store, other)
    found = jobs.verify(spark, str(path), tier=other)
    assert found.problems == [
        f"1 of {ORDERS_COUNT - 4} records of 'orders_0' are not in the tier as they are in the log"
    ]
    assert not found.is_whole
