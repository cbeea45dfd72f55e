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

All read the same rows in the same session, in turns, to Spark's `noop` sink (every column of every
row is taken, none is written). With `--kafka` the rows are first copied to a new topic of that
broker, by Spark's own connector (its jars by Maven), which then reads them. Prints medians and
ranges, and CPU seconds of the whole process tree (not the broker's), which a busy machine disturbs
less; MB count keys and values. What a batch of a stream costs by itself is the difference of the
two lines of streams, by nine.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

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
from rich.console import Console
from rich.table import Table

from penstock import pipeline
from penstock.engine.segment.store import SegmentStore
from penstock.record import ShardId

VALUE_SIZE: Final = 200
KEY_SIZE: Final = 16
ROWS_PER_APPEND: Final = 10_000
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


class Measured(NamedTuple):
    seconds: float
    cpu_s: float


def measured(work: Callable[[], object]) -> Measured:
    cpu = tree_cpu_s()
    began = time.perf_counter()
    work()
    return Measured(time.perf_counter() - began, tree_cpu_s() - cpu)


def show(name: str, rows: int, found: list[Measured]) -> tuple[str, str, str, str]:
    times = [each.seconds for each in found]
    middle = statistics.median(times)
    size = rows * (VALUE_SIZE + KEY_SIZE) / 1e6
    cpu = statistics.median(each.cpu_s for each in found)
    return (
        name,
        f"{middle:.2f} s ({min(times):.2f}–{max(times):.2f})",
        f"{rows / middle / 1e6:.2f} M rows/s, {size / middle:.0f} MB/s",
        f"{cpu:.2f} s",
    )


def compare(table: Table, case: Case, rows: int, rounds: int) -> None:
    """Measure what a case does in each system, in turns, and add a line for each; said at once,
    too, so that a run that is cut short has told something."""
    for work in case.works.values():
        work()  # all warm
    found: dict[str, list[Measured]] = {name: [] for name in case.works}
    for _ in range(rounds):
        for name, work in case.works.items():
            found[name].append(measured(work))
    ours = statistics.median(each.seconds for each in found["store"])
    cpu = statistics.median(each.cpu_s for each in found["store"])
    for name, times in found.items():
        ratio = statistics.median(each.seconds for each in times) / ours
        cpu_ratio = statistics.median(each.cpu_s for each in times) / max(cpu, 0.01)
        line = (case.name, *show(name, rows, times), f"{ratio:.2f}", f"{cpu_ratio:.2f}")
        table.add_row(*line)
        print(*line, sep="  ", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Spark over a store, beside Parquet and Kafka")
    parser.add_argument("--megabytes", type=int, default=1000, help="keys and values")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", default="1,2", help="one run for each, with commas")
    parser.add_argument("--short", action="store_true", help="60 MB, one round, two cores")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a broker that runs there")
    parser.add_argument("--jars", help="files of Kafka's connector; default: by Maven")
    parser.add_argument("--no-jobs", action="store_true", help="leave the jobs out")
    chosen = parser.parse_args()
    if chosen.short:
        chosen.megabytes, chosen.rounds, chosen.cores = 60, 1, "2"
    return chosen


def run(root: Path, rows: int, cores: int, chosen: argparse.Namespace) -> None:
    """Measure with so many cores, and print."""
    table = Table(
        *("work", "system", "time", "rate", "CPU", "× time", "× CPU"),
        title=f"{rows:,} rows, local[{cores}]",
    )
    settings = {}
    if chosen.kafka is not None:
        settings["spark.jars"] = chosen.jars or connector_jars()
    spark = pipeline.session("bench", f"local[{cores}]", driver_memory="2g", **settings)
    spark.sparkContext.setLogLevel("ERROR")
    with MemoryWatch() as memory:
        topic = None if chosen.kafka is None else KafkaTopic(spark, chosen.kafka)
        inputs = Inputs(spark, root, rows, topic)
        if topic is not None:
            topic.fill(inputs.store(), len(SHARDS))
        for case in read_cases(inputs):
            compare(table, case, rows, chosen.rounds)
        if not chosen.no_jobs:
            for case in job_cases(inputs, f"cores-{cores}"):
                found = [measured(case.works["store"])]
                line = (case.name, *show("store", rows, found), "", "")
                table.add_row(*line)
                print(*line, sep="  ", flush=True)
    spark.stop()
    console = Console(width=150)
    console.print(table)
    console.print(f"most memory of all processes at once: {memory.most_mb:.0f} MB")


def main() -> None:
    chosen = arguments()
    rows = chosen.megabytes * 1_000_000 // (VALUE_SIZE + KEY_SIZE)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        root = Path(directory)
        write_both(root, rows)
        for cores in chosen.cores.split(","):
            run(root, rows, int(cores), chosen)


if __name__ == "__main__":
    main()
