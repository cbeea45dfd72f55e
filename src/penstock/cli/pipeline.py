"""`penstock pipeline …`: jobs that Spark runs on a store directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.arguments import AsJson, Directory
from penstock.cli.output import print_fields, print_json, print_table, progress_bar, size_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app: Final = typer.Typer(
    help="Run jobs on a store directory with Spark.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Master = Annotated[
    str, typer.Option("--master", metavar="URL", help="Where Spark runs: local[*], spark://…")
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", help="Only this topic; may be repeated.", show_default="all"),
]
LOCAL: Final = "local[*]"


@app.callback()
def pipeline() -> None:
    """Run jobs on a store directory with Spark.

    Needs the extra [b]spark[/b] and Java. Every job may be repeated, and may be killed and
    repeated: nothing is there twice.
    """


def _session(master: str) -> SparkSession:
    # Here, so that no other command waits for Spark's modules.
    from penstock.pipeline import session

    spark = session("penstock pipeline", master)
    spark.sparkContext.setLogLevel("OFF")
    return spark


@app.command()
def export(
    directory: Directory,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="Where Parquet goes.", show_default=False)
    ],
    topics: Topics = None,
    strict: Annotated[
        bool,
        typer.Option(help="Stop at damaged records, and at records that were removed too early."),
    ] = True,
    master: Master = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Append what is new in topics to Parquet files, by topic and day.

    Goes on where the last run ended: TARGET/_penstock/bookmark.json has the offsets. The store is
    only read, and may be in use.

    Example: [b]penstock pipeline export data parquet --topic orders[/b]
    """
    from penstock.pipeline import jobs

    with progress_bar() as progress:
        result = jobs.export(
            _session(master), directory, target, topics=topics, strict=strict, progress=progress
        )
    if as_json:
        print_json([result])
        return
    print_table(
        ("shard", "#from", "#to", "#rows", "#deleted", "#left out", "#lost"),
        (
            (each.shard, each.start, each.end, each.rows, each.deleted, each.left_out, each.lost)
            for each in result.shards
        ),
    )
    print_fields(
        (
            ("run", result.run),
            ("rows", result.rows),
            ("files", result.files),
            ("size", size_text(result.bytes_written)),
            ("files of a killed run", result.files_recovered),
            ("seconds", f"{result.seconds:.1f}"),
        )
    )
