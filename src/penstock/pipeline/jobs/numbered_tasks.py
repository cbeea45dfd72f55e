"""Runs a job's own tasks in Spark's workers; each result returns as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec
import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RESULT: Final = "result"
Task = TypeVar("Task")
Result = TypeVar("Result")


def run_tasks(
    spark: SparkSession,
    tasks: Sequence[Task],
    work: Callable[[Task], Result],
    kind: type[Result],
) -> list[Result]:
    """Return the results of `work` on each task; both are pickled to the workers."""
    if not tasks:
        return []
    count = len(tasks)
    numbers = spark.range(0, count, 1, count)
    rows = numbers.mapInArrow(NumberedWork(tasks, work), f"{_RESULT} string").collect()
    decoder = msgspec.json.Decoder(kind)
    return [decoder.decode(row[0]) for row in rows]


class NumberedWork(Generic[Task, Result]):
    """A function on Arrow batches: numbers of tasks come in, results go out."""

    def __init__(self, tasks: Sequence[Task], work: Callable[[Task], Result]) -> None:
        self._tasks: Final = tuple(tasks)
        self._work: Final = work

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in map(int, batch.column(0).to_numpy()):
                text = msgspec.json.encode(self._work(self._tasks[number])).decode()
                yield pa.RecordBatch.from_arrays([pa.array([text])], [_RESULT])
