"""What `bench.spark` measures: reads in several systems, jobs, and what processes use."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.pipeline import jobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KAFKA_CONNECTOR: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
KEYS: Final = 1_000_000
FIRST_MS: Final = 1_700_000_000_000
BATCHES: Final = 10
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Case(NamedTuple):
    name: str
    works: dict[str, Callable[[], object]]
    """By system; `store` is ours."""
    rows: int = 0


class Inputs:
    """The same rows in each system."""

    def __init__(self, spark: SparkSession, root: Path, rows: int, kafka: str | None) -> None:
        self.spark: Final = spark
        self.root: Final = root
        self.rows: Final = rows
        self._kafka: Final = kafka
        self._topic: Final = f"bench-{time.time_ns()}"
        if kafka is not None:
            self._copy(kafka)

    def store(self, **options: str) -> DataFrame:
        reader = self.spark.read.format("penstock").option("subscribe", "orders")
        return reader.options(**options).load(str(self.root / "store"))

    def parquet(self) -> DataFrame:
        return self.spark.read.parquet(str(self.root / "parquet"))

    def kafka(self) -> DataFrame | None:
        if self._kafka is None:
            return None
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self._kafka)
        return reader.option("subscribe", self._topic).load()

    def _copy(self, kafka: str) -> None:
        rows = self.store().selectExpr("key", "value", "timestamp")
        writer = rows.write.format("kafka").option("kafka.bootstrap.servers", kafka)
        writer.option("topic", self._topic).save()
        found = self.kafka()
        assert found is not None
        assert found.count() == self.rows


def drain(table: DataFrame) -> None:
    table.write.format("noop").mode("overwrite").save()


def read_cases(inputs: Inputs) -> Iterator[Case]:
    """Yield reads; each loads anew, as a query does."""

    def works(
        ours: Callable[[], DataFrame], theirs: Callable[[DataFrame], DataFrame]
    ) -> dict[str, Callable[[], object]]:
        found: dict[str, Callable[[], object]] = {
            "store": lambda: drain(ours()),
            "Parquet": lambda: drain(theirs(inputs.parquet())),
        }
        kafka = inputs.kafka()
        if kafka is not None:
            found["Kafka"] = lambda: drain(theirs(kafka))
        return found

    yield Case("all columns", works(inputs.store, lambda table: table))
    two = "key", "timestamp"
    yield Case(
        "key and timestamp",
        works(lambda: inputs.store(columns=",".join(two)), lambda table: table.select(*two)),
    )
    key = f"{KEYS // 2:016d}"
    yield Case(
        "one key",
        works(
            lambda: inputs.store(key=key),
            lambda table: table.where(f"key = cast('{key}' as binary)"),
        ),
    )
    late = f"timestamp >= timestamp_millis({FIRST_MS + inputs.rows * 99 // 100})"
    yield Case(
        "newest 1 %",
        works(
            lambda: inputs.store(pushFilters="true").where(late),
            lambda table: table.where(late),
        ),
    )


def job_cases(inputs: Inputs) -> Iterator[Case]:
    """Yield work on the store that nobody stands beside."""
    store, root = str(inputs.root / "store"), inputs.root

    def stream() -> None:
        """Read as a stream of few small batches: what a batch costs."""
        reader = inputs.spark.readStream.format("penstock").option("subscribe", "orders")
        reader = reader.option("startingOffsets", "earliest")
        reader = reader.option("maxOffsetsPerTrigger", str(-(-inputs.rows // BATCHES)))
        writer = reader.load(store).writeStream.format("noop").trigger(availableNow=True)
        writer.option("checkpointLocation", str(root / "checkpoint")).start().awaitTermination()

    yield Case(f"stream, {BATCHES} batches", {"store": stream})
    target = str(root / "exported")
    yield Case("export", {"store": lambda: jobs.export(inputs.spark, store, target)})
    yield Case("compact", {"store": lambda: jobs.compact(store)})
    yield Case("rebuild", {"store": lambda: jobs.rebuild(store)})


def tree_cpu_s() -> float:
    """Return the CPU time of this process and all below it, with those that have ended."""
    ticks = 0
    for process in _tree():
        fields = _stat(process)
        if fields:
            ticks += sum(int(number) for number in fields[11:15])
    return ticks / _TICKS


def tree_memory_mb() -> float:
    pages = 0
    for process in _tree():
        try:
            pages += int(Path(f"/proc/{process}/statm").read_text().split()[1])
        except OSError:
            continue  # it has just ended
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _tree() -> list[int]:
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(path.name))
        if fields:
            parents[int(path.name)] = int(fields[1])
    found = [os.getpid()]
    for process in found:
        found += [each for each, parent in parents.items() if parent == process]
    return found


def _stat(process: int) -> list[str]:
    """Return the fields behind the name, which may hold anything."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()
