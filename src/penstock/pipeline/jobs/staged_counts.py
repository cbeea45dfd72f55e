"""Reads staged files of an export back, in Spark's workers, and counts what is in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from penstock.pipeline.jobs.payload import UNDECODED
from penstock.record import ShardId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS_MAX: Final = 64
_RESULT: Final = "counted"


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
        bad = [each for each in (self.first_undecoded, other.first_undecoded) if each is not None]
        return Counted(
            self.topic,
            self.partition,
            self.rows + other.rows,
            min(self.first, other.first),
            max(self.last, other.last),
            self.undecoded + other.undecoded,
            min(bad, default=None),
        )


_decoder: Final = msgspec.json.Decoder(Counted)


def count_staged(spark: SparkSession, files: Sequence[Path]) -> dict[ShardId, Counted]:
    """Return what the files hold, by shard; they lie in directories `…topic=T/…day=D`."""
    if not files:
        return {}
    tasks = min(len(files), _TASKS_MAX)
    work = CountWork([[str(path) for path in files[number::tasks]] for number in range(tasks)])
    rows = spark.range(0, tasks, 1, tasks).mapInArrow(work, f"{_RESULT} string").collect()
    found: dict[ShardId, Counted] = {}
    for row in rows:
        each = _decoder.decode(row[0])
        shard = ShardId(each.topic, each.partition)
        found[shard] = found[shard].with_more(each) if shard in found else each
    return found


class CountWork:
    """A function on Arrow batches: numbers of tasks come in, `Counted` as JSON goes out."""

    def __init__(self, files: Sequence[Sequence[str]]) -> None:
        self._files: Final = tuple(files)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in map(int, batch.column(0).to_numpy()):
                texts = [
                    msgspec.json.encode(each).decode()
                    for path in self._files[number]
                    for each in count_file(Path(path))
                ]
                yield pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], [_RESULT])


def count_file(path: Path) -> Iterator[Counted]:
    """Yield what one file holds of each shard."""
    with pq.ParquetFile(path) as file:
        decoded = UNDECODED in file.schema_arrow.names
        table = file.read(["partition", "offset", *([UNDECODED] if decoded else [])])
    topic = unquote(path.parent.parent.name.partition("=")[2])
    bad = pc.is_valid(table.column(UNDECODED)) if decoded else None
    for each in pc.unique(table.column("partition")).to_pylist():
        partition = int(str(each))
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
