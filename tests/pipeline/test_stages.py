"""A user's functions on Arrow batches, over topics, as a batch and as a stream."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.conftest import Load

from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError, StoreError
from penstock.pipeline import jobs, restarting_query
from penstock.pipeline.continuous import Duties, RunResult
from penstock.pipeline.continuous import run as run_duties
from penstock.pipeline.stages import Chain, Stage, load_stage
from penstock.record import Record, ShardId
from penstock.tiered.composite_flat_file import CompositeFlatFile
from penstock.tiered.config import TierConfig
from penstock.tiered.read.tier_query import TierQuery

STOP_S = 480


def even(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pa.array([int(value) % 2 == 0 for value in _values(batch)]))


def twice(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield batch
    yield batch


def nothing(_batch: pa.RecordBatch) -> None:
    return None


def as_table(batch: pa.RecordBatch) -> pa.RecordBatch:
    numbers = pa.array([int(value) for value in _values(batch)], pa.int64())
    return pa.record_batch({"number": numbers, "key": batch.column("key").cast(pa.string())})


def wrong(_batch: pa.RecordBatch) -> pa.RecordBatch:
    raise KeyError("no such field")


def _values(batch: pa.RecordBatch) -> list[bytes]:
    return [bytes(value.as_py()) for value in batch.column("value")]


def test_stages_run_one_after_another_into_a_topic(
    spark: SparkSession, spark_store: Path, tmp_path: Path, load: Load
) -> None:
    target = {"path": str(tmp_path / "made"), "topic": "made", "createTopics": "true"}
    Chain([even, twice]).run(spark, {"path": str(spark_store)}, target)
    made = load(tmp_path / "made").selectExpr("cast(cast(value as string) as int) n", "key")
    assert sorted(row.n for row in made.collect()) == sorted([*range(0, 10_000, 2)] * 2)
    Chain([even, nothing]).run(spark, {"path": str(spark_store)}, target)
    assert load(tmp_path / "made").count() == 10_000


def test_a_chain_fills_a_table(spark: SparkSession, spark_store: Path, tmp_path: Path) -> None:
    chain = Chain([even, as_table], schema="number bigint, key string")
    target = {"format": "parquet", "path": str(tmp_path / "table")}
    query = chain.start(spark, {"path": str(spark_store)}, target, str(tmp_path / "state"))
    query.awaitTermination()
    table = spark.read.parquet(str(tmp_path / "table"))
    assert table.count() == 5_000
    assert [row.key for row in table.where("number = 42").collect()] == ["key 42"]
    with pytest.raises(BadRequestError, match="needs the chain's schema"):
        Chain([as_table]).run(spark, {"path": str(spark_store)}, target)


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (wrong, "stage 'wrong' failed: KeyError: 'no such field'"),
        (lambda _: ["a"], "returned str, expected pyarrow.RecordBatch"),
        (as_table, "the last stage returned the column 'number'"),
    ],
)
def test_a_stage_that_goes_wrong_is_named(
    spark: SparkSession, spark_store: Path, tmp_path: Path, stage: Stage, message: str
) -> None:
    target = {"path": str(tmp_path), "topic": "made", "createTopics": "true"}
    with pytest.raises(BadRequestError, match=message) as caught:
        Chain([stage]).run(spark, {"path": str(spark_store)}, target)
    assert "org.apache.spark" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shop", "expected module:function"),
        ("no_such_module:clean", "No module named"),
        ("json:no_such", "json has no function"),
    ],
)
def test_a_stage_that_does_not_exist_is_refused(name: str, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        load_stage(name)


def append(path: Path, numbers: range) -> None:
    with SegmentStore.open(str(path)) as store:
        store.create_shard(ShardId("numbers", 0))
        store.append_many(ShardId("numbers", 0), [Record(b"%d" % n) for n in numbers])


def made_values(path: Path) -> list[int]:
    try:
        with ReadOnlyStore.open(str(path)) as view:
            rows = view.read(ShardId("made", 0), 0, max_records=100_000)
            return sorted(int(row.value or b"") for row in rows)
    except StoreError:
        return []  # it is not there yet


class Run:
    """`penstock pipeline run` as people start it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        (root / "shop.py").write_text(
            "import pyarrow as pa\n"
            "def clean(batch):\n"
            "    values = batch.column('value').to_pylist()\n"
            "    return batch.filter(pa.array([int(value) % 3 == 0 for value in values]))\n"
        )

    def start(self, *more: str, show: Sequence[str] = ()) -> subprocess.Popen[str]:
        where = "--to", "made", "--to-topic", "made", "--every", "0.5", "--json"
        return subprocess.Popen(
            [
                *(sys.executable, "-c", "from penstock.cli import main; main()"),
                *("pipeline", *show, "run", "source", "--checkpoint", "state", *where),
                *("--stage", "shop:clean", "--master", "local[1]", *more),
            ],
            cwd=self._root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, count: int, process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + STOP_S
        while len(made_values(self._root / "made")) < count:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, made_values(self._root / "made")
            time.sleep(0.3)


@pytest.mark.timeout(4 * STOP_S)
def test_a_run_stops_cleanly_and_goes_on_where_it_was(tmp_path: Path) -> None:
    append(tmp_path / "source", range(300))
    run = Run(tmp_path)
    first = run.start("--export", "parquet", show=["--spark-logs"])
    try:
        run.wait_for(100, first)
        append(tmp_path / "source", range(300, 600))
        run.wait_for(200, first)
        os.killpg(first.pid, signal.SIGTERM)  # as a shell or a supervisor sends it
        output, errors = first.communicate(timeout=STOP_S)
    finally:
        first.kill()
    assert first.returncode == 0, errors
    assert json.loads(output)["rows"] == 600
    assert "Setting default log level" in errors
    assert "Traceback" not in errors
    append(tmp_path / "source", range(600, 900))
    tier = f"file://{tmp_path}/tier"
    again = run.start("--once", "--export", "parquet", "--expire", "--offload", tier)
    try:
        output, errors = again.communicate(timeout=STOP_S)
    finally:
        again.kill()
    assert again.returncode == 0, errors
    assert json.loads(output)["rows"] == 300
    assert (
        errors == "running; stop with Ctrl-C (SIGINT) or SIGTERM\n"
    )  # not a word of Spark or Java
    flat = CompositeFlatFile(TierConfig(url=tier), ShardId("numbers", 0))
    assert [one.offset for one in flat.reader.read(TierQuery(0)).records] == [*range(900)]
    assert made_values(tmp_path / "made") == [*range(0, 900, 3)]
    files = sorted((tmp_path / "parquet").glob("topic=*/day=*/*.parquet"))
    assert sum(pq.read_metadata(file).num_rows for file in files) == 900


class Flaky:
    """An export that fails as the outside world does, the first so many times."""

    def __init__(self, failures: int, error: Exception) -> None:
        self._failures = failures
        self._error = error
        self._export = jobs.export
        self.calls = 0

    def __call__(self, *given: object, **named: object) -> jobs.ExportResult:
        self.calls += 1
        if self.calls <= self._failures:
            raise self._error
        return self._export(*given, **named)  # type: ignore[arg-type]  # as they came


def export_once(spark: SparkSession, root: Path) -> RunResult:
    duties = Duties(
        source={"path": str(root / "source")},
        checkpoint=str(root / "state"),
        export_to=str(root / "parquet"),
    )
    return run_duties(spark, duties, threading.Event(), once=True)


@pytest.mark.parametrize(
    ("failures", "error", "message", "calls"),
    [
        (2, OSError("the network is gone"), None, 3),
        (9, OSError("the network is gone"), "Spark: OSError: the network is gone", 4),
        (1, BadRequestError("there is no such topic"), "there is no such topic", 1),
    ],
)
def test_a_query_that_the_outside_world_stopped_is_started_again(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failures: int,
    error: Exception,
    message: str | None,
    calls: int,
) -> None:
    append(tmp_path / "source", range(300))
    flaky = Flaky(failures, error)
    monkeypatch.setattr(jobs, "export", flaky)
    monkeypatch.setattr(restarting_query, "RESTART_DELAYS_S", (0.0, 0.1, 0.2))
    if message is None:
        assert export_once(spark, tmp_path).rows_exported == 300
    else:
        with pytest.raises(StoreError) as caught:
            export_once(spark, tmp_path)
        assert str(caught.value) == message
    assert flaky.calls == calls
