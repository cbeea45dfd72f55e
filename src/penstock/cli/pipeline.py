"""`penstock pipeline …`: jobs that Spark runs on a store directory."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli import store_output
from penstock.cli.arguments import AsJson, Directory
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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.jobs import (
        ExportResult,
        IcebergPlace,
        KafkaImportResult,
        StatsResult,
        UpkeepResult,
    )

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
DAMAGED: Final = 1
KAFKA: Final = "kafka://"


@app.callback()
def pipeline() -> None:
    """Run jobs on a store directory with Spark.

    Needs the extra [b]spark[/b] and Java. Every job may be repeated, and may be killed and
    repeated: nothing is there twice.
    """


def start_session(master: str) -> SparkSession:
    # Here, so that no other command waits for Spark's modules.
    from penstock.pipeline import session

    spark = session("penstock pipeline", master)
    spark.sparkContext.setLogLevel("OFF")
    return spark


@app.command()
def export(
    directory: Directory,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="Where files go.", show_default=False)
    ],
    topics: Topics = None,
    table_format: Annotated[
        str, typer.Option("--format", help="parquet; or a table: delta, iceberg.")
    ] = "parquet",
    upsert: Annotated[
        bool, typer.Option("--upsert", help="Delta: keep the newest record of each key.")
    ] = False,
    table: Annotated[
        str | None,
        typer.Option(
            "--table",
            metavar="NAMESPACE.NAME",
            help="Iceberg: which table.",
            show_default="penstock.records",
        ),
    ] = None,
    catalog: Annotated[
        str | None,
        typer.Option(
            "--catalog",
            metavar="URI",
            help="Iceberg: a catalog of SQL (sqlite:///…) or REST (https://…).",
            show_default="TARGET/catalog.db",
        ),
    ] = None,
    catalog_settings: Annotated[
        list[str] | None,
        typer.Option(
            "--catalog-setting", metavar="NAME=VALUE", help="More for the catalog; may be repeated."
        ),
    ] = None,
    values: Annotated[
        str | None,
        typer.Option("--values", help="Make columns of values: json, avro, avro-confluent."),
    ] = None,
    schema: Annotated[
        str,
        typer.Option(
            "--schema",
            help="Of the values: 'id bigint, …' or an Avro schema; or a file that has it.",
            show_default="JSON: by the first values",
        ),
    ] = "",
    strict: Annotated[
        bool,
        typer.Option(help="Stop at damage, bad values, and records that were removed too early."),
    ] = True,
    master: Master = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Append what is new in topics to Parquet files or a table, by topic and day.

    Goes on where the last run ended: TARGET/_penstock/bookmark.json has the offsets. The store is
    only read, and may be in use.

    Example: [b]penstock pipeline export data parquet --topic orders --values json
    --schema "id bigint, amount double"[/b]
    """
    from penstock.pipeline import jobs

    if schema and values is None:
        raise typer.BadParameter("--schema goes with --values")
    form = jobs.ExportForm(
        table_format,
        upsert,
        _iceberg(table, catalog, catalog_settings or []),
        None if values is None else jobs.Payload(values, schema),
    )
    with progress_bar() as progress:
        result = jobs.export(
            start_session(master),
            directory,
            target,
            topics=topics,
            form=form,
            strict=strict,
            progress=progress,
        )
    if as_json:
        print_json([result])
    else:
        _print_export(result)


def _iceberg(table: str | None, catalog: str | None, settings: list[str]) -> IcebergPlace | None:
    from penstock.pipeline.jobs import IcebergPlace

    if table is None and catalog is None and not settings:
        return None
    found = _pairs("--catalog-setting", settings)
    return IcebergPlace(table or IcebergPlace().table, catalog, found)


