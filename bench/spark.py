"""How fast does Spark read a store, beside plain Parquet and Kafka's connector on the same rows?

Sketch first: the native loops make Arrow columns at some 2 GB/s; Spark's Arrow channel takes about
1 GB/s from a Python worker, and the JVM's rows cost 0.5 µs each. So 1 to 2 M rows/s of 200 bytes
for two cores, and the JVM is what is waited for. Parquet is read by the JVM itself, without a
Python worker, and only the columns that are used: it should win wherever nothing is looked up. A
key should cost a few milliseconds besides the query itself.

    python -m bench.spark                   1 GB, three rounds, with one core and with two
    python -m bench.spark --short           60 MB, one round, two cores: a minute or two
    python -m bench.spark --megabytes 2000 --rounds 1 --cores 2
    python -m bench.spark --kafka 127.0.0.1:19092      beside a broker that runs there
    python -m bench.spark --directory DIR --only offload,rebuild

With `--directory` the rows and what was measured stay there: a run that is cut short goes on with
what is missing, and a run of some cases (`--only`, parts of their names) adds to the table.

All read the same rows in the same session, in turns, to Spark's `noop` sink (every column of every
row is taken, none is written). With `--kafka` the rows are first copied to a new topic of that
broker, by Spark's own connector (its jars by Maven), which then reads them. Prints medians and
ranges, and CPU seconds of the whole process tree (not the broker's), which a busy machine disturbs
less; MB count keys and values. Each system first reads everything four times (`--warm-ups`). What a
batch of a stream costs by itself is the difference of the two lines of streams, by nine.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from bench.spark_cases import (
    FIRST_MS,
    KEYS,
    Case,
    Inputs,
    MemoryWatch,
    job_cases,
    read_cases,
    tree_cpu_s,
)
from bench.spark_kafka import KafkaTopic, connector_jars
from msgspec import Struct
from rich.console import Console
from rich.progress import track
from rich.table import Table

from penstock import pipeline
from penstock.engine.segment.store import SegmentStore
from penstock.record import ShardId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VALUE_SIZE: Final = 200
KEY_SIZE: Final = 16
ROWS_PER_APPEND: Final = 10_000
WARM_UPS: Final = 4
"""After so many reads of a system Java has compiled what it runs; a second read takes twice as much
processor time as a fifth one."""
SHARDS: Final = tuple(ShardId("orders", number) for number in range(4))


def batches(rows: int) -> Iterator[tuple[ShardId, int, pa.RecordBatch]]:
    """Yield shard, first offset and rows; timestamps ascend by a millisecond a row."""
    source = random.Random(11)
    noise = source.randbytes(1 << 20)
    offsets = dict.fromkeys(SHARDS, 0)
    for first in range(0, rows, ROWS_PER_APPEND):
        count = min(ROWS_PER_APPEND, rows - first)
        shard = SHARDS[first // ROWS_PER_APPEND % len(SHARDS)]
        starts = [source.randrange(len(noise) - VALUE_SIZE) for _ in range(count)]
        yield (
            shard,
            offsets[shard],
            pa.record_batch(
                {
                    "key": pa.array(
                        [b"%016d" % source.randrange(KEYS) for _ in range(count)], pa.binary()
                    ),
                    "value": pa.array([noise[at : at + VALUE_SIZE] for at in starts], pa.binary()),
                    "timestamp": pa.array(
                        range(FIRST_MS + first, FIRST_MS + first + count), pa.timestamp("ms", "UTC")
                    ),
                }
            ),
        )
        offsets[shard] += count


def write_both(root: Path, rows: int) -> None:
    """Write the same rows as a store and as Parquet files of one shard's stretch each."""
    store_path, parquet_path = root / "store", root / "parquet"
    parquet_path.mkdir()
    writers: dict[ShardId, pq.ParquetWriter] = {}
    with SegmentStore.open(str(store_path)) as store:
        for shard in SHARDS:
            store.create_shard(shard)
        for shard, first, part in batches(rows):
            store.append_columns(
                shard,
                part.column("value"),
                keys=part.column("key"),
                timestamps=part.column("timestamp"),
            )
            table = (
                pa.Table.from_batches([part])
                .append_column("topic", pa.repeat(shard.topic, part.num_rows))
                .append_column(
                    "partition", pa.repeat(pa.scalar(shard.partition, pa.int32()), part.num_rows)
                )
                .append_column("offset", pa.array(range(first, first + part.num_rows)))
            )
            if shard not in writers:
                path = parquet_path / f"{shard.name}.parquet"
                writers[shard] = pq.ParquetWriter(path, table.schema, compression="snappy")
            writers[shard].write_table(table)
    for writer in writers.values():
        writer.close()


class Measured(Struct, frozen=True):
    """What one system took for a case, several times."""

    cores: int
    case: str
    system: str
    seconds: list[float]
    cpu_s: list[float]


