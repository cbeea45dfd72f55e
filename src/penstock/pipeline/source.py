"""The data source `penstock`: a store directory, or a running node, as a table.

Ranges of offsets are fixed when the query is planned, on the driver, and filters shorten them;
records are read in the workers. The stream and the sink are modules of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from penstock.errors import SetupError
from penstock.pipeline.options.filters import Filters
from penstock.pipeline.options.source_options import SourceOptions, columns_of, read_options
from penstock.pipeline.options.table_options import (
    check_inserted,
    effective,
    schema_with_options,
    without_table,
)
from penstock.pipeline.read.planning import TaskPartition, within_limit
from penstock.pipeline.read.ranges import ShardRange, batch_ranges
from penstock.pipeline.read.reading import Scan
from penstock.pipeline.read.sources import open_source
from penstock.pipeline.spark_session.worker_errors import hide_traceback, hide_traceback_in_rows

if TYPE_CHECKING:
    import pyarrow as pa


class PenstockDataSource(DataSource):
    """Spark finds it by its name once it is registered."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    @hide_traceback
    def schema(self) -> StructType | str:
        return schema_with_options(self.options, columns_of(without_table(self.options)))

    @hide_traceback
    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(effective(self.options, schema), streaming=False)
        kind = FilteringBatchReader if options.push_filters else BatchReader
        return kind(options, schema)

    @hide_traceback
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - a name of Spark's
        try:
            from penstock.pipeline.stream_source import StreamReader
        except ImportError as error:
            raise SetupError("streams need PySpark 4.2 or newer") from error
        return StreamReader(read_options(effective(self.options, schema), streaming=True), schema)

    @hide_traceback
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.pipeline.sink import BatchWriter, refuse_overwrite

        refuse_overwrite(overwrite)
        check_inserted(self.options)
        return BatchWriter(self.options, schema)

    @hide_traceback
    def streamWriter(  # noqa: N802 - a name of Spark's
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from penstock.pipeline.sink import StreamWriter, refuse_overwrite

        refuse_overwrite(overwrite)
        return StreamWriter(self.options, schema)


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filters = Filters(keys=None if options.key is None else frozenset([options.key]))
        self._query = uuid4().hex

    @hide_traceback
    def partitions(self) -> list[TaskPartition]:
        options, filters = self._options, self._filters
        with closing(open_source(options)) as source:
            ranges = [
                ShardRange(shard, max(start, filters.offsets.start), min(end, filters.offsets.end))
                for shard, start, end in batch_ranges(source, options)
                if filters.shows(*shard)
            ]
            ranges = [shard_range for shard_range in ranges if shard_range.start < shard_range.end]
            tasks = within_limit(source.tasks(ranges, options, filters), options)
        # Spark takes an empty list for "one partition of which nothing is known".
        return tasks or [TaskPartition(())]

    @hide_traceback_in_rows
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskPartition)
        return Scan.of(
            self._options, self._schema.fieldNames(), self._filters, self._query
        ).batches(partition)


class FilteringBatchReader(BatchReader):
    """A reader with filter pushdown, off by default.

    Spark 4.2 shares one plan among all queries of a loaded DataFrame, with the filters of the query
    planned last, so a second query would return wrong rows. Users of pushdown must load a DataFrame
    per query.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - a name of Spark's
        return self._filters.push(filters)
