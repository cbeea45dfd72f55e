"""The data source `penstock`: a store directory as a table and as a stream.

    batch      ranges of offsets are fixed when the query is planned; filters shorten them
    stream     an offset is `{"orders": {"0": 17, "1": 4}}`, the next record to read of each shard;
               Spark keeps it in the checkpoint, as readable as it is here

Plans are made where the query runs; records are read in the workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.engine.segment.view import StoreView
from penstock.pipeline.columns import spark_schema
from penstock.pipeline.filters import Filters
from penstock.pipeline.planning import TaskPartition, plan, plan_by_key
from penstock.pipeline.ranges import ShardRange, batch_ranges
from penstock.pipeline.reading import Scan
from penstock.pipeline.source_options import SourceOptions, columns_of, read_options
from penstock.pipeline.stream_offsets import StreamOffsets, StreamPlanner
from penstock.record import QueueKind

if TYPE_CHECKING:
    import pyarrow as pa


class PenstockDataSource(DataSource):
    """Spark finds it by its name once it is registered."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> str:
        return spark_schema(columns_of(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(read_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - a name of Spark's
        return StreamReader(read_options(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.pipeline.sink import BatchWriter, refuse_overwrite

        refuse_overwrite(overwrite)
        return BatchWriter(self.options, schema)

    def streamWriter(  # noqa: N802 - a name of Spark's
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from penstock.pipeline.sink import StreamWriter, refuse_overwrite

        refuse_overwrite(overwrite)
        return StreamWriter(self.options, schema)


def _scan(options: SourceOptions, schema: StructType, filters: Filters) -> Scan:
    return Scan(
        path=options.path,
        columns=tuple(schema.fieldNames()),
        filters=filters,
        fail_on_data_loss=options.fail_on_data_loss,
        skip_damage=options.skip_damage,
        tag=options.tag,
        metrics_path=options.metrics_path,
    )


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filters = Filters()

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - a name of Spark's
        return self._filters.take(filters)

    def partitions(self) -> list[TaskPartition]:
        options, filters = self._options, self._filters
        with StoreView.open(options.path) as view:
            ranges = [
                ShardRange(shard, max(start, filters.offsets.start), min(end, filters.offsets.end))
                for shard, start, end in batch_ranges(view, options)
                if filters.shows(*shard)
            ]
            ranges = [each for each in ranges if each.start < each.end]
            found: list[TaskPartition] = []
            if filters.keys is not None:
                found = plan_by_key(view, ranges)
                ranges = [each for each in ranges if view.kind(each.shard) is QueueKind.BATCH]
            found += plan(view, ranges, options.partition_bytes, options.partitions_min)
        # Spark takes an empty list for "one partition of which nothing is known".
        return found or [TaskPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskPartition)
        return _scan(self._options, self._schema, self._filters).batches(partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._scan = _scan(options, schema, Filters())
        self._options = options
        self._planner: StreamPlanner | None = None

    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            self._planner = StreamPlanner(self._options)
        return self._planner

    def initialOffset(self) -> StreamOffsets:  # noqa: N802 - a name of Spark's
        return self._plan().initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - a name of Spark's
        count = self._options.records_per_trigger
        return ReadAllAvailable() if count is None else ReadMaxRows(count)

    def latestOffset(  # noqa: N802 - a name of Spark's
        self, start: StreamOffsets, limit: ReadLimit
    ) -> StreamOffsets:
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._plan().latest(start, rows)

    def reportLatestOffset(self) -> StreamOffsets:  # noqa: N802 - a name of Spark's
        return self._plan().newest()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - a name of Spark's
        self._plan().stop_here()

    def partitions(self, start: StreamOffsets, end: StreamOffsets) -> Sequence[InputPartition]:
        return self._plan().tasks(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskPartition)
        return self._scan.batches(partition)

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()

    def __getstate__(self) -> Mapping[str, object]:
        # What the driver holds open stays with it.
        return {**self.__dict__, "_planner": None}
