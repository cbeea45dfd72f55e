"""Streams: from a store, into a store, and again after something went wrong in between."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.store import SegmentStore
from penstock.pipeline.read.positions import PositionsJson
from penstock.record import Record, ShardId

ORDERS = [ShardId("orders", n) for n in range(2)]
COUNT = 250


def append(path: Path, first: int, count: int) -> None:
    with SegmentStore.open(str(path)) as store:
        for shard in ORDERS:
            store.create_shard(shard)
            for number in range(first, first + count):
                store.append(shard, Record(b"%s %d" % (shard.name.encode(), number)))


def values(path: Path) -> list[bytes]:
    with ReadOnlyStore.open(str(path)) as view:
        return sorted(
            record.value or b""
            for shard in view.shards()
            for record in view.read(shard, 0, max_records=10_000)
        )


class Copy:
    """A query that copies one store into another, up to the end of what is there."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self._spark = spark
        self.source = root / "source"
        self.target = root / "target"
        self.checkpoint = root / "checkpoint"

    def run(self, *, sink: dict[str, str] | None = None, **options: str | int) -> StreamingQuery:
        reader = self._spark.readStream.format("penstock")
        for name, value in {"startingOffsets": "earliest", **options}.items():
            reader = reader.option(name, str(value))
        rows = reader.load(str(self.source)).select("key", "value", "partition")
        writer = rows.writeStream.format("penstock").trigger(availableNow=True)
        chosen = {
            "topic": "copy",
            "createTopics": "true",
            "partitions": "2",
            "checkpointLocation": str(self.checkpoint),
            **(sink or {}),
        }
        for name, value in chosen.items():
            writer = writer.option(name, value)
        query = writer.start(str(self.target))
        query.awaitTermination(240)
        assert not query.isActive
        return query

    def offsets(self) -> list[PositionsJson]:
        """Return the offsets that the checkpoint holds, batch by batch."""
        files = sorted(self.checkpoint.glob("offsets/[0-9]*"), key=lambda path: int(path.name))
        return [json.loads(path.read_text().splitlines()[-1]) for path in files]

    def forget_last_commit(self) -> None:
        """Leave the checkpoint as it is when the driver dies before it notes a batch as done."""
        files = sorted(self.checkpoint.glob("commits/[0-9]*"), key=lambda path: int(path.name))
        files[-1].unlink()
        for path in self.checkpoint.glob("commits/.*.crc"):
            path.unlink()

    def staged(self) -> list[Path]:
        return [*self.target.glob("penstock/sink/*/run-*/*")]


@pytest.fixture
def copy(spark: SparkSession, tmp_path: Path) -> Copy:
    copy = Copy(spark, tmp_path)
    append(copy.source, 0, COUNT)
    return copy


def test_a_stream_takes_each_record_once_in_bounded_batches_across_restarts(copy: Copy) -> None:
    query = copy.run(maxOffsetsPerTrigger=200)
    assert [each["numInputRows"] for each in query.recentProgress] == [200, 200, 100]
    assert copy.offsets()[0] == {"orders": {"id": "orders@1", "0": 100, "1": 100}}
    assert copy.offsets()[-1] == {"orders": {"id": "orders@1", "0": COUNT, "1": COUNT}}
    assert values(copy.target) == values(copy.source)
    assert copy.staged() == []
    append(copy.source, COUNT, 10)
    query = copy.run(maxOffsetsPerTrigger=200)
    assert [each["numInputRows"] for each in query.recentProgress] == [20]
    assert values(copy.target) == values(copy.source)
    # The driver died between the sink's commit and Spark's own: the batch comes again.
    copy.forget_last_commit()
    query = copy.run(maxOffsetsPerTrigger=200)
    assert [each["numInputRows"] for each in query.recentProgress] == [20]
    assert values(copy.target) == values(copy.source)


def test_a_sink_that_cannot_commit_takes_the_batch_later(copy: Copy) -> None:
    with SegmentStore.open(str(copy.target)), pytest.raises(StreamingQueryException) as caught:
        copy.run(sink={"lockTimeout": "0"})
    assert "another process" in str(caught.value) or "LockedError" in str(caught.value)
    copy.run()
    assert values(copy.target) == values(copy.source)
    assert copy.staged() == []


def test_records_lost_to_retention_stop_the_stream_unless_told_otherwise(copy: Copy) -> None:
    copy.run()
    append(copy.source, COUNT, 10)
    with SegmentStore.open(str(copy.source)) as store:
        store.delete_before(ORDERS[0], COUNT + 5)
    with pytest.raises(StreamingQueryException, match="records were removed before they were read"):
        copy.run()
    copy.run(failOnDataLoss="false")
    with ReadOnlyStore.open(str(copy.target)) as view:
        ends = [view.bounds(ShardId("copy", n)).commit for n in range(2)]
    assert ends == [COUNT + 5, COUNT + 10]


def test_a_query_that_begins_anew_is_no_repeat(copy: Copy, tmp_path: Path) -> None:
    copy.run()
    copy.checkpoint = tmp_path / "another"
    copy.run()
    assert len(values(copy.target)) == 4 * COUNT


def test_a_recreated_topic_stops_the_stream_or_is_read_anew(copy: Copy) -> None:
    copy.run()
    with SegmentStore.open(str(copy.source)) as store:
        for shard in ORDERS:
            store.delete_shard(shard)
    append(copy.source, 0, 10)
    with pytest.raises(StreamingQueryException, match="was deleted and created again"):
        copy.run()
    query = copy.run(failOnDataLoss="false")
    assert [each["numInputRows"] for each in query.recentProgress] == [20]


def test_a_new_checkpoint_is_a_new_query_also_under_the_same_sink_id(
    copy: Copy, tmp_path: Path
) -> None:
    sink = {"sinkId": "mine"}
    copy.run(sink=sink)
    copy.checkpoint = tmp_path / "another"
    copy.run(sink=sink)
    assert len(values(copy.target)) == 4 * COUNT
    copy.forget_last_commit()
    copy.run(sink=sink)  # a repeat of the second query's batch
    assert len(values(copy.target)) == 4 * COUNT
    assert copy.staged() == []
