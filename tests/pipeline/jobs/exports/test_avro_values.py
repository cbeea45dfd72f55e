"""Avro values become Arrow columns; what cannot be decoded is marked, row by row."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import BadRequestError
from penstock.pipeline.jobs.exports.avro_values import AvroDecoder, arrow_fields
from penstock.pipeline.jobs.exports.payload import Payload, choose_payload

fastavro = pytest.importorskip("fastavro")

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "ref", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "noon", "type": {"type": "int", "logicalType": "time-millis"}},
        {
            "name": "state",
            "type": {"type": "enum", "name": "State", "symbols": ["OPEN", "PAID"]},
        },
        {"name": "before", "type": ["null", "State"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "sizes", "type": {"type": "map", "values": "int"}},
        {
            "name": "place",
            "type": {
                "type": "record",
                "name": "Place",
                "fields": [{"name": "city", "type": "string"}],
            },
        },
    ],
}
ROW = {
    "id": 7,
    "name": None,
    "day": date(2026, 1, 31),
    "at": datetime(2026, 1, 31, 12, 30, tzinfo=UTC),
    "price": Decimal("12.50"),
    "ref": "0b1c0d62-5b3c-4f6e-9d5e-0a0b0c0d0e0f",
    "noon": 43_200_000,
    "state": "OPEN",
    "before": "PAID",
    "tags": ["a", "b"],
    "sizes": {"x": 1},
    "place": {"city": "Ulm"},
}


def encoded(row: object, schema: object) -> bytes:
    target = BytesIO()
    fastavro.schemaless_writer(target, schema, row)
    return target.getvalue()


def payloads(schema: object, values: list[bytes | None], skipped: int = 0) -> list[object]:
    batch = pa.record_batch(
        {"offset": [*range(len(values))], "value": pa.array(values, pa.binary())}
    )
    decode = AvroDecoder(json.dumps(schema), skipped, "bad")
    (found,) = decode(iter([batch]))
    assert found.schema.names == ["offset", "value", "payload"]
    rows: list[object] = found.column("payload").to_pylist()
    return rows


def test_every_kind_of_field_has_a_column() -> None:
    plain = json.loads(json.dumps(ORDER))
    plain["fields"][5]["type"] = "string"
    plain["fields"][6]["type"] = "int"
    value = encoded(ROW, plain)
    found = payloads(ORDER, [value, None])
    assert found == [{**ROW, "sizes": [("x", 1)], "bad": None}, None]
    columns = arrow_fields(json.dumps(ORDER))
    assert columns.field("price").type == pa.decimal128(9, 2)
    assert columns.field("noon").type == pa.int32()


def test_bytes_that_are_no_datum_are_marked_and_the_others_kept() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "text", "type": "string"}]}
    good = encoded({"text": "yes"}, schema)
    found = payloads(schema, [good, b"", good + b"\0", b"\x0aab", b"\x04\xff\xff"])
    assert isinstance(found[0], dict)
    assert found[0] == {"text": "yes", "bad": None}
    assert all(isinstance(each, dict) and each["bad"] for each in found[1:])


def test_a_value_that_spark_cannot_hold_is_marked() -> None:
    at = {"type": "long", "logicalType": "timestamp-micros"}
    schema = {"type": "record", "name": "R", "fields": [{"name": "at", "type": at}]}
    plain = {"type": "record", "name": "R", "fields": [{"name": "at", "type": "long"}]}
    found = payloads(schema, [encoded({"at": 1}, plain), encoded({"at": 1 << 62}, plain)])
    assert isinstance(found[0], dict)
    assert isinstance(found[1], dict)
    assert (found[0]["bad"], bool(found[1]["bad"])) == (None, True)


def test_the_header_of_a_registry_is_passed_over() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
    datum = encoded({"n": 5}, schema)
    found = payloads(schema, [b"\0\0\0\0\x07" + datum, datum], skipped=5)
    assert found[0] == {"n": 5, "bad": None}
    assert isinstance(found[1], dict)
    assert found[1]["bad"]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ('"string"', "must be a record"),
        ("no.avsc", "neither a file nor an Avro schema"),
        ('{"type": "record", "fields": []}', "not valid"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}',
            "recursive",
        ),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "r", "type": ["int", "string"]}]}',
            "null and one other type",
        ),
    ],
)
def test_a_schema_that_has_no_columns_is_refused(schema: str, reason: str) -> None:
    with pytest.raises(BadRequestError, match=reason):
        arrow_fields(schema)


def test_what_an_export_began_with_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "order.avsc"
    file.write_text('"string"\n')
    before = Payload("json", "id bigint")
    assert choose_payload(None, before) == before
    assert choose_payload(Payload("json"), before) == before
    assert choose_payload(Payload("avro", str(file)), None) == Payload("avro", '"string"')
    with pytest.raises(BadRequestError, match="require a schema"):
        choose_payload(Payload("avro"), None)
    with pytest.raises(BadRequestError, match="decodes json, not avro"):
        choose_payload(Payload("avro", "{}"), before)
    with pytest.raises(BadRequestError, match="expected one of json, avro"):
        choose_payload(Payload("xml"), None)
