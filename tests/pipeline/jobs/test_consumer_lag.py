"""Groups against the ends of their topics; and jobs on the directory of a node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import penstock
from penstock.cli import build
from penstock.errors import UnknownGroupError
from penstock.pipeline import jobs


@pytest.fixture
def node(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    with penstock.open(str(path)) as store:
        sizes = store.create_topic("Größen", partitions=2)
        for partition in range(2):
            sizes.write_many([b"%d" % n for n in range(50)], partition=partition)
        newest = store.create_topic("newest", partitions=1, cleanup="compact")
        newest.write_many([penstock.Record(b"v", key=b"k")] * 9)
        store.reset_group("readers", {("Größen", 0): 10, ("Größen", 1): 50})
    return path


def test_lag_is_what_a_group_has_still_to_read(node: Path) -> None:
    with penstock.open(str(node)) as store:
        result = jobs.lag(store)
        found = [(each.partition, each.offset, each.end, each.lag) for each in result.partitions]
        assert found == [(0, 10, 50, 40), (1, 50, 50, 0)]
        assert (result.groups, result.lag) == (1, 40)
        with pytest.raises(UnknownGroupError):
            jobs.lag(store, groups=["nobody"])


def test_the_command_prints_lag_as_lines_of_json(node: Path) -> None:
    result = CliRunner().invoke(build(), ["pipeline", "lag", "--data", str(node), "--json"])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.output.splitlines()]
    assert [(line["topic"], line["lag"]) for line in lines] == [("Größen", 40), ("Größen", 0)]


def test_jobs_on_the_directory_of_a_node_know_its_topics_by_name(
    spark: SparkSession, node: Path, tmp_path: Path
) -> None:
    result = jobs.export(spark, str(node), str(tmp_path / "parquet"), topics=["Größen"])
    assert result.rows == 100
    assert [each.shard for each in result.shards] == ["Größen_0", "Größen_1"]
    assert {each.topic for each in jobs.stats(spark, str(node)).topics} == {"Größen", "newest"}
    assert jobs.verify(spark, str(node)).is_whole
    compacted = jobs.compact(str(node))
    assert [(each.shard, each.removed) for each in compacted.shards] == [("newest_0", 8)]
