"""Runs Spark's part of a job: says how far it is, and turns its failures into our own errors.

An error that our code raised in a worker comes back as a Python traceback inside a Java one; only
its last sentence helps the user.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from penstock import errors
from penstock.errors import (
    BadRequestError,
    DeadlineError,
    LockedError,
    NotAStoreError,
    NotSupportedError,
    RetryableError,
    SetupError,
    StoreError,
)
from penstock.pipeline.spark_session.masters import is_connect
from penstock.platform.log import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = get_logger(__name__)

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""

_POLL_INTERVAL_S: Final = 0.5
_SPARK: Final = "Spark: "
_RAISED: Final = re.compile(r"penstock\.errors\.(\w+): ([^\n]+)")
_JAVA_RAISED: Final = re.compile(r"An error occurred while calling .*\n: (.+)")
# The line of a Python traceback that names what was raised: the first one that is not indented.
_PYTHON_RAISED: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t]+.*\n)*(\S.*)")
_TEMPORARY: Final = (LockedError, RetryableError, DeadlineError)
"""Errors that may not come back when the job is repeated."""
_KINDS: Final[dict[str, type[StoreError]]] = {
    kind.__name__: kind
    for kind in (BadRequestError, LockedError, NotAStoreError, NotSupportedError, SetupError)
}


@contextmanager
def spark_work(spark: SparkSession, step: str, progress: Progress | None) -> Iterator[None]:
    """Run a block that starts Spark jobs; show the tasks done, raise `StoreError` on failure."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j has no types
    from pyspark.errors import PySparkException

    done = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(spark, step, progress, done), name="spark-progress", daemon=True
    )
    # Spark Connect has no context, and so no tracker of stages.
    watched = progress is not None and not is_connect(spark)
    if watched:
        watcher.start()
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise as_store_error(str(error)) from error
    finally:
        done.set()
        if watched:
            watcher.join()


def _watch(
    spark: SparkSession, step: str, progress: Progress | None, done: threading.Event
) -> None:
    assert progress is not None
    tracker = spark.sparkContext.statusTracker()
    tasks: dict[int, tuple[int, int]] = {}
    while not done.wait(_POLL_INTERVAL_S):
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                tasks[stage] = info.numCompletedTasks, info.numTasks
        if tasks:
            newest = tasks[max(tasks)]
            progress(step, newest[0], newest[1])


def is_final(text: str) -> bool:
    """Say whether Spark reports an error that our own code raised and that a repetition would raise
    again."""
    for name, sentence in _RAISED.findall(text)[-1:]:
        kind = getattr(errors, name, StoreError)
        # What `spark_work` wrapped inside of a worker or a batch begins like this, and is Spark's.
        return not sentence.startswith(_SPARK) and not issubclass(kind, _TEMPORARY)
    return False


def as_store_error(text: str) -> StoreError:
    """Return our own error for what Spark says about a failure."""
    raised = _RAISED.findall(text)
    if raised:
        kind, sentence = raised[-1]
        return _KINDS.get(kind, StoreError)(sentence.strip())
    foreign = _PYTHON_RAISED.findall(text)
    # "An error occurred while calling o12.parquet." says nothing; what Java raised comes next.
    lines = foreign[-1:] or _JAVA_RAISED.findall(text)[:1]
    lines = lines or [line for line in text.splitlines() if line.strip()]
    _log.debug("spark_failed", text=text)
    return StoreError(f"{_SPARK}{lines[0].strip() if lines else 'no reason was given'}")
