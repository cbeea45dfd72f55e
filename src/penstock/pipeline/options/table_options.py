"""The options of a table of SQL (`CREATE TABLE … USING penstock OPTIONS (…)`).

Spark 4.2 shows them to a source in Python once, when it asks for the schema, and hands none of
them to a read of the table. The schema itself it keeps, with the metadata of its columns: so the
options are stored there, at the first column. For a table with columns of its own the source is not
asked: its reads are refused with a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import BadRequestError
from penstock.pipeline.columns import SPARK_TYPES, spark_schema

OPTIONS_KEY: Final = "penstock.options"
_PROVIDER: Final = "provider"
"""Spark says which source it asks only when it creates a table."""
_OWN: Final = frozenset(
    {_PROVIDER, "owner", "external", "is_managed_location", "comment", "collation"}
)
"""What Spark itself says of a table."""
_COPY: Final = "option."
"""Each option comes a second time by this prefix."""
_TYPES: Final[dict[str, DataType]] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "array<string>": ArrayType(StringType()),
    "array<struct<key:string,value:binary>>": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}
_PLACES: Final = ("path", "endpoint", "tier")
_MADE_UP: Final = ("path", "location")


def without_table(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options without what Spark adds when a table is created. Spark invents
    a location where an address is given; it is removed."""
    if _PROVIDER not in {name.lower() for name in options}:
        return dict(options)
    own = {
        name: value
        for name, value in options.items()
        if name.lower() not in _OWN and not name.lower().startswith(_COPY)
    }
    named = {name.lower() for name in own}
    if "endpoint" in named or "tier" in named:
        return {name: value for name, value in own.items() if name.lower() not in _MADE_UP}
    return own


def schema_with_options(options: Mapping[str, str], columns: Sequence[str]) -> StructType | str:
    """Return the schema of a source; that of a new table has the options at its first column."""
    if _PROVIDER not in {name.lower() for name in options}:
        return spark_schema(columns)
    text = json.dumps(without_table(options), sort_keys=True)
    # Not from the text of the schema: only a SparkContext could parse it.
    return StructType(
        [
            StructField(
                name, _TYPES[SPARK_TYPES[name]], metadata=None if number else {OPTIONS_KEY: text}
            )
            for number, name in enumerate(columns)
        ]
    )


def effective(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of a read: its own, over those that the schema of the table holds."""
    given = without_table(options)
    if any(name.lower() in _PLACES for name in given):
        return given
    for field in schema.fields:
        text = (field.metadata or {}).get(OPTIONS_KEY)
        if isinstance(text, str):
            return {**json.loads(text), **given}
    if not given:
        raise BadRequestError(
            "no options: Spark does not pass a Python source the options of a table that was "
            "created with columns. Create it without columns (the option 'columns' chooses "
            "them), or as CREATE TEMPORARY VIEW … USING penstock OPTIONS (…)"
        )
    return given


def check_inserted(options: Mapping[str, str]) -> None:
    """Reject an insert into a table: Spark does not pass its options to the sink."""
    if not options:
        raise BadRequestError(
            "no options: Spark does not pass a Python sink the options of a table. Write a "
            "DataFrame: rows.write.format('penstock').option('path', …).mode('append').save()"
        )
