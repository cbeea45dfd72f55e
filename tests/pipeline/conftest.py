"""One small Spark session for all tests here; they need the extra `spark` and Java."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from tests.engine.segment.readonly.sample_store import write_sample

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).parent
SESSION_TIMEOUT_S = 900
LONG = "soak"
"""Tests with this marker are left to `make soak`."""
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""Every Spark of the tests lives for seconds: half of the processor time of one went into making
code fast that runs once. What Java computes is the same."""
for variable in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(variable, QUICK_JAVA)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            if item.get_closest_marker(LONG) is None:
                item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SESSION_TIMEOUT_S))
            # Spark and py4j leave sockets to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from penstock import pipeline

    # Two cores; a task may fail once.
    session = pipeline.session(
        "penstock tests",
        "local[2,2]",
        driver_memory="1g",
        sql_warehouse_dir=str(tmp_path_factory.mktemp("warehouse")),
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of ours with every kind of record, closed. Not to be changed."""
    return write_sample(tmp_path_factory.mktemp("sample") / "store")


class Load(Protocol):
    """Reads a store with options as keywords. Filters are pushed down: a load is for one query."""

    def __call__(self, path: Path, **options: str | int | Path) -> DataFrame: ...


@pytest.fixture
def load(spark: SparkSession) -> Load:
    def read(path: Path, **options: str | int | Path) -> DataFrame:
        reader = spark.read.format("penstock").option("pushFilters", "true")
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load(str(path))

    return read


class Metrics:
    """What the tasks of a read counted."""

    def __init__(self, directory: Path) -> None:
        self.path = directory

    def total(self, name: str) -> int:
        """Add a count up over all tasks since the last `clear`."""
        return sum(json.loads(path.read_text())[name] for path in self.path.glob("task-*.json"))

    def clear(self) -> None:
        for path in self.path.glob("task-*.json"):
            path.unlink()


@pytest.fixture
def metrics(tmp_path: Path) -> Metrics:
    return Metrics(tmp_path / "metrics")


@pytest.fixture(scope="session")
def spark_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one topic of 10,000 records, the time of each its offset."""
    import pyarrow as pa

    from penstock.engine.segment.store import SegmentStore
    from penstock.record import ShardId

    path = tmp_path_factory.mktemp("plain") / "store"
    numbers = range(10_000)
    with SegmentStore.open(str(path)) as store:
        store.create_shard(ShardId("numbers", 0))
        for first in range(0, len(numbers), 1000):
            part = numbers[first : first + 1000]
            store.append_columns(
                ShardId("numbers", 0),
                pa.array([b"%d" % number for number in part]),
                keys=pa.array([b"key %d" % (number % 100) for number in part]),
                timestamps=pa.array(part, pa.int64()),
            )
    return path
