"""A real standalone cluster: what runs on one machine runs on executors, also where we are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pipeline.spark_cluster import running_cluster
from tests.segment.view.sample_store import EVENTS_COUNT, ORDERS_COUNT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3000)]

RUN_S = 1200
LIVE = ORDERS_COUNT - 3 + EVENTS_COUNT
_SESSION = """
import json, sys
from penstock import pipeline
from penstock.errors import SetupError
from penstock.pipeline import jobs

master, store, root = sys.argv[1:]
loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
small = {"driver_memory": "512m", "executor_memory": "512m", "ui_enabled": False}


def start():
    spark = pipeline.session("cluster test", master, **small, **loopback)
    spark.sparkContext.setLogLevel("OFF")
    return spark


def read(**options):
    return spark.read.format("penstock").options(**options).load()

"""


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as address:
        yield address


def run(code: str, python: str, *arguments: str | Path) -> dict[str, object]:
    """Run a program whose executors use this `python`; return what it prints."""
    environment = os.environ | {
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    answer = subprocess.run(
        [sys.executable, "-c", _SESSION + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
        env=environment,
    )
    assert answer.returncode == 0, answer.stderr[-4000:]
    found: dict[str, object] = json.loads(answer.stdout.splitlines()[-1])
    return found


def other_python(path: Path, packages: str) -> str:
    """Return an interpreter that has these packages, and not what is installed as editable."""
    path.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec "{sys.executable}" -S "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


def test_read_sink_and_offload_run_on_the_executors(
    master: str, sample: Path, tmp_path: Path
) -> None:
    code = """
spark = start()
copied = read(path=store, minPartitions=4)
(copied.selectExpr("key", "value", "topic", "0 partition").write.format("penstock")
    .option("createTopics", "true").mode("append").save(f"{root}/copy"))
brought = jobs.offload(spark, store, f"file://{root}/tier", chunk_size=4096)
again = jobs.offload(spark, store, f"file://{root}/tier")
everywhere = spark.sparkContext.parallelize(range(8), 8)
workers = everywhere.map(lambda _: __import__("os").environ["SPARK_EXECUTOR_DIRS"]).distinct()
print(json.dumps({
    "read": copied.count(),
    "copied": read(path=f"{root}/copy").count(),
    "brought": brought.rows,
    "again": again.rows,
    "tiered": read(tier=f"file://{root}/tier", minPartitions=4).count(),
    "workers": workers.count(),
}))
spark.stop()
"""
    assert run(code, sys.executable, master, sample, tmp_path) == {
        "read": LIVE,
        "copied": LIVE,
        "brought": LIVE,
        "again": 0,
        "tiered": LIVE,
        "workers": 2,
    }


def test_the_package_is_shipped_to_executors_that_lack_it(
    master: str, sample: Path, tmp_path: Path
) -> None:
    packages = sysconfig.get_path("purelib")
    if Path(packages, "penstock").exists():
        pytest.skip("penstock is installed among the other packages")
    code = """
spark = start()
def found(_):
    import penstock
    return penstock.__file__
files = spark.sparkContext.parallelize(range(4), 4).map(found).collect()
zipped = all(".zip" in file for file in files)
print(json.dumps({"zipped": zipped, "read": read(path=store).count()}))
spark.stop()
"""
    python = other_python(tmp_path / "python", packages)
    assert run(code, python, master, sample, tmp_path) == {"zipped": True, "read": LIVE}


def test_executors_without_arrow_are_named_before_a_job_runs(
    master: str, sample: Path, tmp_path: Path
) -> None:
    code = """
try:
    start()
except SetupError as error:
    print(json.dumps({"error": str(error)}))
"""
    python = other_python(tmp_path / "python", str(tmp_path / "nothing"))
    (error,) = run(code, python, master, sample, tmp_path).values()
    assert "the executors lack msgspec, pyarrow" in str(error)
    assert "pip install 'penstock[spark]' on every worker" in str(error)
