"""Reads staged files of an export back, in Spark's workers, and counts what is in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from penstock.pipeline.jobs.exports.payload import UNDECODED
from penstock.pipeline.jobs.numbered_tasks import run_tasks
from penstock.record import ShardId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS_MAX: Final = 64


class Counted(Struct, frozen=True):
    """What files hold of one shard."""

    topic: str
    partition: int
    rows: int
    first: int
    last: int
    undecoded: int = 0
    first_undecoded: int | None = None

    def with_more(self, other: Counted) -> Counted:
        bad = [
            offset for offset in (self.first_undecoded, other.first_undecoded) if offset is not None
        ]
        return Counted(
            self.topic,
            self.partition,
            self.rows + other.rows,
            min(self.first, other.first),
            max(self.last, other.last),
            self.undecoded + other.undecoded,
            min(bad, default=None),
        )


def count_staged(spark: SparkSession, files: Sequence[Path]) -> dict[ShardId, Counted]:
    """Return what the files hold, by shard; in directories `…topic=T/…day=D`."""
    count = min(len(files), _TASKS_MAX)
    tasks = [files[number::count] for number in range(count)]
    counts: dict[ShardId, Counted] = {}
    for counted in chain.from_iterable(run_tasks(spark, tasks, count_files, list[Counted])):
        shard = ShardId(counted.topic, counted.partition)
        counts[shard] = counts[shard].with_more(counted) if shard in counts else counted
    return counts


def count_files(paths: Sequence[Path]) -> list[Counted]:
    """Return what each of the files holds of each shard."""
    return [counted for path in paths for counted in count_file(path)]


def count_file(path: Path) -> Iterator[Counted]:
    """Yield what one file holds of each shard."""
    with pq.ParquetFile(path) as file:
        decoded = UNDECODED in file.schema_arrow.names
        table = file.read(["partition", "offset", *([UNDECODED] if decoded else [])])
    topic = unquote(path.parent.parent.name.partition("=")[2])
    bad = pc.is_valid(table.column(UNDECODED)) if decoded else None
    for value in pc.unique(table.column("partition")).to_pylist():
        partition = int(str(value))
        chosen = pc.equal(table.column("partition"), pa.scalar(partition, pa.int32()))
        offsets = table.column("offset").filter(chosen)
        damaged = None if bad is None else table.column("offset").filter(pc.and_(chosen, bad))
        yield Counted(
            topic,
            partition,
            len(offsets),
            _number(pc.min(offsets)),
            _number(pc.max(offsets)),
            0 if damaged is None else len(damaged),
            _number(pc.min(damaged)) if damaged is not None and len(damaged) else None,
        )


def _number(value: pa.Scalar[pa.DataType]) -> int:
    return int(str(value.as_py()))
