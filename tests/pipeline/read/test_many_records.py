"""More than a million records: every one is counted, none twice, whichever way the work is cut."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.pipeline.conftest import Load, Metrics

from penstock.engine.segment.store import SegmentStore
from penstock.record import ShardId

SHARDS = [ShardId(topic, number) for topic in ("orders", "events") for number in range(3)]
ROUNDS = 25
ROWS = 7_000
TOTAL = len(SHARDS) * ROUNDS * ROWS
assert TOTAL > 1_000_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "store"
    with SegmentStore.open(str(path)) as store:
        for shard in SHARDS:
            store.create_shard(shard)
        for number in range(ROUNDS):
            numbers = range(number * ROWS, (number + 1) * ROWS)
            values = pa.array([b"value %d" % each for each in numbers])
            for shard in SHARDS:
                store.append_columns(shard, values, timestamps=pa.array(numbers, pa.int64()))
    return path


def test_counts_and_sums_are_exact(load: Load, large: Path, metrics: Metrics) -> None:
    per_shard = ROUNDS * ROWS
    table = load(large, columns="topic,partition,offset", metricsPath=metrics.path)
    found = table.groupBy("topic", "partition").agg({"*": "count", "offset": "sum"}).collect()
    assert {(row.topic, row.partition) for row in found} == set(SHARDS)
    for row in found:
        assert row["count(1)"] == per_shard
        assert row["sum(offset)"] == per_shard * (per_shard - 1) // 2
    assert metrics.total("rows_read") == TOTAL


def test_one_topic_of_many_reads_only_itself(load: Load, large: Path, metrics: Metrics) -> None:
    table = load(large, columns="value", metricsPath=metrics.path, maxPartitionBytes=4 << 20)
    half = load(large, subscribe="orders", metricsPath=metrics.path, maxPartitionBytes=4 << 20)
    assert half.count() == TOTAL // 2
    assert metrics.total("rows_read") == TOTAL // 2
    assert table.where("cast(value as string) = 'value 12345'").count() == len(SHARDS)
