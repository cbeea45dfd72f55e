"""`penstock pipeline …`: jobs that Spark runs on a store directory."""

from __future__ import annotations

import sys
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from penstock.cli.arguments import AsJson, Directory
from penstock.cli.commands import store_output
from penstock.cli.exit_codes import DAMAGED
from penstock.cli.output import (
    print_fields,
    print_json,
    print_line,
    print_table,
    printable,
    progress_bar,
    size_text,
    time_text,
)
from penstock.errors import SetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.jobs import StatsResult, UpkeepResult

app: Final = typer.Typer(
    help="Run jobs on a store directory with Spark.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Where Spark runs: local[2], spark://…, yarn, k8s://…, sc://… (Connect).",
        show_default="as Spark is configured, else local[*]",
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", help="Only this topic; may be repeated.", show_default="all"),
]
_NEEDED: Final = ("pyspark", "pyarrow", "pandas", "numpy")


SparkLogs = Annotated[
    bool, typer.Option("--spark-logs", help="Also show what Spark and Java log, from WARN on.")
]


@app.callback()
def pipeline(context: typer.Context, spark_logs: SparkLogs = False) -> None:
    """Run jobs on a store directory with Spark.

    Needs the extra [b]spark[/b] and Java. Every job may be repeated, and may be killed and
    repeated: nothing is there twice.
    """
    context.obj = spark_logs
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing and context.invoked_subcommand != "package":
        raise SetupError(
            f"`penstock pipeline` needs {', '.join(missing)}: pip install 'penstock[spark]'"
        )


class _LateSession:
    """A session that starts when it is first used: jobs look at their arguments before."""

    def __init__(self, master: str | None, *, logs: bool) -> None:
        self._master: Final = master
        self._logs: Final = logs
        self._lock: Final = threading.Lock()
        self._started: SparkSession | None = None

    def __getattr__(self, name: str) -> object:
        with self._lock:
            if self._started is None:
                self._started = self._start()
        return getattr(self._started, name)

    def _start(self) -> SparkSession:
        # Here, so that no other command waits for Spark's modules.
        from penstock import pipeline as spark_pipeline

        spark = spark_pipeline.session("penstock pipeline", self._master, quiet=not self._logs)
        if not spark_pipeline.is_connect(spark):
            spark.sparkContext.setLogLevel("WARN" if self._logs else "OFF")
        return spark


def start_session(context: typer.Context, master: str | None) -> SparkSession:
    """Return a session that starts when a job has found nothing wrong with its arguments."""
    return cast("SparkSession", _LateSession(master, logs=bool(context.obj)))


