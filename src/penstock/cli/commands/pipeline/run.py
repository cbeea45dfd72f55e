"""The `run` (continuous) and `lag` commands of `penstock pipeline`."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Annotated

import typer

from penstock.cli.arguments import AsJson
from penstock.cli.commands.pipeline.jobs import Master, Partitions, Topics, app, start_session
from penstock.cli.output import print_fields, print_json, print_table, time_text
from penstock.cli.target import Data, Namespace, Server, open_target

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="Store directory, or host:port of a node.", show_default=False
    ),
]
Checkpoint = Annotated[
    str, typer.Option("--checkpoint", metavar="DIR", help="Directory of the checkpoints.")
]
Stages = Annotated[
    list[str] | None,
    typer.Option(
        "--stage",
        metavar="MODULE:FUNCTION",
        help="Function to apply to the rows (repeatable, in order).",
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to", metavar="TARGET", help="Store directory or host:port of a node to write rows to."
    ),
]
ToTopic = Annotated[
    str | None, typer.Option("--to-topic", metavar="TOPIC", help="Topic to write rows to.")
]
Export = Annotated[
    str | None,
    typer.Option(
        "--export", metavar="DIR", help="Append new records to Parquet files in this directory."
    ),
]
Offload = Annotated[
    str | None, typer.Option("--offload", metavar="URL", help="Upload new records to this tier.")
]
Compact = Annotated[bool, typer.Option("--compact", help="Compact periodically.")]
Expire = Annotated[bool, typer.Option("--expire", help="Apply retention periodically.")]
Every = Annotated[
    float, typer.Option("--every", metavar="SECONDS", min=0.1, help="Seconds between batches.")
]
UpkeepEvery = Annotated[
    float,
    typer.Option(
        "--upkeep-every", metavar="SECONDS", min=1, help="Seconds between maintenance runs."
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Exit after processing all available records.")]


@app.command()
def run(
    context: typer.Context,
    source: Source,
    checkpoint: Checkpoint,
    topics: Topics = None,
    stages: Stages = None,
    to: To = None,
    to_topic: ToTopic = None,
    partitions: Partitions = 1,
    export: Export = None,
    offload: Offload = None,
    compact: Compact = False,
    expire: Expire = False,
    every_s: Every = 5,
    upkeep_every_s: UpkeepEvery = 600,
    once: Once = False,
    namespace: Namespace = "default",
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Continuously transform, export, offload, compact and expire until SIGINT or SIGTERM.

    The current batch is finished before the exit; the next start resumes from the checkpoint. Each
    row is processed exactly once.

    Example: [b]penstock pipeline run data --checkpoint state --stage shop:clean --to clean
    --to-topic orders[/b]
    """
    from penstock.pipeline.continuous import Duties, check
    from penstock.pipeline.continuous import run as run_duties

    stopping = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    duties = Duties(
        source=_place(source, namespace) | ({"subscribe": ",".join(topics)} if topics else {}),
        checkpoint=checkpoint,
        target=_target(to, to_topic, partitions, namespace),
        stages=stages or (),
        export_to=export,
        offload_to=offload,
        compact=compact,
        expire=expire,
        every_s=every_s,
        upkeep_every_s=upkeep_every_s,
    )
    check(duties)
    spark = start_session(context, master)
    spark.version  # noqa: B018 - starts it: Spark takes SIGINT for itself when it does
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    typer.echo("running; stop with Ctrl-C (SIGINT) or SIGTERM", err=True)
    result = run_duties(spark, duties, stopping, once=once)
    if as_json:
        print_json([result])
        return
    print_fields(
        (
            ("batches", result.batches),
            ("rows through stages", result.rows),
            ("rows exported", result.rows_exported),
            ("rows offloaded", result.rows_offloaded),
            ("maintenance runs", result.upkeeps),
            ("records removed", result.rows_removed),
            ("seconds", f"{result.seconds:.1f}"),
        )
    )


def _place(text: str, namespace: str) -> dict[str, str]:
    host, separator, port = text.rpartition(":")
    if separator and host and port.isdigit() and "/" not in text:
        return {"endpoint": text, "namespace": namespace}
    return {"path": text}


def _target(
    to: str | None, topic: str | None, partitions: int, namespace: str
) -> dict[str, str] | None:
    if to is None and topic is None:
        return None
    if to is None or topic is None:
        raise typer.BadParameter("--to and --to-topic must be given together")
    return {
        **_place(to, namespace),
        "topic": topic,
        "createTopics": "true",
        "partitions": str(partitions),
    }


@app.command()
def lag(
    groups: Annotated[
        list[str] | None,
        typer.Option("--group", "-g", metavar="GROUP", help="Group to show (repeatable)."),
    ] = None,
    as_json: AsJson = False,
    server: Server = None,
    data: Data = None,
    namespace: Namespace = "default",
) -> None:
    """Show the lag of consumer groups by partition.

    Example: [b]penstock pipeline lag --server 127.0.0.1:9190[/b]
    """
    from penstock.pipeline import jobs

    with open_target(server, data, namespace) as store:
        result = jobs.lag(store, groups=groups)
    if as_json:
        print_json(result.partitions)
        return
    print_table(
        ("group", "topic", "#partition", "#offset", "#end", "#lag", "last commit"),
        (
            (
                partition.group,
                partition.topic,
                partition.partition,
                partition.offset,
                partition.end,
                partition.lag,
                time_text(partition.last_commit_ms),
            )
            for partition in result.partitions
        ),
    )
