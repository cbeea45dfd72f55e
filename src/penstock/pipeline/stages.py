"""Stages: functions on Arrow batches, chained, run over a topic as a batch or as a stream.

    def large(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.greater(pc.binary_length(batch.column("value")), 100))

    chain = Chain([large, "shop.cleaning:normalise"])
    chain.run(spark, source={"path": "data", "subscribe": "orders"},
              target={"path": "clean", "topic": "orders", "createTopics": "true"})

A stage gets a batch and gives one, several or none (None). What leaves the last stage goes to a
topic, whose columns it may have, or to a table of the chain's `schema`. Rows stay in Arrow: a
chain is one step of Spark's, whatever its length.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.errors import BadRequestError, StoreError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from penstock.engine.segment import AnyArray

StageResult = pa.RecordBatch | Iterable[pa.RecordBatch] | None
Stage = Callable[[pa.RecordBatch], StageResult]

TOPIC_SCHEMA: Final = (
    "key binary, value binary, partition int, tags array<string>, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)
"""What goes to a topic; columns that a stage leaves out are null."""
_WITH_TOPIC: Final = f"topic string, {TOPIC_SCHEMA}"
_OURS: Final = "penstock"


class Chain:
    """Stages in order; each is a function, or its name as `module:function`."""

    def __init__(self, stages: Sequence[Stage | str], *, schema: str | None = None) -> None:
        """`schema` is the last stage's output as Spark's DDL, for tables; a topic needs none."""
        self._stages: Final = [
            (stage, load_stage(stage)) if isinstance(stage, str) else (_name(stage), stage)
            for stage in stages
        ]
        self._schema: Final = schema

    def apply(self, rows: DataFrame, schema: str | None = None) -> DataFrame:
        """Return what the stages make of the rows of a table or a stream."""
        from pyspark.sql.pandas.types import to_arrow_schema

        chosen = schema or self._schema or TOPIC_SCHEMA
        arrow_schema = to_arrow_schema(_struct(chosen), timezone="UTC")
        return rows.mapInArrow(_Work(self._stages, arrow_schema), chosen)

    def run(
        self, spark: SparkSession, source: Mapping[str, str], target: Mapping[str, str]
    ) -> None:
        """Run once over what `source` holds now. Both are options of the data source; `target` may
        name another `format` (parquet, json, …), with the chain's own `schema`."""
        from penstock.pipeline.jobs.spark_work import spark_work

        with spark_work(spark, "stages", None):
            rows = spark.read.format(_OURS).options(**source).load()
            output = self.apply(rows, self._schema_for(target))
            options = {name: value for name, value in target.items() if name != "format"}
            output.write.format(target.get("format", _OURS)).options(**options).mode(
                "append"
            ).save()

    def start(
        self,
        spark: SparkSession,
        source: Mapping[str, str],
        target: Mapping[str, str],
        checkpoint: str,
        *,
        every_s: float | None = None,
        name: str | None = None,
    ) -> StreamingQuery:
        """Start a query that runs over what is there and what comes, each record once, also after
        a restart with the same `checkpoint`. Without `every_s` it ends at what is there now."""
        options = {"startingOffsets": "earliest", **source}
        rows = spark.readStream.format(_OURS).options(**options).load()
        output = self.apply(rows, self._schema_for(target))
        chosen = {name: value for name, value in target.items() if name != "format"}
        writer = output.writeStream.format(target.get("format", _OURS)).options(**chosen)
        writer = writer.option("checkpointLocation", checkpoint)
        if name is not None:
            writer = writer.queryName(name)
        if every_s is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{every_s} seconds").start()

    def _schema_for(self, target: Mapping[str, str]) -> str:
        if target.get("format", _OURS) == _OURS:
            return TOPIC_SCHEMA if "topic" in target else _WITH_TOPIC
        if self._schema is None:
            raise BadRequestError(
                "a table needs the chain's schema: Chain(stages, schema='id bigint, name string')"
            )
        return self._schema


class _Work:
    """What runs in the workers; pickled with the stages."""

    def __init__(self, stages: Sequence[tuple[str, Stage]], schema: pa.Schema) -> None:
        self._stages = stages
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for output in self._through(batch, 0):
                if output.num_rows:
                    yield _conform(output, self._schema)

    def _through(self, batch: pa.RecordBatch, number: int) -> Iterator[pa.RecordBatch]:
        if number == len(self._stages):
            yield batch
            return
        name, stage = self._stages[number]
        for output in _outputs(name, stage, batch):
            yield from self._through(output, number + 1)


def _outputs(name: str, stage: Stage, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    try:
        output = stage(batch)
        if output is None:
            return
        parts: Iterable[object] = [output] if isinstance(output, pa.RecordBatch) else output
        for part in parts:
            yield _checked(name, part)
    except StoreError:
        raise
    except Exception as error:
        raise BadRequestError(f"stage {name!r} failed: {type(error).__name__}: {error}") from error


def _checked(name: str, part: object) -> pa.RecordBatch:
    if isinstance(part, pa.RecordBatch):
        return part
    raise BadRequestError(
        f"stage {name!r} returned {type(part).__name__}, expected pyarrow.RecordBatch"
    )


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with exactly these columns. Record columns that the target does not accept
    (offset, timestampType, …) are dropped; other extra columns raise `BadRequestError`."""
    from penstock.pipeline.columns import SPARK_TYPES

    extra = [
        name for name in batch.schema.names if name not in schema.names and name not in SPARK_TYPES
    ]
    if extra:
        raise BadRequestError(
            f"the last stage returned the column {extra[0]!r}; the target accepts {schema.names}"
        )
    arrays = [_column(batch, field) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field[pa.DataType]) -> AnyArray:
    if field.name not in batch.schema.names:
        return pa.array([None] * batch.num_rows, field.type)
    array = batch.column(field.name)
    if array.type == field.type:
        return array
    try:
        return array.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadRequestError(
            f"column {field.name!r} of the last stage is {array.type}, expected {field.type}"
        ) from error


def load_stage(text: str) -> Stage:
    """Import `module:function`; modules beside the current directory are found, too."""
    module_name, separator, function = text.partition(":")
    if not separator or not module_name or not function:
        raise BadRequestError(f"{text!r} is not a stage; expected module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise BadRequestError(f"stage {text!r}: {error}") from error
    loaded = getattr(module, function, None)
    if not callable(loaded):
        raise BadRequestError(f"stage {text!r}: {module_name} has no function {function!r}")
    from pyspark import cloudpickle

    # The module travels with the work: executors need not have it.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # vendored code
    stage: Stage = loaded
    return stage


def _name(stage: Stage) -> str:
    return getattr(stage, "__name__", type(stage).__name__)


def _struct(schema: str) -> StructType:
    from pyspark.sql.types import StructType

    try:
        parsed = StructType.fromDDL(schema)
    except Exception as error:
        first = str(error).strip().splitlines()[0]
        raise BadRequestError(f"{schema!r} is not a Spark schema: {first}") from error
    assert isinstance(parsed, StructType), schema
    return parsed