def _pairs(option: str, given: list[str]) -> dict[str, str]:
    pairs = [each.partition("=") for each in given]
    if not all(name and equals for name, equals, _ in pairs):
        raise typer.BadParameter(f"{option} is NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _print_export(result: ExportResult) -> None:
    print_table(
        ("shard", "#from", "#to", "#rows", "#deleted", "#left out", "#lost", "#undecoded"),
        (
            (
                each.shard,
                each.start,
                each.end,
                each.rows,
                each.deleted,
                each.left_out,
                each.lost,
                each.undecoded,
            )
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


@app.command()
def stats(
    directory: Directory,
    topics: Topics = None,
    every_s: Annotated[
        int, typer.Option("--every", metavar="SECONDS", min=1, help="Steps of the time table.")
    ] = 3600,
    top_keys: Annotated[int, typer.Option(min=0, help="How many keys of each topic.")] = 10,
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="FILE", help="Also as .html or .png.")
    ] = None,
    master: Master = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Measure topics: records and bytes over time, sizes, the keys with the most records.

    The store is only read, and may be in use.

    Example: [b]penstock pipeline stats data --every 60[/b]
    """
    from penstock.pipeline import jobs

    with progress_bar() as progress:
        result = jobs.stats(
            start_session(master),
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
                printable(each.topic),
                each.shards,
                each.rows,
                each.rows_bound,
                size_text(each.bytes),
                size_text(each.size_max),
                time_text(each.first_ms),
                time_text(each.last_ms),
            )
            for each in result.topics
        ),
    )
    print_table(
        ("topic", "from", "#rows", "#size", "#rows/s", "#bytes/s"),
        (
            (
                printable(each.topic),
                time_text(each.start_ms),
                each.rows,
                size_text(each.bytes),
                f"{each.rows_per_s:.1f}",
                f"{each.bytes_per_s:.1f}",
            )
            for each in result.intervals
        ),
    )
    print_table(
        ("topic", "key", "#rows", "#size"),
        (
            (printable(each.topic), printable(each.key, 60), each.rows, size_text(each.bytes))
            for each in result.top_keys
        ),
    )


@app.command("import")
def import_(
    directory: Directory,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A file, a directory of them, or kafka://host:port/topic.",
            show_default=False,
        ),
    ],
    topic: Annotated[
        str | None,
        typer.Argument(metavar="[TOPIC]", help="Without it, a column 'topic' says where to."),
    ] = None,
    file_format: Annotated[
        str | None,
        typer.Option("--format", help="parquet, json or csv.", show_default="by the names"),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option("--value", help="The column of values.", show_default="value, else the row"),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="The column of keys.")] = None,
    timestamp: Annotated[
        str | None, typer.Option("--timestamp", help="The column of times.")
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option("--partition", help="The column of partitions.", show_default="by key"),
    ] = None,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of a new topic.")] = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option("--setting", metavar="NAME=VALUE", help="Kafka: of librdkafka; repeatable."),
    ] = None,
    strict: Annotated[
        bool, typer.Option(help="Kafka: stop where records were removed before they were imported.")
    ] = True,
    master: Master = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Append the rows of Parquet, JSON or CSV files, or topics of Kafka, to a topic, each once.

    The same files again change nothing; from Kafka comes what is new since the last import. Nobody
    else may have the store open when the rows are published.

    Example: [b]penstock pipeline import data orders.csv orders --key id[/b]

    Example: [b]penstock pipeline import data kafka://127.0.0.1:9092/orders,events[/b]
    """
    from penstock.pipeline import jobs

    if source.startswith(KAFKA):
        servers, names = _kafka_place(source, topic)
        with progress_bar() as progress:
            taken = jobs.import_kafka(
                start_session(master),
                directory,
                servers,
                names,
                settings=_pairs("--setting", settings or []),
                strict=strict,
                progress=progress,
            )
        _print_kafka_import(taken, as_json=as_json)
        return
    with progress_bar() as progress:
        result = jobs.import_(
            start_session(master),
            directory,
            source,
            topic,
            file_format=file_format,
            columns=jobs.ImportColumns(value, key, timestamp, partition),
            partitions=partitions,
            progress=progress,
        )
    if as_json:
        print_json([result])
        return
    print_fields(
        (
            ("files", result.files),
            ("size", size_text(result.bytes_read)),
            ("rows", result.rows),
            ("rows added", result.rows_added),
            ("done before", "yes" if result.repeated else "no"),
            ("seconds", f"{result.seconds:.1f}"),
        )
    )


def _kafka_place(source: str, topic: str | None) -> tuple[str, dict[str, str]]:
    """Return the servers, and what each topic is called here."""
    servers, _, names = source.removeprefix(KAFKA).partition("/")
    chosen = [name for name in names.split(",") if name]
    if not servers or not chosen:
        raise typer.BadParameter("a source of Kafka is kafka://host:port/topic")
    if topic is not None and len(chosen) > 1:
        raise typer.BadParameter("several topics of Kafka keep their names")
    return servers, {name: topic or name for name in chosen}


def _print_kafka_import(result: KafkaImportResult, *, as_json: bool) -> None:
    if as_json:
        print_json([result])
        return
    print_table(
        ("topic", "#partition", "#from", "#to", "#lost"),
        (
            (printable(each.topic), each.partition, each.start, each.end, each.lost)
            for each in result.partitions
        ),
    )
    print_fields(
        (
            ("rows added", result.rows),
            ("offsets", result.offsets),
            ("a killed run was finished", "yes" if result.resumed else "no"),
            ("seconds", f"{result.seconds:.1f}"),
        )
    )


@app.command()
def verify(directory: Directory, master: Master = LOCAL, as_json: AsJson = False) -> None:
    """Check everything in a store, then read all of it through Spark and count.

    The full check of [b]penstock store verify[/b] runs in this process; the reading is spread over
    Spark's tasks. Exits with 1 when there is damage. Nothing is changed.

    Example: [b]penstock pipeline verify data[/b]
    """
    from penstock.pipeline import jobs

    with progress_bar() as progress:
        result = jobs.verify(start_session(master), directory, progress=progress)
    if as_json:
        print_json([result])
    else:
        print_table(
            ("shard", "#from", "#to", "#rows", "#at most", "#size"),
            (
                (each.shard, each.start, each.end, each.rows, each.rows_max, size_text(each.bytes))
                for each in result.shards
            ),
        )
        store_output.print_verify(result.report, as_json=False)
        for problem in result.problems:
            print_line(printable(problem))
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

    Runs in this process, without Spark, and takes the lock: nobody else may have the store open.

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

    Runs in this process, without Spark, and takes the lock: nobody else may have the store open.

    Example: [b]penstock pipeline expire data/segment[/b]
    """
    from penstock.pipeline import jobs

    _print_upkeep(jobs.expire(directory, reserved_hours=reserved_hours), as_json=as_json)


def _print_upkeep(result: UpkeepResult, *, as_json: bool) -> None:
    if as_json:
        print_json([result])
        return
    print_table(
        ("shard", "#began at", "#begins at", "#ends at", "#removed"),
        (
            (each.shard, each.earliest_before, each.earliest, each.commit, each.removed)
            for each in result.shards
        ),
    )
    print_fields(
        (
            ("records removed", result.rows_removed),
            ("size", size_text(result.bytes_removed)),
            ("files removed", result.files_removed),
            ("seconds", f"{result.seconds:.1f}"),
        )
    )
