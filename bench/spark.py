"""How fast does Spark read a store, beside plain Parquet of the same rows?

Sketch first: the native loops make Arrow columns at some 2 GB/s; Spark's Arrow channel takes about
1 GB/s from a Python worker, and the JVM's rows cost 0.5 µs each. So 1 to 2 M rows/s of 200 bytes
for two cores, and the JVM is what is waited for. Parquet is read by the JVM itself, without a
Python worker, and only the columns that are used: it should win wherever nothing is looked up. A
key should cost a few milliseconds besides the query itself.

    python -m bench.spark                   1 GB, three rounds, two cores
    python -m bench.spark --megabytes 100 --rounds 1 --cores 1

Both read the same rows in the same session, in turns, to Spark's `noop` sink (every column of
every row is taken, none is written). Prints medians and ranges; MB count keys and values.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from penstock import pipeline
from penstock.engine.segment.store import SegmentStore
from penstock.record import ShardId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUE_SIZE: Final = 200
KEYS: Final = 1_000_000
KEY_SIZE: Final = 16
ROWS_PER_APPEND: Final = 10_000
FIRST_MS: Final = 1_700_000_000_000
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


def drain(table: DataFrame) -> None:
    table.write.format("noop").mode("overwrite").save()


def cases(
    spark: SparkSession, root: Path, rows: int
) -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    """Yield a name, what we do and what Parquet does."""

    def ours(columns: str | None = None) -> DataFrame:
        reader = spark.read.format("penstock").option("subscribe", "orders")
        if columns is not None:
            reader = reader.option("columns", columns)
        return reader.load(str(root / "store"))

    plain = spark.read.parquet(str(root / "parquet"))
    yield "all columns", lambda: drain(ours()), lambda: drain(plain)
    yield (
        "key and timestamp",
        lambda: drain(ours("key,timestamp")),
        lambda: drain(plain.select("key", "timestamp")),
    )
    key = f"key = cast('{KEYS // 2:016d}' as binary)"
    yield "one key", lambda: drain(ours().where(key)), lambda: drain(plain.where(key))
    late = f"timestamp >= timestamp_millis({FIRST_MS + rows * 99 // 100})"
    yield "newest 1 %", lambda: drain(ours().where(late)), lambda: drain(plain.where(late))


def seconds_of(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def show(name: str, rows: int, times: list[float]) -> tuple[str, str, str]:
    middle = statistics.median(times)
    size = rows * (VALUE_SIZE + KEY_SIZE) / 1e6
    spread = f"{middle:.2f} s ({min(times):.2f}–{max(times):.2f})"
    return name, spread, f"{rows / middle / 1e6:.2f} M rows/s, {size / middle:.0f} MB/s"


def main() -> None:
    parser = argparse.ArgumentParser(description="Spark over a store, beside Parquet")
    parser.add_argument("--megabytes", type=int, default=1000, help="keys and values")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    chosen = parser.parse_args()
    rows = chosen.megabytes * 1_000_000 // (VALUE_SIZE + KEY_SIZE)
    table = Table("read", "store", "", "Parquet", "", "ratio", title=f"{rows:,} rows")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        root = Path(directory)
        write_both(root, rows)
        spark = pipeline.session("bench", f"local[{chosen.cores}]", driver_memory="1g")
        spark.sparkContext.setLogLevel("ERROR")
        for name, ours, parquet in cases(spark, root, rows):
            ours(), parquet()  # both warm
            pairs = [(seconds_of(ours), seconds_of(parquet)) for _ in range(chosen.rounds)]
            mine, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            ratio = statistics.median(theirs) / statistics.median(mine)
            table.add_row(*show(name, rows, mine), *show(name, rows, theirs)[1:], f"{ratio:.2f}")
        spark.stop()
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
