"""What `bench.spark` measures: reads in several systems, jobs, and what processes use."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from penstock.engine.contract import Cleanup, ShardConfig
from penstock.engine.segment.engine import SegmentEngine
from penstock.engine.segment.store import SegmentStore
from penstock.pipeline import jobs
from penstock.record import ShardId

if TYPE_CHECKING:
    from bench.spark_kafka import KafkaTopic
    from pyspark.sql import DataFrame, SparkSession

COMPACTED_KEYS: Final = 10_000
KEYS: Final = 1_000_000
FIRST_MS: Final = 1_700_000_000_000
BATCHES: Final = 10
_OWN_PAGES: Final = re.compile(r"^Pss_(?:Anon|Shmem): +(\d+)", re.MULTILINE)
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Case(NamedTuple):
    name: str
    works: dict[str, Callable[[], object]]
    """By system; `store` is ours."""
    repeats: bool = True
    """Whether it may be measured several times, in turns with the others; a job is done once."""
    prepare: Callable[[], object] = bool
    """Called before anything is measured."""


class Inputs:
    """The same rows in each system."""

    def __init__(
        self, spark: SparkSession, root: Path, rows: int, kafka: KafkaTopic | None
    ) -> None:
        self.spark: Final = spark
        self.root: Final = root
        self.rows: Final = rows
        self._kafka: Final = kafka

    def store(self, **options: str) -> DataFrame:
        reader = self.spark.read.format("penstock").option("subscribe", "orders")
        return reader.options(**options).load(str(self.root / "store"))

    def parquet(self) -> DataFrame:
        return self.spark.read.parquet(str(self.root / "parquet"))

    def kafka(self) -> DataFrame | None:
        return None if self._kafka is None else self._kafka.load()


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

    # Of the columns that Kafka's source has; `tags` is one more by default.
    whole = "key,value,topic,partition,offset,timestamp,timestampType"
    yield Case("all columns", works(lambda: inputs.store(columns=whole), lambda table: table))
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


def job_cases(inputs: Inputs, attempt: str) -> Iterator[Case]:
    """Yield work on the store that nobody stands beside; each leaves the store as it was."""

    def job(name: str, work: Callable[[], object], prepare: Callable[[], object] = bool) -> Case:
        return Case(name, {"store": work}, repeats=False, prepare=prepare)

    spark, root = inputs.spark, inputs.root
    store, made = str(root / "store"), root / attempt

    def stream(batches: int) -> None:
        reader = spark.readStream.format("penstock").option("subscribe", "orders")
        reader = reader.option("startingOffsets", "earliest")
        reader = reader.option("maxOffsetsPerTrigger", str(-(-inputs.rows // batches)))
        writer = reader.load(store).writeStream.format("noop").trigger(availableNow=True)
        checkpoint = str(made / f"checkpoint-{batches}")
        writer.option("checkpointLocation", checkpoint).start().awaitTermination()

    yield job("stream, 1 batch", lambda: stream(1))
    yield job(f"stream, {BATCHES} batches", lambda: stream(BATCHES))
    target = str(made / "exported")
    yield job("export to Parquet", lambda: jobs.export(spark, store, target))
    lake, form = str(made / "lake"), jobs.ExportForm("iceberg")
    yield job("export to Iceberg", lambda: jobs.export(spark, store, lake, form=form))
    tier = (made / "tier").as_uri()
    yield job("offload", lambda: jobs.offload(spark, store, tier, take_over=True))
    keyed = made / "keyed"
    yield job(
        f"compact to {COMPACTED_KEYS:,} keys",
        lambda: jobs.compact(str(keyed)),
        lambda: fill_keyed(keyed, inputs.rows),
    )
    yield job("rebuild", lambda: jobs.rebuild(store))


def fill_keyed(path: Path, rows: int) -> None:
    """Write a compacted topic whose keys are written again and again."""
    shard = ShardId("keyed", 0)
    engine = SegmentEngine(SegmentStore.open(str(path)))
    engine.create_shard(shard, ShardConfig(cleanup=Cleanup.COMPACT))
    value = bytes(200)
    for first in range(0, rows, 10_000):
        numbers = range(first, min(first + 10_000, rows))
        engine.store.append_columns(
            shard,
            pa.array([value] * len(numbers), pa.binary()),
            keys=pa.array([b"%016d" % (number % COMPACTED_KEYS) for number in numbers]),
        )
    engine.close()


class MemoryWatch:
    """The most memory that this process and all below it had at once; pages of mapped files, which
    several of them share and the kernel takes back, do not count."""

    def __init__(self) -> None:
        self.most_mb = 0.0
        self._ended: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            self.most_mb = max(self.most_mb, tree_memory_mb())


def tree_cpu_s() -> float:
    """Return the CPU time of this process and all below it, with those that have ended."""
    ticks = 0
    for process in _tree():
        fields = _stat(process)
        if fields:
            ticks += sum(int(number) for number in fields[11:15])
    return ticks / _TICKS


def tree_memory_mb() -> float:
    """Return the memory of all processes; pages that several of them share count once."""
    size_kb = 0
    for process in _tree():
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:
            continue  # it has just ended
        # Without the pages of mapped files: those are the system's cache.
        size_kb += sum(
            int(kb) for kb in re.findall(r"^Pss_(?:Anon|Shmem): +(\d+)", text, re.MULTILINE)
        )
    return size_kb / 1000


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
