"""Exports into Iceberg tables: every record once, over several runs, also when one is killed."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError, SetupError
from penstock.pipeline import jobs
from penstock.pipeline.jobs.exports.iceberg_table import open_catalog
from penstock.platform.local_disk import LocalDisk
from penstock.record import Record, ShardId

pytest.importorskip("pyiceberg")

SHARD = ShardId("a-topic-with-a-name-longer-than-sixteen-letters", 0)
DAY_MS = 86_400_000
FIRST_MS = 1_700_000_000_000
ICEBERG = jobs.ExportForm("iceberg")


def append(path: Path, count: int, shard: ShardId = SHARD) -> None:
    with SegmentStore.open(str(path)) as store:
        store.create_shard(shard)
        store.append_many(
            shard,
            [
                Record(b"%d" % n, key=b"k", timestamp_ms=FIRST_MS + n % 2 * DAY_MS)
                for n in range(count)
            ],
        )


def rows(target: Path, place: jobs.IcebergPlace | None = None) -> pa.Table:
    place = place or jobs.IcebergPlace()
    return open_catalog(place, target).load_table(place.table).scan().to_arrow()


def offsets(table: pa.Table) -> list[int]:
    return sorted(row["offset"] for row in table.to_pylist())


def test_every_record_is_in_the_table_once_by_topic_and_day(
    spark: SparkSession, tmp_path: Path
) -> None:
    store, target = tmp_path / "store", tmp_path / "table"
    append(store, 100)
    append(store, 10, ShardId("other", 3))
    result = jobs.export(spark, str(store), str(target), form=ICEBERG)
    assert (result.rows, result.run) == (110, 1)
    append(store, 20)
    assert jobs.export(spark, str(store), str(target), form=ICEBERG).rows == 20
    assert jobs.export(spark, str(store), str(target), form=ICEBERG).rows == 0
    found = rows(target)
    assert found.num_rows == 130
    table = open_catalog(jobs.IcebergPlace(), target).load_table("penstock.records")
    files = [task.file for task in table.scan().plan_files()]
    parts = {(file.partition[0], file.partition[1]) for file in files}
    days = [(date(2023, 11, day) - date(1970, 1, 1)).days for day in (14, 15)]
    assert parts == {(topic, day) for topic in (SHARD.topic, "other") for day in days}
    one_day = table.scan(
        row_filter=f"topic = '{SHARD.topic}' and timestamp >= '2023-11-15T00:00:00+00:00'"
    )
    assert len(list(one_day.plan_files())) < len(list(table.scan().plan_files()))
    assert one_day.to_arrow().num_rows == 60
    first = [row for row in found.to_pylist() if (row["topic"], row["offset"]) == (SHARD.topic, 1)]
    assert first[0]["value"] == b"1"
    assert first[0]["timestamp"] == datetime.fromtimestamp((FIRST_MS + DAY_MS) / 1000, UTC)


@pytest.mark.parametrize("dies_at", ["bookmark.json", "commit"])
def test_a_run_killed_around_its_commit_is_in_the_table_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    from pyiceberg.table import Transaction

    store, target = tmp_path / "store", tmp_path / "table"
    append(store, 30)
    jobs.export(spark, str(store), str(target), form=ICEBERG)
    append(store, 7)

    class Killed(BaseException):
        pass

    replace = LocalDisk.replace

    def replace_or_die(self: LocalDisk, path: str, data: bytes) -> None:
        if path.endswith("bookmark.json"):
            raise Killed
        replace(self, path, data)

    def die(_: Transaction) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if dies_at == "commit":
            patch.setattr(Transaction, "commit_transaction", die)
        else:
            patch.setattr(LocalDisk, "replace", replace_or_die)
        with pytest.raises(Killed):
            jobs.export(spark, str(store), str(target), form=ICEBERG)
    table = open_catalog(jobs.IcebergPlace(), target).load_table("penstock.records")
    assert table.scan().to_arrow().num_rows == (30 if dies_at == "commit" else 37)
    append(store, 1)
    again = jobs.export(spark, str(store), str(target), form=ICEBERG)
    assert (again.rows, again.run) == (1, 3)
    assert (again.files_recovered > 0) == (dies_at == "commit")
    assert offsets(rows(target)) == [*range(38)]


def test_the_table_and_the_catalog_can_be_named(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    append(store, 5)
    place = jobs.IcebergPlace(
        "shop.sales",
        f"sqlite:///{tmp_path}/shared.db",
        {"warehouse": (tmp_path / "warehouse").as_uri()},
    )
    form = jobs.ExportForm("iceberg", iceberg=place)
    # Two exports, each with its own bookmark, append to one table.
    for name in ("one", "two"):
        assert jobs.export(spark, str(store), str(tmp_path / name), form=form).rows == 5
    assert offsets(rows(tmp_path, place)) == sorted([*range(5)] * 2)
    assert (tmp_path / "warehouse").is_dir()


def test_columns_of_values_can_be_added_later(spark: SparkSession, tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "table"
    with SegmentStore.open(str(store)) as opened:
        opened.create_shard(SHARD)
        opened.append_many(SHARD, [Record(b'{"id": 1, "at": {"x": 2}}')])

    def form(schema: str) -> jobs.ExportForm:
        return jobs.ExportForm("iceberg", payload=jobs.Payload("json", schema))

    jobs.export(spark, str(store), str(target), form=form("id bigint, at struct<x: int>"))
    with SegmentStore.open(str(store)) as opened:
        opened.append_many(SHARD, [Record(b'{"id": 2, "name": "b"}')])
    wider = form("id bigint, name string, at struct<x: int>")
    jobs.export(spark, str(store), str(target), form=wider)
    found = rows(target).sort_by("offset").select(["id", "name", "at"]).to_pylist()
    assert found == [
        {"id": 1, "name": None, "at": {"x": 2}},
        {"id": 2, "name": "b", "at": None},
    ]


def test_wrong_requests_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    store, target = str(tmp_path / "store"), str(tmp_path / "table")
    append(tmp_path / "store", 1)
    wrong = jobs.ExportForm("iceberg", iceberg=jobs.IcebergPlace("sales"))
    with pytest.raises(BadRequestError, match=r"write NAMESPACE\.NAME"):
        jobs.export(spark, store, target, form=wrong)
    with pytest.raises(BadRequestError, match="require the format iceberg, not parquet"):
        jobs.export(spark, store, target, form=jobs.ExportForm(iceberg=jobs.IcebergPlace()))
    nowhere = jobs.IcebergPlace(catalog=f"sqlite:///{tmp_path}/none/there.db")
    with pytest.raises(SetupError, match="cannot be opened"):
        jobs.export(spark, store, target, form=jobs.ExportForm("iceberg", iceberg=nowhere))
    with pytest.raises(BadRequestError, match="repeat the export into it"):
        jobs.export(spark, store, target)
    jobs.export(spark, store, target, form=ICEBERG)
    with pytest.raises(BadRequestError, match="cannot continue as 'files'"):
        jobs.export(spark, store, target)