@app.command()
def stats(
    context: typer.Context,
    directory: Directory,
    topics: Topics = None,
    every_s: Annotated[
        int, typer.Option("--every", metavar="SECONDS", min=1, help="Steps of the time table.")
    ] = 3600,
    top_keys: Annotated[int, typer.Option(min=0, help="How many keys of each topic.")] = 10,
    plot: Annotated[
        str | None,
        typer.Option("--plot", metavar="FILE", help="Also as .html, .png, .svg or .pdf."),
    ] = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Measure topics: records and bytes over time, sizes, the keys with the most records.

    The store is only read, and may be in use.

    Example: [b]penstock pipeline stats data --every 60[/b]
    """
    from penstock.pipeline import jobs

    if plot is not None:
        jobs.check_plot(plot)
    with progress_bar() as progress:
        result = jobs.stats(
            start_session(context, master),
            directory,
            topics=topics,
            every_s=every_s,
            top_keys=top_keys,
            progress=progress,
        )
    if plot is not None:
        jobs.save_stats(result, plot)
    if as_json:
        print_json([result])
        return
    _print_stats(result)


def _print_stats(result: StatsResult) -> None:
    print_table(
        ("topic", "#shards", "#rows", "#at most", "#size", "#largest", "first", "last"),
        (
            (
                topic.topic,
                topic.shards,
                topic.rows,
                topic.rows_bound,
                size_text(topic.bytes),
                size_text(topic.size_max),
                time_text(topic.first_ms),
                time_text(topic.last_ms),
            )
            for topic in result.topics
        ),
    )
    print_table(
        ("topic", "from", "#rows", "#size", "#rows/s", "#bytes/s"),
        (
            (
                interval.topic,
                time_text(interval.start_ms),
                interval.rows,
                size_text(interval.bytes),
                f"{interval.rows_per_s:.1f}",
                f"{interval.bytes_per_s:.1f}",
            )
            for interval in result.intervals
        ),
    )
    print_table(
        ("topic", "key", "#rows", "#size"),
        (
            (top_key.topic, printable(top_key.key, 60), top_key.rows, size_text(top_key.bytes))
            for top_key in result.top_keys
        ),
    )


@app.command()
def verify(
    context: typer.Context,
    directory: Directory,
    tier: Annotated[
        str | None, typer.Option("--tier", metavar="URL", help="Also compare with this tier.")
    ] = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Check everything in a store, then read all of it through Spark and count.

    The full check of [b]penstock store verify[/b] runs in this process; the reading is spread over
    Spark's tasks. Exits with 1 when there is damage. Nothing is changed.

    Example: [b]penstock pipeline verify data[/b]
    """
    from penstock.pipeline import jobs

    with progress_bar() as progress:
        result = jobs.verify(
            start_session(context, master), directory, tier=tier, progress=progress
        )
    if as_json:
        print_json([result])
    else:
        print_table(
            ("shard", "#from", "#to", "#rows", "#at most", "#size"),
            (
                (
                    shard.shard,
                    shard.start,
                    shard.end,
                    shard.rows,
                    shard.rows_max,
                    size_text(shard.bytes),
                )
                for shard in result.shards
            ),
        )
        if tier is not None:
            print_table(
                ("shard in the tier", "#from", "#to", "#rows", "#not the same"),
                (
                    (check.shard, check.start, check.end, check.rows, check.missing)
                    for check in result.tier
                ),
            )
        store_output.print_verify(result.report, as_json=False)
        for problem in result.problems:
            print_line(problem)
    sys.exit(0 if result.is_whole else DAMAGED)


@app.command()
def rebuild(directory: Directory, as_json: AsJson = False) -> None:
    """Build queues, key index, times and checksums anew from the log.

    Runs in this process, without Spark, and takes the lock: nobody else may have the store open.

    Example: [b]penstock pipeline rebuild data/segment[/b]
    """
    from penstock.pipeline import jobs

    with progress_bar() as progress:
        result = jobs.rebuild(directory, progress=progress)
    if as_json:
        print_json([result])
        return
    print_fields(
        (
            ("records", result.rows),
            ("size", size_text(result.bytes)),
            ("damaged places", len(result.report.damaged)),
            ("shards that end elsewhere", ", ".join(result.shards_changed) or "none"),
            ("seconds", f"{result.seconds:.1f}"),
        )
    )


@app.command()
def compact(directory: Directory, topics: Topics = None, as_json: AsJson = False) -> None:
    """Remove records whose key was written again later, in topics that are compacted.

    Runs in this process, without Spark, and takes the lock: nobody else may have the store open. A
    running node does it itself: name its host:port instead of the directory.

    Example: [b]penstock pipeline compact data/segment[/b]
    """
    from penstock.pipeline import jobs

    with progress_bar() as progress:
        result = jobs.compact(directory, topics=topics, progress=progress)
    _print_upkeep(result, as_json=as_json)


@app.command()
def expire(
    directory: Directory,
    reserved_hours: Annotated[
        float | None,
        typer.Option(help="Also remove log files that are older, of topics without a time."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove what the topics' own retention no longer keeps.

    Runs in this process, without Spark, and takes the lock: nobody else may have the store open. A
    running node does it itself: name its host:port instead of the directory.

    Example: [b]penstock pipeline expire data/segment[/b]
    """
    from penstock.pipeline import jobs

    with progress_bar() as progress:
        result = jobs.expire(directory, reserved_hours=reserved_hours, progress=progress)
    _print_upkeep(result, as_json=as_json)


def _print_upkeep(result: UpkeepResult, *, as_json: bool) -> None:
    if as_json:
        print_json([result])
        return
    print_table(
        ("shard", "#began at", "#begins at", "#ends at", "#removed"),
        (
            (shard.shard, shard.earliest_before, shard.earliest, shard.commit, shard.removed)
            for shard in result.shards
        ),
    )
    print_fields(
        (
            ("records removed", result.rows_removed),
            ("size", size_text(result.bytes_removed)),
            ("files removed", result.files_removed),
            ("left to their node", len(result.left_to_node)),
            ("seconds", f"{result.seconds:.1f}"),
        )
    )
