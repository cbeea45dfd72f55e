"""Exports with columns out of JSON and Avro values; bad values are named, or kept aside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import Row

from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError
from penstock.pipeline import jobs
from penstock.record import Record, ShardId

SHARD = ShardId("orders", 0)
GOOD = [b'{"id": 1, "name": "a", "key": "k1", "tags": ["x"]}', b'{"id": 2}', b"{}"]
BAD = [b'{"id": "two"}', b"no JSON", b"\xff\xfe", b"[1]", b""]
SCHEMA = "id bigint, name string, key string, tags array<string>"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def append(path: Path, values: Sequence[bytes | None]) -> None:
    with SegmentStore.open(str(path)) as store:
        store.create_shard(SHARD)
        store.append_many(SHARD, [Record(value, key=b"own") for value in values])


def exported(spark: SparkSession, target: Path) -> list[Row]:
    return spark.read.option("mergeSchema", "true").parquet(str(target)).orderBy("offset").collect()


def form(values: str, schema: str = "") -> jobs.ExportForm:
    return jobs.ExportForm(payload=jobs.Payload(values, schema))


def test_json_becomes_columns_and_bad_values_are_named_or_kept_aside(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    target = tmp_path / "parquet"
    append(store, [*GOOD, None, *BAD])
    with pytest.raises(BadRequestError, match="5 of 'orders_0' from offset 4 on"):
        jobs.export(spark, str(store), str(target), form=form("json", SCHEMA))
    assert list(target.rglob("*.parquet")) == []
    result = jobs.export(spark, str(store), str(target), form=form("json", SCHEMA), strict=False)
    assert (result.rows, result.shards[0].undecoded, result.shards[0].first_undecoded) == (9, 5, 4)
    found = exported(spark, target)
    assert [row["id"] for row in found] == [1, 2, *[None] * 7]
    assert bytes(found[0]["key"]) == b"own"
    assert (found[0]["payload_key"], found[0]["payload_tags"]) == ("k1", ["x"])
    assert [row["tombstone"] for row in found] == [False, False, False, True, *[False] * 5]
    assert [row["undecoded"] and bytes(row["undecoded"]) for row in found[:4]] == [None] * 4
    assert [bytes(row["undecoded"]) for row in found[4:]] == BAD
    assert "value" not in found[0].asDict()
    # The same target goes on as it began, and its schema can grow, but not change.
    append(store, [b'{"id": 3, "price": 2.5}'])
    wrong = form("json", "id string, name string, key string, tags array<string>")
    with pytest.raises(BadRequestError, match="column 'id' was bigint and is string"):
        jobs.export(spark, str(store), str(target), form=wrong)
    wider = form("json", f"{SCHEMA}, price double")
    assert jobs.export(spark, str(store), str(target), form=wider).rows == 1
    append(store, [b'{"id": 4, "price": 1}'])
    assert jobs.export(spark, str(store), str(target)).rows == 1
    assert [(row["id"], row["price"]) for row in exported(spark, target)[-2:]] == [
        (3, 2.5),
        (4, 1.0),
    ]


def test_the_schema_of_json_can_be_found_out(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    append(store, [b'{"id": 1, "at": {"x": 1.5}}', b'{"id": 2, "ok": true}'])
    jobs.export(spark, str(store), str(tmp_path / "parquet"), form=form("json"))
    bookmark = json.loads((tmp_path / "parquet" / "_penstock" / "bookmark.json").read_text())
    assert "id BIGINT" in bookmark["payload"]["schema"]
    found = exported(spark, tmp_path / "parquet")
    assert [(row["id"], row["ok"], row["at"] and row["at"]["x"]) for row in found] == [
        (1, None, 1.5),
        (2, True, None),
    ]


def test_avro_becomes_columns(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    fastavro = pytest.importorskip("fastavro")
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "sizes", "type": {"type": "map", "values": "int"}},
        ],
    }
    target = BytesIO()
    fastavro.schemaless_writer(target, schema, {"id": 5, "at": 1000, "sizes": {"x": 1}})
    append(store, [target.getvalue(), None, b"\xff"])
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(schema))
    with pytest.raises(BadRequestError, match="1 of 'orders_0' from offset 2 on"):
        jobs.export(spark, str(store), str(tmp_path / "out"), form=form("avro", str(file)))
    loose = form("avro", str(file))
    jobs.export(spark, str(store), str(tmp_path / "out"), form=loose, strict=False)
    found = exported(spark, tmp_path / "out")
    assert [(row["id"], row["sizes"], row["tombstone"]) for row in found] == [
        (5, {"x": 1}, False),
        (None, None, True),
        (None, None, False),
    ]
    assert found[0]["at"].isoformat() == "1970-01-01T00:00:01"
    assert bytes(found[2]["undecoded"]) == b"\xff"


def test_an_upsert_into_delta_takes_columns_of_values(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    deltalake = pytest.importorskip("deltalake")
    target = str(tmp_path / "table")
    delta = jobs.ExportForm("delta", upsert=True, payload=jobs.Payload("json", "id bigint"))
    append(store, [b'{"id": 1}', b'{"id": 2}'])
    jobs.export(spark, str(store), target, form=delta)
    append(store, [b'{"id": 3, "more": "x"}'])
    wider = jobs.ExportForm(
        "delta", upsert=True, payload=jobs.Payload("json", "id bigint, more string")
    )
    jobs.export(spark, str(store), target, form=wider)
    found = deltalake.DeltaTable(target).to_pyarrow_table().select(["id", "more"]).to_pylist()
    assert found == [{"id": 3, "more": "x"}]
    append(store, [None])
    jobs.export(spark, str(store), target, form=wider)
    assert deltalake.DeltaTable(target).to_pyarrow_table().num_rows == 0


def test_schemas_that_do_not_fit_are_refused(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    append(store, [b"no JSON"])
    target = str(tmp_path / "out")
    for schema, reason in (
        ("id bigint, ID string", "column 'id' more than once"),
        ("id bigg", "is not a schema"),
        ("", "no JSON object among the first 1 values"),
    ):
        with pytest.raises(BadRequestError, match=reason):
            jobs.export(spark, str(store), target, form=form("json", schema))
