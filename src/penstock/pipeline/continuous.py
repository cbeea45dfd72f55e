"""Continuous jobs: run until they are stopped.

    stages    a Structured Streaming query from topics through stages to a topic
    export    a query whose batches append new records to Parquet (`jobs.export`)
    offload   a query whose batches upload new records to a tier (`jobs.offload`)
    upkeep    periodic compaction and expiry, by this process or by the running node

Every job may be killed at any moment and resumes from its checkpoint or bookmark. A query that
fails for a reason outside of this package is restarted (`restarting_query`); after the last
attempt, `run` stops the other queries and raises its error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.errors import BadRequestError, LockedError
from penstock.pipeline.read.tiers import reachable
from penstock.pipeline.restarting_query import RestartingQuery
from penstock.pipeline.stages import Chain
from penstock.pipeline.store.named_view import NamedView
from penstock.platform.log import get_logger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = get_logger(__name__)

POLL_INTERVAL_S: Final = 0.2
STOP_WAIT_S: Final = 60.0


class Duties(Struct, frozen=True):
    """The jobs that `run` runs."""

    source: Mapping[str, str]
    """Options of the data source: `path` or `endpoint`, `subscribe` and so on."""
    checkpoint: str
    """Directory of the checkpoints; each query has a subdirectory."""
    target: Mapping[str, str] | None = None
    """Options of the sink for the rows of the stages; None: no stages."""
    stages: Sequence[str] = ()
    export_to: str | None = None
    offload_to: str | None = None
    """URL of the tier."""
    compact: bool = False
    expire: bool = False
    every_s: float = 5.0
    """Seconds between the batches of a query."""
    upkeep_every_s: float = 600.0


class RunResult(Struct):
    """Totals of a run."""

    batches: int = 0
    rows: int = 0
    """Rows read by the `stages` query."""
    rows_exported: int = 0
    rows_offloaded: int = 0
    rows_removed: int = 0
    upkeeps: int = 0
    seconds: float = 0.0


def run(
    spark: SparkSession, duties: Duties, stopping: threading.Event, *, once: bool = False
) -> RunResult:
    """Run until `stopping` is set; with `once`, until all available records are processed."""
    check(duties)
    began = time.monotonic()
    result = RunResult()
    queries: list[RestartingQuery] = []
    try:
        if duties.target is not None:
            queries.append(
                RestartingQuery("stages", _stages(spark, duties, duties.target, once=once))
            )
        if duties.export_to is not None:
            export = _export(spark, duties, duties.export_to, result, once=once)
            queries.append(RestartingQuery("export", export))
        if duties.offload_to is not None:
            offload = _offload(spark, duties, duties.offload_to, result, once=once)
            queries.append(RestartingQuery("offload", offload))
        _watch(queries, duties, result, stopping, once=once)
    finally:
        _stop(queries)
    for query in queries:
        if query.name == "stages":
            result.batches, result.rows = query.batches, query.rows
    result.seconds = time.monotonic() - began
    return result


def check(duties: Duties) -> None:
    """Raise `BadRequestError` for duties that cannot run; `run` calls it too."""
    reads_files = duties.export_to is not None or duties.offload_to is not None
    if reads_files and "path" not in duties.source:
        raise BadRequestError(
            "export and offload read the store's files: set 'path' to the node's data directory"
        )
    if duties.stages and duties.target is None:
        raise BadRequestError("stages need a target topic for their rows: set the target")
    if duties.target is None and not (reads_files or duties.compact or duties.expire):
        raise BadRequestError(
            "nothing to run: give a target topic, an export, an offload, compact or expire"
        )
    if "path" in duties.source:
        with NamedView(duties.source["path"]):
            pass  # raises unless the directory holds a store
    Chain(list(duties.stages))  # raises for an unknown stage
    if duties.offload_to is not None:
        reachable(duties.offload_to)


def _stages(
    spark: SparkSession, duties: Duties, target: Mapping[str, str], *, once: bool
) -> Callable[[], StreamingQuery]:
    chain = Chain(list(duties.stages))
    every_s = None if once else duties.every_s
    place = f"{duties.checkpoint}/stages"
    return lambda: chain.start(spark, duties.source, target, place, every_s=every_s)


def _export(
    spark: SparkSession, duties: Duties, target: str, result: RunResult, *, once: bool
) -> Callable[[], StreamingQuery]:
    from penstock.pipeline import jobs

    path = duties.source["path"]

    def export() -> None:
        done = jobs.export(spark, path, target, topics=_topics(duties))
        result.rows_exported += done.rows

    return _query_on_new_data(spark, duties, "export", export, once=once)


def _offload(
    spark: SparkSession, duties: Duties, tier: str, result: RunResult, *, once: bool
) -> Callable[[], StreamingQuery]:
    from penstock.pipeline import jobs

    path = duties.source["path"]

    def offload() -> None:
        done = jobs.offload(spark, path, tier, topics=_topics(duties))
        result.rows_offloaded += done.rows

    return _query_on_new_data(spark, duties, "offload", offload, once=once)


def _topics(duties: Duties) -> list[str] | None:
    topics = duties.source.get("subscribe")
    return None if topics is None else [topic.strip() for topic in topics.split(",")]


def _query_on_new_data(
    spark: SparkSession, duties: Duties, name: str, step: Callable[[], None], *, once: bool
) -> Callable[[], StreamingQuery]:
    """Return a function that starts a query which calls `step` whenever there are new records."""
    # Imported before a query's thread needs it: Spark's modules import each other in cycles, and
    # two threads that import them concurrently can each see a partial module.
    import pyspark.sql.functions  # noqa: F401 - for what loading it does

    options = {"startingOffsets": "earliest", **duties.source}

    def run_step(_rows: DataFrame, _batch: int) -> None:
        # The batch only signals new records; the step keeps its own position.
        step()

    def start() -> StreamingQuery:
        rows = spark.readStream.format("penstock").options(**options).load()
        writer = rows.writeStream.foreachBatch(run_step)
        writer = writer.option("checkpointLocation", f"{duties.checkpoint}/{name}")
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{duties.every_s} seconds").start()

    return start


def _watch(
    queries: Sequence[RestartingQuery],
    duties: Duties,
    result: RunResult,
    stopping: threading.Event,
    *,
    once: bool,
) -> None:
    next_upkeep = time.monotonic()
    wants_upkeep = duties.compact or duties.expire
    while not stopping.is_set():
        # Read before polling: a query that ends in between is polled once more.
        ended = not any(query.active for query in queries)
        for query in queries:
            query.poll()
        if wants_upkeep and time.monotonic() >= next_upkeep:
            _run_maintenance(duties, result)
            next_upkeep = time.monotonic() + duties.upkeep_every_s
        if once and ended and not any(query.active for query in queries):
            return
        stopping.wait(POLL_INTERVAL_S)


def _run_maintenance(duties: Duties, result: RunResult) -> None:
    from penstock.pipeline import jobs

    path = duties.source.get("endpoint") or duties.source["path"]
    work: list[Callable[[], jobs.UpkeepResult]] = []
    if duties.compact:
        work.append(lambda: jobs.compact(path))
    if duties.expire:
        work.append(lambda: jobs.expire(path))
    for job in work:
        try:
            result.rows_removed += job().rows_removed
        except LockedError as error:
            # Another process has the store open; the next round tries again.
            _log.warning("upkeep_put_off", path=path, reason=str(error))
            return
    result.upkeeps += 1


def _stop(queries: Sequence[RestartingQuery]) -> None:
    """Wait up to `STOP_WAIT_S` for running batches, then stop the queries."""
    deadline = time.monotonic() + STOP_WAIT_S
    for query in queries:
        while query.busy and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        query.stop()