class Results:
    """What was measured so far; in a file, so that a run can go on where another was stopped."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self.found: list[Measured] = []
        if path.exists():
            self.found = msgspec.json.decode(path.read_bytes(), type=list[Measured])

    def add(self, new: list[Measured]) -> None:
        self.found += new
        self._path.write_bytes(msgspec.json.encode(self.found))

    def has(self, cores: int, case: Case) -> bool:
        systems = {each.system for each in self.of(cores, case.name)}
        return systems >= case.works.keys()

    def of(self, cores: int, name: str) -> list[Measured]:
        return [each for each in self.found if (each.cores, each.case) == (cores, name)]


def measure(cores: int, case: Case, rounds: int, warm_ups: int) -> list[Measured]:
    """Measure what a case does in each system, in turns."""
    found = {name: Measured(cores, case.name, name, [], []) for name in case.works}
    case.prepare()
    for _ in range(warm_ups if case.repeats else 0):
        for work in case.works.values():
            work()
    for _ in range(rounds if case.repeats else 1):
        for name, work in case.works.items():
            cpu, began = tree_cpu_s(), time.perf_counter()
            work()
            found[name].seconds.append(time.perf_counter() - began)
            found[name].cpu_s.append(tree_cpu_s() - cpu)
    return list(found.values())


def lines(rows: int, measured: list[Measured]) -> Iterator[tuple[str, ...]]:
    """Yield a line of the table for each system."""
    size = rows * (VALUE_SIZE + KEY_SIZE) / 1e6
    ours = next((each for each in measured if each.system == "store"), measured[0])
    middle, cpu = statistics.median(ours.seconds), statistics.median(ours.cpu_s)
    for each in measured:
        time_s, cpu_s = statistics.median(each.seconds), statistics.median(each.cpu_s)
        alone = len(measured) == 1
        yield (
            each.case,
            each.system,
            f"{time_s:.2f} s ({min(each.seconds):.2f}–{max(each.seconds):.2f})",
            f"{rows / time_s / 1e6:.2f} M rows/s, {size / time_s:.0f} MB/s",
            f"{cpu_s:.2f} s",
            "" if alone else f"{time_s / middle:.2f}",
            "" if alone else f"{cpu_s / max(cpu, 0.01):.2f}",
        )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Spark over a store, beside Parquet and Kafka")
    parser.add_argument("--megabytes", type=int, default=1000, help="keys and values")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--warm-ups", type=int, default=WARM_UPS, help="reads of each system before the first round"
    )
    parser.add_argument("--cores", default="1,2", help="one run for each, with commas")
    parser.add_argument("--short", action="store_true", help="60 MB, one round, two cores")
    parser.add_argument("--only", default="", help="parts of the names of cases, with commas")
    parser.add_argument("--directory", help="keep the rows and the results there, and go on")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a broker that runs there")
    parser.add_argument("--jars", help="files of Kafka's connector; default: by Maven")
    parser.add_argument("--no-jobs", action="store_true", help="leave the jobs out")
    chosen = parser.parse_args()
    if chosen.short:
        chosen.megabytes, chosen.rounds, chosen.cores, chosen.warm_ups = 60, 1, "2", 1
    return chosen


def cases_of(inputs: Inputs, cores: int, chosen: argparse.Namespace) -> list[Case]:
    found = [*read_cases(inputs)]
    if not chosen.no_jobs:
        found += job_cases(inputs, f"cores-{cores}-{time.time_ns()}")
    wanted = [part for part in chosen.only.split(",") if part]
    return [case for case in found if not wanted or any(part in case.name for part in wanted)]


def kafka_topic(spark: SparkSession, root: Path, chosen: argparse.Namespace) -> KafkaTopic | None:
    """Return the topic with the same rows, filled."""
    if chosen.kafka is None:
        return None
    note = root / "kafka-topic"
    topic = KafkaTopic(spark, chosen.kafka, note.read_text() if note.exists() else "")
    if not topic.exists():
        topic.fill(Inputs(spark, root, 0, None).store(), len(SHARDS))
        note.write_text(topic.name)
    return topic


def run(root: Path, rows: int, cores: int, chosen: argparse.Namespace) -> None:
    """Measure with so many cores, and print."""
    console = Console(width=150)
    settings = {}
    if chosen.kafka is not None:
        settings["spark.jars"] = chosen.jars or connector_jars()
    spark = pipeline.session("bench", f"local[{cores}]", driver_memory="2g", **settings)
    spark.sparkContext.setLogLevel("ERROR")
    results = Results(root / "results.json")
    with MemoryWatch() as memory:
        topic = kafka_topic(spark, root, chosen)
        cases = cases_of(Inputs(spark, root, rows, topic), cores, chosen)
        for case in track(cases, f"local[{cores}]", console=Console(stderr=True)):
            if not results.has(cores, case):
                results.add(measure(cores, case, chosen.rounds, chosen.warm_ups))
                for line in lines(rows, results.of(cores, case.name)):
                    # At once, so that a run that is cut short has told something.
                    print(*line, sep="  ", flush=True)
    spark.stop()
    table = Table(
        *("work", "system", "time", "rate", "CPU", "× time", "× CPU"),
        title=f"{rows:,} rows, local[{cores}]",
    )
    for name in dict.fromkeys(each.case for each in results.found if each.cores == cores):
        for line in lines(rows, results.of(cores, name)):
            table.add_row(*line)
    console.print(table)
    console.print(f"most memory of all processes at once: {memory.most_mb:.0f} MB")


def fill(root: Path, rows: int) -> None:
    """Write the rows, unless they are there."""
    note = root / "rows"
    if not note.exists():
        write_both(root, rows)
        note.write_text(str(rows))
    elif note.read_text() != str(rows):
        raise SystemExit(
            f"{root} holds {note.read_text()} rows, not {rows}: name another directory"
        )


def main() -> None:
    chosen = arguments()
    rows = chosen.megabytes * 1_000_000 // (VALUE_SIZE + KEY_SIZE)
    with ExitStack() as stack:
        directory = chosen.directory
        if directory is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-"))
        root = Path(directory)
        root.mkdir(parents=True, exist_ok=True)
        fill(root, rows)
        for cores in chosen.cores.split(","):
            run(root, rows, int(cores), chosen)


if __name__ == "__main__":
    main()
