"""Exports into Delta tables: every record, or the newest of each key, each run once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError
from penstock.pipeline import jobs
from penstock.platform.local_disk import LocalDisk
from penstock.record import Record, ShardId

deltalake = pytest.importorskip("deltalake")
SHARD = ShardId("orders", 0)


def append(path: Path, values: dict[bytes, bytes | None]) -> None:
    with SegmentStore.open(str(path)) as store:
        store.create_shard(SHARD)
        store.append_many(SHARD, [Record(value, key=key) for key, value in values.items()])


def test_every_record_is_in_the_table_once_also_after_a_kill(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, target = tmp_path / "store", tmp_path / "table"
    append(store, {b"%d" % n: b"v" for n in range(100)})
    assert jobs.export(spark, str(store), str(target), form=jobs.ExportForm("delta")).rows == 100
    append(store, {b"%d" % n: b"w" for n in range(50)})

    class Killed(BaseException):
        pass

    replace = LocalDisk.replace

    def replace_or_die(self: LocalDisk, path: str, data: bytes) -> None:
        if path.endswith("bookmark.json"):
            raise Killed
        replace(self, path, data)

    with monkeypatch.context() as patch:
        patch.setattr(LocalDisk, "replace", replace_or_die)
        with pytest.raises(Killed):
            jobs.export(spark, str(store), str(target), form=jobs.ExportForm("delta"))
    # The table has the run already; only the bookmark is behind.
    again = jobs.export(spark, str(store), str(target), form=jobs.ExportForm("delta"))
    assert (again.rows, again.files_recovered) == (0, 0)
    table = deltalake.DeltaTable(str(target)).to_pyarrow_table()
    assert sorted(table.column("offset").to_pylist()) == [*range(150)]
    assert set(table.column_names) >= {"topic", "day", "key", "value", "timestamp"}


def test_an_upsert_keeps_the_newest_of_each_key(spark: SparkSession, tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "table"
    append(store, {b"a": b"1", b"b": b"1", b"gone": None})
    append(store, {b"a": b"2"})
    jobs.export(spark, str(store), str(target), form=jobs.ExportForm("delta", upsert=True))
    append(store, {b"b": None, b"c": b"3", b"a": b"4"})
    jobs.export(spark, str(store), str(target), form=jobs.ExportForm("delta", upsert=True))
    table = deltalake.DeltaTable(str(target)).to_pyarrow_table()
    found = dict(
        zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True)
    )
    assert found == {b"a": b"4", b"c": b"3"}


def test_formats_that_do_not_fit_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "store", {b"a": b"1"})
    store, target = str(tmp_path / "store"), str(tmp_path / "table")
    with pytest.raises(BadRequestError, match="expected parquet, delta or iceberg"):
        jobs.export(spark, store, target, form=jobs.ExportForm("delt"))
    with pytest.raises(BadRequestError, match="upsert requires the format delta"):
        jobs.export(spark, store, target, form=jobs.ExportForm(upsert=True))
