"""Stages Parquet files of an export in Spark's Python workers, where the records are read.

A task reads its ranges and writes what it reads, by topic and day, without a detour through the
JVM's rows. Only the files that a finished task names count: the driver removes files of killed and
repeated attempts before it counts the rest.

    staging/topic=orders/day=2026-01-31/part-00007-….parquet
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.pipeline.jobs.numbered_tasks import run_tasks
from penstock.pipeline.options.filters import Filters
from penstock.pipeline.options.source_options import read_options
from penstock.pipeline.read.planning import TaskPartition
from penstock.pipeline.read.ranges import batch_ranges
from penstock.pipeline.read.reading import Scan
from penstock.pipeline.read.sources import open_source

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

GROUP_SIZE: Final = 32 << 20
"""A row group of one file is written when it has so many bytes."""
HELD_SIZE_MAX: Final = 128 << 20
"""What a task holds of all files before it writes the largest group."""
OPEN_FILES_MAX: Final = 64
_DAY_US: Final = 86_400_000_000
_EPOCH: Final = date(1970, 1, 1)
# What Spark and Hive escape in the name of a partition's directory.
_ESCAPED: Final = frozenset([*map(chr, range(1, 0x20)), *"\"#%'*/:=?\\\x7f{[]^"])


class Partitioning(NamedTuple):
    """How files are laid out below the staging directory."""

    topic: str
    """The names of the directories' keys."""
    day: str
    keeps_topic: bool
    """Whether the files have the column `topic`, too."""


class Place(NamedTuple):
    topic: str
    day: int
    """Days since 1970-01-01, UTC."""


def stage_ranges(
    spark: SparkSession, options: dict[str, str], staging: Path, layout: Partitioning
) -> None:
    """Read what the options say, and leave it as files below `staging`."""
    read = read_options(options, streaming=False)
    with closing(open_source(read)) as source:
        tasks = source.tasks(list(batch_ranges(source, read)), read, Filters())
    columns = options["columns"].split(",")
    scan = Scan.of(read, columns, Filters(), uuid4().hex)
    work = StageWork(scan, str(staging.resolve()), layout)
    paths_by_task = run_tasks(spark, list(enumerate(tasks)), work, list[str])
    staged = {path for paths in paths_by_task for path in paths}
    for path in staging.rglob("*.parquet"):
        if str(path.relative_to(staging)) not in staged:
            path.unlink()


class StageWork:
    """Writes what a task reads; returns the paths of its files, below `staging`."""

    def __init__(self, scan: Scan, staging: str, layout: Partitioning) -> None:
        self._scan: Final = scan
        self._staging: Final = staging
        self._layout: Final = layout

    def __call__(self, task: tuple[int, TaskPartition]) -> list[str]:
        number, partition = task
        with closing(StagedFiles(Path(self._staging), number, self._layout)) as files:
            for rows in self._scan.batches(partition):
                files.add(rows)
        return files.paths


class StagedFiles:
    """The files of one task. Rows stay in the order in which they come: by shard and offset."""

    def __init__(self, staging: Path, task: int, layout: Partitioning) -> None:
        self._staging: Final = staging
        self._prefix: Final = f"part-{task:05d}-{uuid4().hex}"
        self._layout: Final = layout
        self._held: Final[dict[Place, list[pa.RecordBatch]]] = {}
        self._sizes: Final[dict[Place, int]] = {}
        self._open: Final[dict[Place, pq.ParquetWriter]] = {}
        self.paths: Final[list[str]] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows of one topic."""
        topic = rows.column("topic")[0].as_py()
        times = rows.column("timestamp").cast(pa.int64()).to_numpy()
        days = times // _DAY_US
        for day, part in _by_day(rows, days):
            self._hold(Place(topic, day), part)

    def close(self) -> None:
        """Write what is held, and finish all files."""
        for place in list(self._held):
            self._write(place)
        for place in list(self._open):
            self._open.pop(place).close()

    def _hold(self, place: Place, rows: pa.RecordBatch) -> None:
        if not self._layout.keeps_topic:
            rows = rows.drop_columns(["topic"])
        self._held.setdefault(place, []).append(rows)
        self._sizes[place] = self._sizes.get(place, 0) + rows.nbytes
        if self._sizes[place] >= GROUP_SIZE:
            self._write(place)
        elif sum(self._sizes.values()) >= HELD_SIZE_MAX:
            self._write(max(self._sizes, key=self._sizes.__getitem__))

    def _write(self, place: Place) -> None:
        del self._sizes[place]
        table = pa.Table.from_batches(self._held.pop(place))
        self._writer(place, table.schema).write_table(table, row_group_size=table.num_rows)

    def _writer(self, place: Place, schema: pa.Schema) -> pq.ParquetWriter:
        writer = self._open.pop(place, None)
        if writer is None:
            while len(self._open) >= OPEN_FILES_MAX:
                # The one used longest ago; what comes later of its day goes into another file.
                self._open.pop(next(iter(self._open))).close()
            path = self._path(place)
            path.parent.mkdir(parents=True, exist_ok=True)
            self.paths.append(str(path.relative_to(self._staging)))
            writer = pq.ParquetWriter(
                path,
                schema,
                compression="zstd",
                # Values seldom repeat, and looking for repetitions of long ones is slow.
                use_dictionary=[  # type: ignore[arg-type]  # names are documented, not declared
                    name for name in schema.names if name != "value"
                ],
                store_schema=False,
            )
        self._open[place] = writer
        return writer

    def _path(self, place: Place) -> Path:
        layout = self._layout
        directory = f"{layout.topic}={escaped(place.topic)}/{layout.day}={day_text(place.day)}"
        return self._staging / directory / f"{self._prefix}-{len(self.paths):04d}.parquet"


def _by_day(rows: pa.RecordBatch, days: NDArray[np.int64]) -> Iterator[tuple[int, pa.RecordBatch]]:
    first = int(days[0])
    if (days == first).all():
        yield first, rows
        return
    order = np.argsort(days, kind="stable")
    ordered, in_order = days[order], rows.take(order)
    starts = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], len(ordered)], strict=True):
        yield int(ordered[start]), in_order.slice(start, end - start)


def day_text(day: int) -> str:
    """Return a day as Spark writes it in a directory's name."""
    try:
        return (_EPOCH + timedelta(days=day)).isoformat()
    except OverflowError:
        text = str(np.datetime64(day, "D"))
        return text if text.startswith("-") else f"+{text}"


def escaped(text: str) -> str:
    """Return a value as Spark writes it in a directory's name."""
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)
