"""Import of files: every row once, also when the import is repeated or was killed."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.engine.segment.readonly.sample_store import ORDERS, ORDERS_COUNT, QUIET, order

import penstock
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError, LockedError
from penstock.pipeline import jobs
from penstock.pipeline.write.commit_protocol import Journal, OpenBatch
from penstock.record import ShardId, StoredRecord
from penstock.remote.server.node_server import Server
from penstock.settings import EMBEDDED, merge_settings

NEW = ShardId("copied", 0)


def records(path: Path, shard: ShardId = NEW) -> list[StoredRecord]:
    with ReadOnlyStore.open(str(path)) as view:
        return view.read(shard, 0, max_records=10_000, max_size=1 << 30)


def test_what_was_exported_can_be_imported(
    spark: SparkSession, sample: Path, tmp_path: Path
) -> None:
    target = tmp_path / "parquet"
    jobs.export(spark, str(sample), str(target), topics=["orders"])
    path = tmp_path / "store"
    result = jobs.import_(spark, str(path), str(target), "copied")
    live = [order(n) for n in range(ORDERS_COUNT) if n not in (7, 8, 100)]
    assert (result.rows, result.rows_added, result.repeated) == (len(live), len(live), False)
    found = sorted(records(path), key=lambda each: each.timestamp_ms)
    assert [
        (each.key, each.value, each.tags, each.headers, each.timestamp_ms) for each in found
    ] == [(each.key, each.value, each.tags, each.headers, each.timestamp_ms) for each in live]
    again = jobs.import_(spark, str(path), str(target), "copied")
    assert (again.rows_added, again.repeated) == (0, True)
    assert len(records(path)) == len(live)


def test_rows_of_csv_become_json_and_columns_can_be_chosen(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = tmp_path / "rows.csv"
    source.write_text("id,name,at\n1,one,1000\n2,two,2000\n")
    path = tmp_path / "store"
    columns = jobs.ImportColumns(key="id")
    assert jobs.import_(spark, str(path), str(source), "copied", columns=columns).rows_added == 2
    found = records(path)
    assert [each.key for each in found] == [b"1", b"2"]
    assert json.loads(found[0].value or b"") == {"id": "1", "name": "one", "at": "1000"}
    with pytest.raises(BadRequestError, match="unknown column 'nam'"):
        jobs.import_(
            spark, str(path), str(source), "copied", columns=jobs.ImportColumns(value="nam")
        )


def test_rows_of_json_go_to_the_topics_they_name(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    rows = [{"topic": f"t{n % 2}", "value": {"n": n}, "timestamp": n} for n in range(4)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "store"
    result = jobs.import_(spark, str(path), str(source))
    assert (result.files, result.rows_added) == (1, 4)
    found = records(path, ShardId("t1", 0))
    assert [(each.value, each.timestamp_ms) for each in found] == [(b'{"n":1}', 1), (b'{"n":3}', 3)]


def test_an_import_killed_while_it_is_published_is_finished_by_the_next(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps({"value": str(n)}) + "\n" for n in range(10)))
    path = tmp_path / "store"
    first = jobs.import_(spark, str(path), str(source), "copied")
    journal = Journal(path / "penstock" / "sink" / first.name)
    assert journal.committed() == 0
    # As after a crash behind the last row: the journal's files count, not those staged again.
    (path / "penstock" / "sink" / first.name / "committed.json").unlink()
    journal.begin(OpenBatch(0, ()))
    again = jobs.import_(spark, str(path), str(source), "copied")
    assert (again.rows, again.rows_added, again.repeated) == (10, 0, False)
    assert jobs.import_(spark, str(path), str(source), "copied").repeated
    assert len(records(path)) == 10


def test_a_store_in_use_and_files_that_are_not_there_are_named(
    spark: SparkSession, sample: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(sample, tmp_path / "store"))
    source = tmp_path / "rows.json"
    source.write_text('{"value": "1"}\n')
    with SegmentStore.open(str(path), QUIET), pytest.raises(LockedError, match="store"):
        jobs.import_(
            spark, jobs.ImportPlace(str(path), lock_timeout_s=0), str(source), ORDERS.topic
        )
    assert jobs.import_(spark, str(path), str(source), ORDERS.topic).rows_added == 1
    with pytest.raises(BadRequestError, match="is neither a file"):
        jobs.import_(spark, str(path), str(tmp_path / "nothing"), "copied")
    with pytest.raises(BadRequestError, match="the file format is unknown"):
        jobs.import_(spark, str(path), str(source), "copied", file_format="xml")


def test_a_running_node_takes_an_import_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    rows = range(1, 501)
    source.write_text("id,name\n" + "".join(f"{n},row {n}\n" for n in rows))
    ports = {"server": {"port": 0, "http_port": 0}, "kafka": {"port": 0}}
    with Server(str(tmp_path / "node"), merge_settings(EMBEDDED, ports)) as node:
        address = f"127.0.0.1:{node.port}"
        place = jobs.ImportPlace(address, str(tmp_path / "journal"))
        columns = jobs.ImportColumns(key="id", value="name")
        first = jobs.import_(spark, place, str(source), "copied", columns=columns, partitions=2)
        assert (first.rows, first.rows_added, first.repeated) == (500, 500, False)
        again = jobs.import_(spark, place, str(source), "copied", columns=columns, partitions=2)
        assert (again.rows_added, again.repeated) == (0, True)
        with penstock.connect(address) as store:
            topic = store.topic("copied")
            values = [one.value for part in range(2) for one in topic.read(part, max_records=999)]
        assert Counter(values) == Counter(b"row %d" % n for n in rows)
        with pytest.raises(BadRequestError, match="cannot rebuild its open files"):
            jobs.rebuild(address)
        with pytest.raises(BadRequestError, match="belongs to a node: start it"):
            jobs.import_(spark, str(tmp_path / "node"), str(source), "copied")


def test_a_store_keeps_the_journal_of_its_imports_itself(tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match="leave it out"):
        jobs.ImportPlace(str(tmp_path), str(tmp_path / "journal"))
