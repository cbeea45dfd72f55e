"""`penstock store`: inspect, verify, rebuild and repair a store directory.

All commands except `rebuild` and `repair` are read-only, take no lock, and work while a writer
runs. The directory is a store, or a node's data directory; topics of a node can be given by name.
"""

from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated, Final

import typer

from penstock.cli.arguments import (
    AsJson,
    Directory,
    ShardName,
    read_key,
    read_shard,
    read_time,
)
from penstock.cli.commands.store import output as store_output
from penstock.cli.commands.store.repair_output import print_repair
from penstock.cli.exit_codes import DAMAGED
from penstock.cli.output import progress_bar, step_progress
from penstock.engine.segment import ReadOnlyStore, SegmentSettings, inspect
from penstock.errors import BadRequestError, UnreadableContentError
from penstock.pipeline.store import StoreDirectory, find_store, store_root

LIMIT: Final = 100

app: Final = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


class Listed(Enum):
    """Choices of `ls`."""

    TOPICS = "topics"
    SHARDS = "shards"
    FILES = "files"


@app.callback()
def store(
    context: typer.Context,
    commit_log_path: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Directory of the commit log, if outside of the store."),
    ] = None,
    consume_queue_path: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Directory of the consume queues, if outside of the store."
        ),
    ] = None,
    index_path: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Directory of the key index, if outside of the store."),
    ] = None,
) -> None:
    """Inspect, verify, rebuild and repair a store directory.

    Works on stores and data directories of Penstock, and on stores of Apache RocketMQ. All commands
    except [b]rebuild[/b] and [b]repair[/b] are read-only, take no lock, and may run while a broker
    writes to the store.
    """
    context.obj = SegmentSettings(
        commit_log_path=commit_log_path,
        consume_queue_path=consume_queue_path,
        index_path=index_path,
        background=False,
    )


def _open(context: typer.Context, store_directory: StoreDirectory) -> ReadOnlyStore:
    return ReadOnlyStore.open(store_directory.root, settings=_settings(context))


def _settings(context: typer.Context) -> SegmentSettings:
    settings = context.obj
    assert isinstance(settings, SegmentSettings)
    return settings


@app.command()
def info(context: typer.Context, directory: Directory, as_json: AsJson = False) -> None:
    """Show the files, sizes, shards, offsets and checkpoints of a store.

    Example: [b]penstock store info data[/b]
    """
    store_directory = find_store(directory)
    with _open(context, store_directory) as view:
        store_output.print_info(inspect.info(view), store_directory.names, as_json=as_json)


@app.command()
def ls(
    context: typer.Context,
    directory: Directory,
    listed: Annotated[
        Listed, typer.Argument(metavar="[topics|shards|files]", help="What to list.")
    ] = Listed.SHARDS,
    as_json: AsJson = False,
) -> None:
    """List the topics, the shards or the files of a store.

    Example: [b]penstock store ls data files[/b]
    """
    store_directory = find_store(directory)
    with _open(context, store_directory) as view:
        match listed:
            case Listed.TOPICS:
                store_output.print_topics(
                    inspect.topic_infos(view), store_directory.names, as_json=as_json
                )
            case Listed.SHARDS:
                store_output.print_shards(
                    inspect.shard_infos(view), store_directory.names, as_json=as_json
                )
            case Listed.FILES:
                store_output.print_files(inspect.files(view), as_json=as_json)


class _SkippedBatches:
    """Counts batches that cannot be decoded, and keeps the first error."""

    count = 0
    first = ""

    def add(self, error: UnreadableContentError) -> None:
        self.first = self.first or str(error)
        self.count += 1


