"""`penstock pipeline`: statistics, verification and maintenance jobs on a store directory."""

from __future__ import annotations

import sys
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from penstock.cli.arguments import AsJson, Directory
from penstock.cli.commands.store import output as store_output
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

app: Final = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Spark master: local[2], spark://…, yarn, k8s://…, or sc://… (Spark Connect).",
        show_default="from Spark's configuration, else local[*]",
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", help="Topic to process (repeatable).", show_default="all"),
]
Partitions = Annotated[
    int, typer.Option(min=1, help="Number of partitions of a topic that is created.")
]
_NEEDED: Final = ("pyspark", "pyarrow", "pandas", "numpy")


SparkLogs = Annotated[
    bool, typer.Option("--spark-logs", help="Print Spark and Java logs at level WARN and above.")
]


@app.callback()
def pipeline(context: typer.Context, spark_logs: SparkLogs = False) -> None:
    """Run Spark jobs on a store directory.

    Requires Java and the extra [b]spark[/b]. Jobs are idempotent: a job that was killed can be
    repeated without duplicates.
    """
    context.obj = spark_logs
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing and context.invoked_subcommand != "package":
        raise SetupError(
            f"`penstock pipeline` needs {', '.join(missing)}: pip install 'penstock[spark]'"
        )


class _LateSession:
    """A session that starts at its first use, after the job has checked its arguments."""

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
        # Imported here: other commands start without Spark's modules.
        from penstock import pipeline as spark_pipeline

        spark = spark_pipeline.session("penstock pipeline", self._master, quiet=not self._logs)
        if not spark_pipeline.is_connect(spark):
            spark.sparkContext.setLogLevel("WARN" if self._logs else "OFF")
        return spark


def start_session(context: typer.Context, master: str | None) -> SparkSession:
    """Return a session that starts after the job has checked its arguments."""
    return cast("SparkSession", _LateSession(master, logs=bool(context.obj)))


@app.command()
def stats(
    context: typer.Context,
    directory: Directory,
    topics: Topics = None,
    every_s: Annotated[
        int, typer.Option("--every", metavar="SECONDS", min=1, help="Interval of the time series.")
    ] = 3600,
    top_keys: Annotated[
        int, typer.Option(min=0, help="Number of most frequent keys to report per topic.")
    ] = 10,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot", metavar="FILE", help="Write charts to this .html, .png, .svg or .pdf file."
        ),
    ] = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Report records and bytes over time, record sizes and the most frequent keys of topics.

    Read-only; the store may be in use.

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
        str | None, typer.Option("--tier", metavar="URL", help="Compare with this tier.")
    ] = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Verify a store, then read all of its records through Spark and count them.

    Runs [b]penstock store verify[/b] in this process and reads in parallel Spark tasks. Read-only.
    Exits with 1 if there is damage.

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
                ("shard in the tier", "#from", "#to", "#rows", "#different"),
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
    """Rebuild consume queues, key index, time index and checksums from the commit log.

    Runs in this process without Spark, and takes the store's lock: stop its writer first.

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
            ("shards with a new end", ", ".join(result.shards_changed) or "none"),
            ("seconds", f"{result.seconds:.1f}"),
        )
    )


@app.command()
def compact(directory: Directory, topics: Topics = None, as_json: AsJson = False) -> None:
    """Compact the topics with cleanup=compact: keep the newest record of each key.

    Runs in this process without Spark, and takes the store's lock. For a running node, give its
    host:port instead of the directory; the node then compacts.

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
        typer.Option(
            metavar="HOURS",
            help="Delete commit log files older than this, for topics without a retention time.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete records that the retention policies of their topics no longer keep.

    Runs in this process without Spark, and takes the store's lock. For a running node, give its
    host:port instead of the directory; the node then deletes.

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
        ("shard", "#old start", "#start", "#end", "#removed"),
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
