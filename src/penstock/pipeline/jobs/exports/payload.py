"""Columns out of values: JSON or Avro becomes typed columns beside those of the record.

    key, topic, partition, offset, …, undecoded, tombstone, then a column for each field

`value` itself is left out. A value that is not what the schema says has nulls in all its columns
and stands in `undecoded` as it came, so that nothing is lost and bad rows can be counted;
`tombstone` is true where there was no value. A field with the name of a record's column gets
`payload_` before it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from msgspec import Struct

from penstock.errors import BadRequestError
from penstock.pipeline.spark_session.masters import is_connect

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

JSON: Final = "json"
AVRO: Final = "avro"
CONFLUENT: Final = "avro-confluent"
KINDS: Final = (JSON, AVRO, CONFLUENT)
UNDECODED: Final = "undecoded"
TOMBSTONE: Final = "tombstone"

_OWN: Final = "__undecoded"
_SAMPLE_ROWS: Final = 1000
_SAMPLE_SIZE_MAX: Final = 64 << 10
_RESERVED: Final = {
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "headers",
    "tags",
    "store_timestamp",
    "leader_epoch",
    "expires",
    "day",
    UNDECODED,
    TOMBSTONE,
}


class Payload(Struct, frozen=True):
    """How values are decoded."""

    values: str
    """`json`; `avro`: one datum; `avro-confluent`: one after a registry's five-byte header."""
    schema: str = ""
    """As text, or a file that has it. For JSON in Spark's words (`id bigint, name string`), for
    Avro as its own JSON. Without one, the first values of JSON say what it is."""


def choose_payload(requested: Payload | None, before: Payload | None) -> Payload | None:
    """Return how an export decodes values; what it began with goes on."""
    if requested is None:
        return before
    if requested.values not in KINDS:
        raise BadRequestError(
            f"unknown value encoding {requested.values!r}; expected one of {', '.join(KINDS)}"
        )
    if before is not None and before.values != requested.values:
        raise BadRequestError(
            f"this export decodes {before.values}, not {requested.values}: export to a new "
            "directory"
        )
    if requested.schema:
        return Payload(requested.values, _text(requested.schema))
    if before is None and requested.values != JSON:
        raise BadRequestError("Avro values require a schema: its JSON, or a file with it")
    return before or requested


def _text(schema: str) -> str:
    """Return the schema, out of its file when it names one."""
    try:
        path = Path(schema)
        return path.read_text(encoding="utf-8").strip() if path.is_file() else schema
    except OSError:
        return schema  # too long for a name: it is the text itself


def with_schema(payload: Payload, spark: SparkSession, rows: DataFrame) -> Payload:
    """Find out the schema of JSON values by a look at the first ones, unless it is known."""
    if payload.schema:
        return payload
    if is_connect(spark):
        raise BadRequestError(
            "the schema of JSON values cannot be inferred over Spark Connect: give it (--schema)"
        )
    small = rows.where(f"octet_length(value) <= {_SAMPLE_SIZE_MAX}").selectExpr(
        "cast(value as string) value"
    )
    texts = [row["value"] for row in small.limit(_SAMPLE_ROWS).collect()]
    sample = spark.read.option("mode", "DROPMALFORMED").json(
        spark.sparkContext.parallelize(texts, 1)
    )
    if not sample.schema.fields:
        raise BadRequestError(
            f"no JSON object among the first {len(texts)} values: give the schema"
        )
    return Payload(payload.values, sample.schema.toDDL())


def check_growth(before: Payload | None, payload: Payload) -> None:
    """Refuse a schema that loses or changes columns of the one before."""
    if before is None:
        return
    now = {field.name: field.dataType for field in fields_of(payload)}
    for field in fields_of(before):
        kind = now.get(field.name)
        if kind != field.dataType:
            raise BadRequestError(
                f"column {field.name!r} was {field.dataType.simpleString()} and is "
                f"{'gone' if kind is None else kind.simpleString()}: columns can be added, but "
                "not changed; export to a new directory"
            )


def fields_of(payload: Payload) -> StructType:
    """Return the columns of a payload under the names that its fields have."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    schema: StructType
    if payload.values == JSON:
        try:
            schema = cast("StructType", StructType.fromDDL(payload.schema))
        except PySparkException as error:
            reason = str(error).strip().splitlines()[0]
            raise BadRequestError(f"{payload.schema!r} is not a schema: {reason}") from error
    else:
        from pyspark.sql.pandas.types import from_arrow_schema

        from penstock.pipeline.jobs.exports.avro_values import arrow_fields

        schema = from_arrow_schema(arrow_fields(payload.schema))
    names = [_column_name(field.name).lower() for field in schema]
    twice = sorted(name for name in set(names) if names.count(name) > 1)
    if twice:
        raise BadRequestError(f"the schema has the column {twice[0]!r} more than once")
    if not names:
        raise BadRequestError("the schema has no column")
    return schema


def _column_name(field: str) -> str:
    return f"payload_{field}" if field.lower() in _RESERVED else field


def decoded(rows: DataFrame, payload: Payload) -> DataFrame:
    """Put the payload's columns in the place of `value`."""
    fields = fields_of(payload)
    if payload.values == JSON:
        rows = rows.withColumn("payload", _json_column(payload.schema))
    else:
        rows = _avro_column(rows, payload, fields)
    kept = [_quoted(name) for name in rows.columns if name not in ("value", "payload")]
    bad = f"(payload is null or payload.{_OWN} is not null)"
    return rows.selectExpr(
        *kept,
        f"if(value is not null and {bad}, value, null) {UNDECODED}",
        f"value is null {TOMBSTONE}",
        *(_field(field.name, bad) for field in fields),
    )


def _field(name: str, bad: str) -> str:
    return f"if({bad}, null, payload.{_quoted(name)}) {_quoted(_column_name(name))}"


def _json_column(schema: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - as in Spark's own documents

    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _OWN}
    text = F.col("value").cast("string")
    return F.from_json(text, f"{schema}, `{_OWN}` string", options)


def _avro_column(rows: DataFrame, payload: Payload, fields: StructType) -> DataFrame:
    from pyspark.sql.types import StringType, StructField, StructType

    from penstock.pipeline.jobs.exports.avro_values import AvroDecoder

    inner = StructType([*fields.fields, StructField(_OWN, StringType())])
    schema = StructType([*rows.schema.fields, StructField("payload", inner)])
    skipped = 5 if payload.values == CONFLUENT else 0
    return rows.mapInArrow(AvroDecoder(payload.schema, skipped, _OWN), schema)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
