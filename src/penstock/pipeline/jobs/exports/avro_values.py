"""Avro values as Arrow columns, by `fastavro`.

A schema's logical types date, timestamp (milliseconds and microseconds, also local) and decimal
become Arrow's; any other logical type is read as the plain type beneath it (a UUID as its text, a
time of day as a number). A union is null and one other type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BytesIO
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.errors import BadRequestError, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
    Datum = dict[str, object]
    AnyArray = pa.Array[pa.Scalar[pa.DataType]]

_PLAIN: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL: Final[dict[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_DECIMAL_DIGITS_MAX: Final = 38
_HOLD_TYPES: Final = ("type", "items", "values", "fields")
_DECIMAL_ON: Final = ("bytes", "fixed")


def arrow_fields(schema: str) -> pa.Schema:
    """Return the columns of an Avro record."""
    named: dict[str, pa.DataType] = {}
    record_type = _convert(_resolved(_parsed(schema)), named)
    if not pa.types.is_struct(record_type):
        raise BadRequestError(f"the Avro schema must be a record, got type {record_type}")
    return pa.schema([record_type.field(number) for number in range(record_type.num_fields)])


class AvroDecoder:
    """Adds the column `payload` to batches; runs in Spark's workers."""

    def __init__(self, schema: str, skipped: int, bad_name: str) -> None:
        self._schema: Final = schema
        self._skipped: Final = skipped
        self._bad_name: Final = bad_name

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns = arrow_fields(self._schema)
        kind = pa.struct([*columns, pa.field(self._bad_name, pa.string())])
        read = self._reader()
        for batch in batches:
            values = batch.column("value").to_pylist()
            payloads = [None if value is None else read(value) for value in values]
            yield batch.append_column("payload", self._array(payloads, kind))

    def _reader(self) -> Callable[[bytes], Datum]:
        fastavro = _fastavro()
        schema = fastavro.parse_schema(_without_others(_parsed(self._schema)))
        skipped, name = self._skipped, self._bad_name

        def read(value: bytes) -> Datum:
            source = BytesIO(value)
            source.seek(skipped)
            try:
                if skipped and value[:1] != b"\0":
                    return {name: "no header"}
                datum: Datum = fastavro.schemaless_reader(source, schema)
            except Exception as error:  # noqa: BLE001 - fastavro raises any error on bad bytes
                return {name: type(error).__name__}
            return datum if source.tell() == len(value) else {name: "more than one datum"}

        return read

    def _array(self, payloads: list[Datum | None], kind: pa.StructType) -> AnyArray:
        try:
            return pa.array(payloads, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            pass  # one of them does not fit: a date of the year 20,000, say
        for number, payload in enumerate(payloads):
            try:
                pa.array([payload], kind)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                payloads[number] = {self._bad_name: str(error)}
        return pa.array(payloads, kind)


def _fastavro() -> ModuleType:
    try:
        import fastavro
    except ImportError as error:
        raise SetupError("Avro values need fastavro: pip install 'penstock[avro]'") from error
    return fastavro


def _parsed(schema: str) -> Json:
    try:
        parsed: Json = json.loads(schema)
    except ValueError as error:
        raise BadRequestError(
            f"{schema[:60]!r} is neither a file nor an Avro schema: {error}"
        ) from error
    return parsed


def _resolved(schema: Json) -> Json:
    """Return the schema with full names wherever a type is named."""
    fastavro = _fastavro()
    try:
        parsed: Json = fastavro.parse_schema(schema)
    except Exception as error:  # fastavro has several of its own, without a common base
        raise BadRequestError(f"the Avro schema is not valid: {error}") from error
    return parsed


def _convert(schema: Json, named: dict[str, pa.DataType]) -> pa.DataType:
    if isinstance(schema, list):
        others = [branch for branch in schema if branch != "null"]
        if len(others) != 1:
            raise BadRequestError(
                f"the Avro union {schema} is not supported: it must be null and one other type"
            )
        return _convert(others[0], named)
    if isinstance(schema, dict):
        return _complex(schema, named)
    arrow_type = _PLAIN.get(str(schema)) or named.get(str(schema))
    if arrow_type is None:
        raise BadRequestError(f"the Avro type {schema!r} is not supported: it is null or recursive")
    return arrow_type


def _complex(schema: dict[str, Json], named: dict[str, pa.DataType]) -> pa.DataType:
    kind = schema["type"]
    if not isinstance(kind, str):
        return _convert(kind, named)
    arrow_type: pa.DataType
    if kind in ("record", "error"):
        arrow_type = _struct(schema["fields"], named)
    elif kind == "array":
        arrow_type = pa.list_(pa.field("element", _convert(schema["items"], named)))
    elif kind == "map":
        arrow_type = pa.map_(pa.string(), _convert(schema["values"], named))
    else:
        arrow_type = _logical(kind, schema) or _convert(kind, named)
    if "name" in schema:
        named[str(schema["name"])] = arrow_type
    return arrow_type


def _struct(fields: Json, named: dict[str, pa.DataType]) -> pa.DataType:
    assert isinstance(fields, list)
    arrow_fields = []
    for field in fields:
        assert isinstance(field, dict)
        arrow_fields.append(pa.field(str(field["name"]), _convert(field["type"], named)))
    return pa.struct(arrow_fields)


def _logical(kind: str, schema: dict[str, Json]) -> pa.DataType | None:
    logical = schema.get("logicalType")
    if logical == "decimal" and kind in _DECIMAL_ON:
        digits, scale = schema["precision"], schema.get("scale", 0)
        assert isinstance(digits, int)
        assert isinstance(scale, int)
        if digits > _DECIMAL_DIGITS_MAX:
            raise BadRequestError(f"a decimal of {digits} digits exceeds Spark's limit of 38")
        return pa.decimal128(digits, scale)
    return None if logical is None else _LOGICAL.get((kind, str(logical)))


def _without_others(schema: Json) -> Json:
    """Leave out the logical types that stay plain, so that fastavro gives the plain values."""
    if isinstance(schema, list):
        return [_without_others(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        name: _without_others(value)
        if isinstance(value, dict | list) and name != "default"
        else value
        for name, value in schema.items()
        if name not in ("symbols", "aliases")
    }
    kept |= {name: schema[name] for name in ("symbols", "aliases") if name in schema}
    kind = schema.get("type")
    if "logicalType" in schema and isinstance(kind, str) and _logical(kind, schema) is None:
        del kept["logicalType"]
    return kept
