"""The data source `penstock` as a stream.

An offset is `{"orders": {"id": "…", "0": 17, "1": 4}}`, the topic's id and the next record to read
of each shard (`positions`); Spark keeps it in the checkpoint, as readable as it is here. Plans are
made on the driver, by an object that lives as long as the query; records are read in the workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.pipeline.options.filters import Filters
from penstock.pipeline.options.source_options import SourceOptions
from penstock.pipeline.read.planning import TaskPartition
from penstock.pipeline.read.positions import PositionsJson
from penstock.pipeline.read.reading import Scan
from penstock.pipeline.read.stream_offsets import StreamPlanner
from penstock.pipeline.spark_session.worker_errors import hide_traceback, hide_traceback_in_rows

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._scan = Scan.of(options, schema.fieldNames(), Filters(), uuid4().hex)
        self._options = options
        self._planner: StreamPlanner | None = None

    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            self._planner = StreamPlanner(self._options)
        return self._planner

    @hide_traceback
    def initialOffset(self) -> PositionsJson:  # noqa: N802 - a name of Spark's
        return self._plan().initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - a name of Spark's
        count = self._options.records_per_trigger
        return ReadAllAvailable() if count is None else ReadMaxRows(count)

    @hide_traceback
    def latestOffset(  # noqa: N802 - a name of Spark's
        self, start: PositionsJson, limit: ReadLimit
    ) -> PositionsJson:
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._plan().latest(start, rows)

    @hide_traceback
    def reportLatestOffset(self) -> PositionsJson:  # noqa: N802 - a name of Spark's
        return self._plan().newest()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - a name of Spark's
        self._plan().stop_here()

    @hide_traceback
    def partitions(self, start: PositionsJson, end: PositionsJson) -> Sequence[InputPartition]:
        return self._plan().tasks(start, end)

    @hide_traceback_in_rows
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskPartition)
        return self._scan.batches(partition)

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()

    def __getstate__(self) -> Mapping[str, object]:
        # What the driver holds open stays with it.
        return {**self.__dict__, "_planner": None}
