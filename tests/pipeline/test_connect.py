"""Spark Connect: a client without Java reads, writes, streams and runs jobs on a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.pipeline.spark_cluster import running_connect_server

RUN_S = 600
_PROGRAM = """
import json, sys
from penstock import pipeline
from penstock.pipeline import jobs

address, store, root = sys.argv[1:]
spark = pipeline.session(address)
rows = spark.read.format("penstock").load(store)
(rows.selectExpr("key", "value").write.format("penstock").mode("append")
    .options(topic="copy", createTopics="true").save(f"{root}/copy"))
query = (spark.readStream.format("penstock").option("startingOffsets", "earliest")
    .load(store).selectExpr("value").writeStream.format("penstock")
    .options(topic="stream", createTopics="true", checkpointLocation=f"{root}/checkpoint")
    .trigger(availableNow=True).start(f"{root}/stream"))
query.awaitTermination()
spark.sql(f"create table numbers using penstock options (path '{store}', columns 'offset')")
exported = jobs.export(spark, store, f"{root}/parquet")
print(json.dumps({
    "connect": pipeline.is_connect(spark),
    "read": rows.count(),
    "key": spark.read.format("penstock").option("key", "key 7").load(store).count(),
    "copied": spark.read.format("penstock").load(f"{root}/copy").count(),
    "streamed": spark.read.format("penstock").load(f"{root}/stream").count(),
    "sql": spark.sql("select max(offset) from numbers").collect()[0][0],
    "exported": exported.rows,
    "parquet": spark.read.parquet(f"{root}/parquet").count(),
    "stats": jobs.stats(spark, store).topics[0].rows,
}))
spark.stop()
"""


@pytest.mark.skipif(find_spec("grpc_status") is None, reason="needs the extra `connect`")
def test_a_client_of_spark_connect_reads_writes_streams_and_runs_jobs(
    spark_store: Path, tmp_path: Path
) -> None:
    with running_connect_server(tmp_path) as address:
        answer = subprocess.run(
            [sys.executable, "-c", _PROGRAM, address, str(spark_store), str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
            env={**os.environ, "JAVA_HOME": "/no/java/here"},
        )
    assert answer.returncode == 0, answer.stderr[-4000:]
    assert json.loads(answer.stdout.splitlines()[-1]) == {
        "connect": True,
        "read": 10_000,
        "key": 100,
        "copied": 10_000,
        "streamed": 10_000,
        "sql": 9_999,
        "exported": 10_000,
        "parquet": 10_000,
        "stats": 10_000,
    }