@app.command()
def cat(
    context: typer.Context,
    directory: Directory,
    shard: ShardName,
    start: Annotated[
        int | None,
        typer.Option(
            "--from",
            min=0,
            metavar="OFFSET",
            help="First offset to print.",
            show_default="earliest",
        ),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="OFFSET", help="Offset to stop before.", show_default="end of shard"
        ),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Print only records with this tag.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of records.", show_default="all")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print the raw bytes of the values, without separators.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the values of a shard, one per line, oldest first.

    Batches that cannot be decoded are skipped and counted on stderr.

    Example: [b]penstock store cat data orders_0 --from 100 --limit 10[/b]
    """
    store_directory = find_store(directory)
    with _open(context, store_directory) as view:
        name = store_directory.stored(read_shard(shard))
        skipped = _SkippedBatches()
        records = inspect.records(
            view,
            name,
            offset=start,
            until=until,
            tag=tag,
            limit=limit,
            pass_over=skipped.add,
        )
        store_output.print_values(name, records, raw=raw, as_json=as_json)
        if skipped.count:
            typer.echo(
                f"skipped {skipped.count} undecodable batches, the first: {skipped.first}",
                err=True,
            )


@app.command()
def get(
    context: typer.Context,
    directory: Directory,
    shard: ShardName,
    offset: Annotated[
        int,
        typer.Argument(metavar="OFFSET", min=0, help="Offset of the record.", show_default=False),
    ],
    as_json: AsJson = False,
) -> None:
    """Print all fields of a record.

    Example: [b]penstock store get data orders_0 17[/b]
    """
    store_directory = find_store(directory)
    with _open(context, store_directory) as view:
        detail = inspect.record_detail(view, store_directory.stored(read_shard(shard)), offset)
        store_output.print_detail(detail, as_json=as_json)


@app.command()
def query(
    context: typer.Context,
    directory: Directory,
    within: Annotated[
        str | None,
        typer.Option("--in", metavar="NAME", help="Topic or shard to search."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Find records with this key, newest first.")
    ] = None,
    key_hex: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="Find records with this key, given in hexadecimal."),
    ] = None,
    tag: Annotated[
        str | None, typer.Option(help="Find records with this tag, oldest first.")
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Find the first record of each shard at or after this time."
        ),
    ] = None,
    begin: Annotated[
        str | None, typer.Option(metavar="TIME", help="With a key: oldest timestamp.")
    ] = None,
    end: Annotated[
        str | None, typer.Option(metavar="TIME", help="With a key: newest timestamp.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of records.")] = LIMIT,
    as_json: AsJson = False,
) -> None:
    """Find records by key, tag or time.

    A TIME is ISO (2026-01-31T12:00:00+01:00, UTC without a zone) or milliseconds since 1970.

    Examples: [b]penstock store query data --key o-17[/b],
    [b]penstock store query data --in orders --time 2026-01-31T12:00:00[/b]
    """
    key_bytes = read_key(key, key_hex)
    moment = read_time(time)
    if [key_bytes, tag, moment].count(None) != 2:
        raise BadRequestError("give exactly one of --key, --key-hex, --tag and --time")
    store_directory = find_store(directory)
    with _open(context, store_directory) as view:
        shards = inspect.shards_named(
            view, None if within is None else store_directory.stored_name(within)
        )
        if key_bytes is not None:
            begin_ms, end_ms = read_time(begin) or 0, read_time(end)
            hits = inspect.find_by_key(
                view, shards, key_bytes, begin_ms=begin_ms, end_ms=end_ms, limit=limit
            )
        elif tag is not None:
            hits = inspect.find_by_tag(view, shards, tag, limit=limit)
        else:
            hits = inspect.find_by_time(view, shards, moment or 0)
        store_output.print_hits(hits, as_json=as_json)


@app.command()
def verify(context: typer.Context, directory: Directory, as_json: AsJson = False) -> None:
    """Verify records, queues, key index, checksums, shard states, time index and checkpoints.

    Read-only. Each finding names its file and position. Exits with 1 if there are findings.

    Example: [b]penstock store verify data[/b]
    """
    with progress_bar() as progress:
        report = inspect.verify(
            store_root(directory), settings=_settings(context), progress=progress
        )
    store_output.print_verify(report, as_json=as_json)
    sys.exit(0 if report.is_whole else DAMAGED)


@app.command()
def rebuild(context: typer.Context, directory: Directory, as_json: AsJson = False) -> None:
    """Rebuild consume queues, key index, time index and checksums from the commit log.

    Takes the store's lock: stop its writer first. Records and deletions are not changed. Exits with
    1 if the commit log has damaged records, which cannot be rebuilt.

    Example: [b]penstock store rebuild data[/b]
    """
    root = store_root(directory)
    with progress_bar() as progress:
        report = inspect.rebuild(
            root,
            settings=_settings(context),
            progress=step_progress(progress, "commit log"),
        )
    store_output.print_rebuild(root, report, as_json=as_json)
    sys.exit(DAMAGED if report.damaged else 0)


@app.command()
def repair(
    context: typer.Context,
    directory: Directory,
    yes: Annotated[
        bool,
        typer.Option("--yes", "--apply", help="Apply the repair; without it, nothing is changed."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Repair a store whose commit log lost synced bytes: a file was truncated or is missing.

    Without [b]--yes[/b] it lists the lost records by shard and the planned change of each file.
    Restore the files from a backup if there is one. With [b]--yes[/b] the missing parts become
    holes: their offsets are reported as lost and never reused, all other records stay, and
    overwritten bytes are saved in penstock/repair of the store.

    Takes the store's lock: stop its writer first. Exits with 1 if a repair is or was needed.

    Example: [b]penstock store repair data[/b]
    """
    store_directory = find_store(directory)
    with progress_bar() as progress:
        report = inspect.repair(
            store_directory.root,
            apply=yes,
            settings=_settings(context),
            progress=step_progress(progress, "commit log"),
        )
    print_repair(report, store_directory.names, as_json=as_json)
    sys.exit(DAMAGED if report.is_needed else 0)
