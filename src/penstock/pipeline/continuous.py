"""The continuous form of the jobs: duties that go on until they are told to stop.

    stages    a query of Structured Streaming over topics, through stages, to a topic
    export    a query whose batches each append what is new to Parquet (`jobs.export`)
    offload   a query whose batches each bring what is new to a tier (`jobs.offload`)
    upkeep    compaction and expiry, every so often, by this process or by the running node

Every duty can be killed at any moment: its checkpoint or bookmark says where it goes on. A query
that fails for a reason outside of our code is started again (`restarting_query`); when that does not
help, the others are stopped and its error is raised.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.errors import BadRequestError, LockedError
from penstock.pipeline.read.tiers import reachable
from penstock.pipeline.restarting_query import KeptQuery
from penstock.pipeline.stages import Chain
from penstock.pipeline.store.named_view import NamedView
from penstock.platform.log import get_logger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = get_logger(__name__)

LOOK_EVERY_S: Final = 0.2
STOP_WAIT_S: Final = 60.0


class Duties(Struct, frozen=True):
    """What `run` does."""

    source: Mapping[str, str]
    """Options of the data source: `path` or `endpoint`, `subscribe` and so on."""
    checkpoint: str
    """A directory; each query has one of its own in it."""
    target: Mapping[str, str] | None = None
    """Options of the sink that what leaves the stages goes to; None: there are no stages."""
    stages: Sequence[str] = ()
    export_to: str | None = None
    offload_to: str | None = None
    """The URL of a tier."""
    compact: bool = False
    expire: bool = False
    every_s: float = 5.0
    """Time between the batches of a query."""
    upkeep_every_s: float = 600.0


class RunResult(Struct):
    """What was done until the stop."""

    batches: int = 0
    rows: int = 0
    """Rows that the queries with stages took in."""
    rows_exported: int = 0
    rows_offloaded: int = 0
    rows_removed: int = 0
    upkeeps: int = 0
    seconds: float = 0.0


def run(
    spark: SparkSession, duties: Duties, stopping: threading.Event, *, once: bool = False
) -> RunResult:
    """Work until `stopping` is set; with `once`, until what is there now is done."""
    check(duties)
    began = time.monotonic()
    result = RunResult()
    queries: list[KeptQuery] = []
    try:
        if duties.target is not None:
            queries.append(KeptQuery("stages", _stages(spark, duties, duties.target, once=once)))
        if duties.export_to is not None:
            export = _export(spark, duties, duties.export_to, result, once=once)
            queries.append(KeptQuery("export", export))
        if duties.offload_to is not None:
            offload = _offload(spark, duties, duties.offload_to, result, once=once)
            queries.append(KeptQuery("offload", offload))
        _watch(queries, duties, result, stopping, once=once)
    finally:
        _stop(queries)
    for query in queries:
        if query.name == "stages":
            result.batches, result.rows = query.batches, query.rows
    result.seconds = time.monotonic() - began
    return result


def check(duties: Duties) -> None:
    """Refuse duties that cannot be done; `run` does so, too."""
    reads_files = duties.export_to is not None or duties.offload_to is not None
    if reads_files and "path" not in duties.source:
        raise BadRequestError(
            "an export or an offload reads the files: name the node's directory as its path"
        )
    if duties.stages and duties.target is None:
        raise BadRequestError("stages need a topic that their rows go to")
    if duties.target is None and not (reads_files or duties.compact or duties.expire):
        raise BadRequestError(
            "there is nothing to do: name a topic, an export, an offload, or an upkeep"
        )
    if "path" in duties.source:
        with NamedView(duties.source["path"]):
            pass  # there is a store
    Chain(list(duties.stages))  # there are such stages
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

    return _when_new(spark, duties, "export", export, once=once)


def _offload(
    spark: SparkSession, duties: Duties, tier: str, result: RunResult, *, once: bool
) -> Callable[[], StreamingQuery]:
    from penstock.pipeline import jobs

    path = duties.source["path"]

    def offload() -> None:
        done = jobs.offload(spark, path, tier, topics=_topics(duties))
        result.rows_offloaded += done.rows

    return _when_new(spark, duties, "offload", offload, once=once)


def _topics(duties: Duties) -> list[str] | None:
    topics = duties.source.get("subscribe")
    return None if topics is None else [topic.strip() for topic in topics.split(",")]


def _when_new(
    spark: SparkSession, duties: Duties, name: str, step: Callable[[], None], *, once: bool
) -> Callable[[], StreamingQuery]:
    """Return what starts a query that takes a step whenever there is something new."""
    # Loaded before a query's thread needs it: two threads that load the modules of Spark, which
    # import each other in circles, at the same time can each see half of them.
    import pyspark.sql.functions  # noqa: F401 - for what loading it does

    options = {"startingOffsets": "earliest", **duties.source}

    def take(_rows: DataFrame, _batch: int) -> None:
        # The batch says that there is something new; what is new is known to the step itself.
        step()

    def start() -> StreamingQuery:
        rows = spark.readStream.format("penstock").options(**options).load()
        writer = rows.writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", f"{duties.checkpoint}/{name}")
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{duties.every_s} seconds").start()

    return start


def _watch(
    queries: Sequence[KeptQuery],
    duties: Duties,
    result: RunResult,
    stopping: threading.Event,
    *,
    once: bool,
) -> None:
    next_upkeep = time.monotonic()
    wants_upkeep = duties.compact or duties.expire
    while not stopping.is_set():
        # Asked first: what ends after this question is looked at once more.
        ended = not any(query.active for query in queries)
        for query in queries:
            query.look()
        if wants_upkeep and time.monotonic() >= next_upkeep:
            _keep_up(duties, result)
            next_upkeep = time.monotonic() + duties.upkeep_every_s
        if once and ended and not any(query.active for query in queries):
            return
        stopping.wait(LOOK_EVERY_S)


def _keep_up(duties: Duties, result: RunResult) -> None:
    from penstock.pipeline import jobs

    path = duties.source.get("endpoint") or duties.source["path"]
    work: list[Callable[[], jobs.UpkeepResult]] = []
    if duties.compact:
        work.append(lambda: jobs.compact(path))
    if duties.expire:
        work.append(lambda: jobs.expire(path))
    for each in work:
        try:
            result.rows_removed += each().rows_removed
        except LockedError as error:
            # Somebody writes at this moment; the next turn tries again.
            _log.warning("upkeep_put_off", path=path, reason=str(error))
            return
    result.upkeeps += 1


def _stop(queries: Sequence[KeptQuery]) -> None:
    """Let batches that are under way end, for a while, then stop."""
    deadline = time.monotonic() + STOP_WAIT_S
    for query in queries:
        while query.busy and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
        query.stop()
