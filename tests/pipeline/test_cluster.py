"""A real standalone cluster: what runs on one machine runs on executors, also where we are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engine.segment.readonly.sample_store import EVENTS_COUNT, ORDERS_COUNT
from tests.pipeline.spark_cluster import running_cluster

import penstock

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3000)]

RUN_S = 1200
LIVE = ORDERS_COUNT - 3 + EVENTS_COUNT
_PROGRAM = """
import json, os, sys
from penstock import pipeline
from penstock.errors import SetupError
from penstock.pipeline import archive_settings, jobs, package

master, store, root, own, bare = sys.argv[1:]
settings = {
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "driver_memory": "512m", "executor_memory": "512m", "ui_enabled": False,
    "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
}


def start(python, **more):
    os.environ["PYSPARK_PYTHON"] = python
    spark = pipeline.session("cluster test", master, **settings, **more)
    spark.sparkContext.setLogLevel("OFF")
    return spark


def read(**options):
    return spark.read.format("penstock").options(**options).load()


spark = start(own)
copied = read(path=store, minPartitions=4)
(copied.selectExpr("key", "value", "topic", "0 partition").write.format("penstock")
    .option("createTopics", "true").mode("append").save(f"{root}/copy"))
brought = jobs.offload(spark, store, f"file://{root}/tier", chunk_size=4096)
again = jobs.offload(spark, store, f"file://{root}/tier")
everywhere = spark.sparkContext.parallelize(range(8), 8)
workers = everywhere.map(lambda _: os.environ["SPARK_EXECUTOR_DIRS"]).distinct()
found = {
    "read": copied.count(),
    "copied": read(path=f"{root}/copy").count(),
    "brought": brought.rows,
    "again": again.rows,
    "tiered": read(tier=f"file://{root}/tier", minPartitions=4).count(),
    "workers": workers.count(),
}
spark.stop()

# The same program, where the executors have nothing but the archive.
package(f"{root}/env.tgz")
spark = start(bare, cores_max=1, **archive_settings(f"{root}/env.tgz"))
files = spark.sparkContext.range(2, numSlices=2).map(
    lambda _: [__import__(name).__file__ for name in ("penstock", "penstock._native")]
)
found["archived"] = ["/penstock/site/penstock/" in file for file in sum(files.collect(), [])]
found["read by the archive"] = read(path=store).count()
found["node read by the archive"] = read(path=f"{root}/node", subscribe="orders").count()
spark.stop()

# … and where it lacks everything.
try:
    start(bare, cores_max=1)
except SetupError as error:
    found["error"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, sample: Path) -> dict[str, object]:
    """What a program finds that runs on a cluster, with two kinds of Python there."""
    root = tmp_path_factory.mktemp("cluster")
    pythons = [
        # This very package, wherever the one that is installed as editable lies.
        script(root / "own", str(Path(penstock.__file__).parents[1])),
        script(root / "bare", "$PYTHONPATH", "-S"),
    ]
    write_node(root / "node")
    with running_cluster(root) as master:
        answer = subprocess.run(
            [sys.executable, "-c", _PROGRAM, master, str(sample), str(root), *pythons],
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
            env={
                **os.environ,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
        )
    assert answer.returncode == 0, answer.stderr[-4000:]
    answered: dict[str, object] = json.loads(answer.stdout.splitlines()[-1])
    return answered


def write_node(path: Path) -> None:
    """Leave the directory of a node, with a topic of five records."""
    with penstock.open(str(path)) as store:
        topic = store.create_topic("orders", partitions=1)
        topic.write_many([b"%d" % number for number in range(5)])


def script(path: Path, packages: str, option: str = "-s") -> str:
    """Return an interpreter that finds these packages; with -S, nothing that is installed."""
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}" exec "{sys.executable}" {option} "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_read_sink_and_offload_run_on_the_executors(found: dict[str, object]) -> None:
    names = "read", "copied", "brought", "again", "tiered", "workers"
    assert [found[name] for name in names] == [LIVE, LIVE, LIVE, 0, LIVE, 2]


def test_executors_with_nothing_but_the_archive_read_stores_and_nodes(
    found: dict[str, object],
) -> None:
    assert found["archived"] == [True] * 4
    assert found["read by the archive"] == LIVE
    assert found["node read by the archive"] == 5


def test_executors_without_arrow_are_named_before_a_job_runs(found: dict[str, object]) -> None:
    assert "the executors lack penstock, msgspec, numpy, prometheus_client, pyarrow" in str(
        found["error"]
    )
    assert "pip install 'penstock[spark]' on every worker" in str(found["error"])
