"""`penstock pipeline export` and `import`: Parquet, Delta, Iceberg, files and Kafka topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.arguments import AsJson, Directory
from penstock.cli.commands.pipeline.jobs import Master, Partitions, Topics, app, start_session
from penstock.cli.output import (
    print_fields,
    print_json,
    print_table,
    progress_bar,
    size_text,
)

if TYPE_CHECKING:
    from penstock.pipeline.jobs import (
        ExportResult,
        IcebergPlace,
        ImportResult,
        KafkaImportResult,
    )

KAFKA: Final = "kafka://"

Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="Directory or URL to write to.", show_default=False)
]
TableFormat = Annotated[
    str, typer.Option("--format", help="Output format: parquet, delta or iceberg.")
]
Upsert = Annotated[
    bool, typer.Option("--upsert", help="Delta: keep only the newest record of each key.")
]
IcebergTable = Annotated[
    str | None,
    typer.Option(
        "--table",
        metavar="NAMESPACE.NAME",
        help="Iceberg: name of the table.",
        show_default="penstock.records",
    ),
]
Catalog = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        metavar="URI",
        help="Iceberg: URI of an SQL (sqlite:///…) or REST (https://…) catalog.",
        show_default="TARGET/catalog.db",
    ),
]
CatalogSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog-setting",
        metavar="NAME=VALUE",
        help="Iceberg: catalog property (repeatable).",
    ),
]
Values = Annotated[
    str | None,
    typer.Option("--values", help="Decode values into columns: json, avro or avro-confluent."),
]
Schema = Annotated[
    str,
    typer.Option(
        "--schema",
        help="Schema of the values: a DDL string ('id bigint, …'), an Avro schema, or a file "
        "with either.",
        show_default="JSON: inferred from the first values",
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        help="Fail on damage, undecodable values, and records deleted before their export."
    ),
]
Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="File, directory of files, or kafka://host:port/topic.",
        show_default=False,
    ),
]
Topic = Annotated[
    str | None,
    typer.Argument(
        metavar="[TOPIC]", help="Target topic; without it, the column 'topic' names it."
    ),
]
FileFormat = Annotated[
    str | None,
    typer.Option(
        "--format", help="File format: parquet, json or csv.", show_default="from the file names"
    ),
]
ValueColumn = Annotated[
    str | None,
    typer.Option("--value", help="Column of the values.", show_default="value, else the whole row"),
]
KeyColumn = Annotated[str | None, typer.Option("--key", help="Column of the keys.")]
TimeColumn = Annotated[str | None, typer.Option("--timestamp", help="Column of the timestamps.")]
PartitionColumn = Annotated[
    str | None,
    typer.Option("--partition", help="Column of the partition numbers.", show_default="by key"),
]
KafkaSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--setting", metavar="NAME=VALUE", help="Kafka: librdkafka property (repeatable)."
    ),
]
ImportJournal = Annotated[
    str | None,
    typer.Option(
        "--journal",
        metavar="DIR",
        help="Journal of completed imports, for imports into a running node.",
        show_default="~/.local/state/penstock/imports",
    ),
]
KafkaStrict = Annotated[
    bool, typer.Option(help="Kafka: fail if records were deleted before their import.")
]


@app.command()
def export(
    context: typer.Context,
    directory: Directory,
    target: Target,
    topics: Topics = None,
    table_format: TableFormat = "parquet",
    upsert: Upsert = False,
    table: IcebergTable = None,
    catalog: Catalog = None,
    catalog_settings: CatalogSettings = None,
    values: Values = None,
    schema: Schema = "",
    strict: Strict = True,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Append new records of topics to Parquet files or a table, partitioned by topic and day.

    Resumes after the last run: TARGET/_penstock/bookmark.json holds the offsets. The store is only
    read and may be in use.

    Example: [b]penstock pipeline export data parquet --topic orders --values json
    --schema "id bigint, amount double"[/b]
    """
    from penstock.pipeline import jobs

    if schema and values is None:
        raise typer.BadParameter("--schema requires --values")
    form = jobs.ExportForm(
        table_format,
        upsert,
        _iceberg(table, catalog, catalog_settings or []),
        None if values is None else jobs.Payload(values, schema),
    )
    with progress_bar() as progress:
        result = jobs.export(
            start_session(context, master),
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
    pairs = _pairs("--catalog-setting", settings)
    return IcebergPlace(table or IcebergPlace().table, catalog, pairs)


def _pairs(option: str, given: list[str]) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in given]
    if not all(name and equals for name, equals, _ in pairs):
        raise typer.BadParameter(f"{option} takes NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _print_export(result: ExportResult) -> None:
    print_table(
        ("shard", "#from", "#to", "#rows", "#deleted", "#left out", "#lost", "#undecoded"),
        (
            (
                shard.shard,
                shard.start,
                shard.end,
                shard.rows,
                shard.deleted,
                shard.left_out,
                shard.lost,
                shard.undecoded,
            )
            for shard in result.shards
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
def clean(target: Target, as_json: AsJson = False) -> None:
    """Remove staged files that killed exports left in TARGET/_penstock.

    The next export does the same. Runs without Spark; rejected while an export to TARGET runs.

    Example: [b]penstock pipeline clean parquet[/b]
    """
    from penstock.pipeline import jobs

    result = jobs.clean(target)
    if as_json:
        print_json([result])
        return
    unfinished = result.unfinished_run
    print_fields(
        (
            ("files removed", result.files_removed),
            ("size", size_text(result.bytes_removed)),
            ("run to finish by an export", "none" if unfinished is None else unfinished),
        )
    )


@app.command("import")
def import_(
    context: typer.Context,
    directory: Directory,
    source: Source,
    topic: Topic = None,
    file_format: FileFormat = None,
    value: ValueColumn = None,
    key: KeyColumn = None,
    timestamp: TimeColumn = None,
    partition: PartitionColumn = None,
    partitions: Partitions = 1,
    settings: KafkaSettings = None,
    strict: KafkaStrict = True,
    journal: ImportJournal = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Import Parquet, JSON or CSV files, or Kafka topics, exactly once.

    Importing the same files again changes nothing; an import from Kafka resumes after the last one.
    The store must not be open elsewhere while the rows are published. For a running node, give its
    host:port instead of the directory; the node then writes them.

    Example: [b]penstock pipeline import data orders.csv orders --key id[/b]

    Example: [b]penstock pipeline import data kafka://127.0.0.1:9092/orders,events[/b]
    """
    from penstock.pipeline import jobs

    if source.startswith(KAFKA):
        servers, names = _kafka_place(source, topic)
        with progress_bar() as progress:
            taken = jobs.import_kafka(
                start_session(context, master),
                jobs.ImportPlace(directory, journal),
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
            start_session(context, master),
            jobs.ImportPlace(directory, journal),
            source,
            topic,
            file_format=file_format,
            columns=jobs.ImportColumns(value, key, timestamp, partition),
            partitions=partitions,
            progress=progress,
        )
    _print_import(result, as_json=as_json)


def _print_import(result: ImportResult, *, as_json: bool) -> None:
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
    """Return the bootstrap servers, and the target topic of each Kafka topic."""
    servers, _, names = source.removeprefix(KAFKA).partition("/")
    chosen = [name for name in names.split(",") if name]
    if not servers or not chosen:
        raise typer.BadParameter("a Kafka source is written as kafka://host:port/topic")
    if topic is not None and len(chosen) > 1:
        raise typer.BadParameter(
            "TOPIC cannot be given with several Kafka topics: they keep their names"
        )
    return servers, {name: topic or name for name in chosen}


def _print_kafka_import(result: KafkaImportResult, *, as_json: bool) -> None:
    if as_json:
        print_json([result])
        return
    print_table(
        ("topic", "#partition", "#from", "#to", "#lost"),
        (
            (partition.topic, partition.partition, partition.start, partition.end, partition.lost)
            for partition in result.partitions
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
