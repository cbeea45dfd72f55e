"""`penstock store …`: looking into a store directory, checking, rebuilding and repairing it.

All commands but `rebuild` and `repair` only read, take no lock, and work beside a running writer.
The directory may be a store, or a node's data directory with a store in it: then topics go by their
names, too.
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
from penstock.cli.commands import store_output
from penstock.cli.commands.store_repair_output import print_repair
from penstock.cli.exit_codes import DAMAGED
from penstock.cli.output import progress_bar, step_progress
from penstock.engine.segment import inspect
from penstock.engine.segment.readonly.store_view import StoreView
from penstock.engine.segment.settings import SegmentSettings
from penstock.errors import BadRequestError, UnreadableContentError
from penstock.pipeline.store.node_directory import StoreDirectory, find_store, store_root

LIMIT: Final = 100

app: Final = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


class Listed(Enum):
    """What `ls` lists."""

    TOPICS = "topics"
    SHARDS = "shards"
    FILES = "files"


@app.callback()
def store(
    context: typer.Context,
    commit_log_path: Annotated[
        str | None, typer.Option(metavar="PATH", help="Where the log lies, if not in the store.")
    ] = None,
    consume_queue_path: Annotated[
        str | None, typer.Option(metavar="PATH", help="Where the queues lie, likewise.")
    ] = None,
    index_path: Annotated[
        str | None, typer.Option(metavar="PATH", help="Where the key index lies, likewise.")
    ] = None,
) -> None:
    """Look into a store directory, check it, rebuild what is derived.

    Works on Penstock's stores and data directories, and on stores of Apache RocketMQ. All commands
    but [b]rebuild[/b] only read: they need no lock, and may run beside a broker.
    """
    context.obj = SegmentSettings(
        commit_log_path=commit_log_path,
        consume_queue_path=consume_queue_path,
        index_path=index_path,
        background=False,
    )


def _open(context: typer.Context, found: StoreDirectory) -> StoreView:
    return StoreView.open(found.root, settings=_settings(context))


def _settings(context: typer.Context) -> SegmentSettings:
    found = context.obj
    assert isinstance(found, SegmentSettings)
    return found


@app.command()
def info(context: typer.Context, directory: Directory, as_json: AsJson = False) -> None:
    """Say what a store consists of: files, sizes, shards and their bounds, checkpoints.

    Example: [b]penstock store info data[/b]
    """
    found = find_store(directory)
    with _open(context, found) as view:
        store_output.print_info(inspect.info(view), found.names, as_json=as_json)


@app.command()
def ls(
    context: typer.Context,
    directory: Directory,
    listed: Annotated[Listed, typer.Argument(metavar="[topics|shards|files]")] = Listed.SHARDS,
    as_json: AsJson = False,
) -> None:
    """List the topics, the shards or the files of a store.

    Example: [b]penstock store ls data files[/b]
    """
    found = find_store(directory)
    with _open(context, found) as view:
        match listed:
            case Listed.TOPICS:
                store_output.print_topics(inspect.topic_infos(view), found.names, as_json=as_json)
            case Listed.SHARDS:
                store_output.print_shards(inspect.shard_infos(view), found.names, as_json=as_json)
            case Listed.FILES:
                store_output.print_files(inspect.files(view), as_json=as_json)


class _SkippedBatches:
    """Batches that cannot be taken apart: how many, and the first of them."""

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
        int | None, typer.Option("--from", min=0, help="The first offset.", show_default="earliest")
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(min=0, help="The offset behind the last one.", show_default="the end"),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Only records of this tag.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="How many records.", show_default="all")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="The exact bytes of the values, nothing between them.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the values of a shard, one per line, oldest first.

    Batches that cannot be taken apart into messages are passed over, with a line on stderr.

    Example: [b]penstock store cat data orders_0 --from 100 --limit 10[/b]
    """
    found = find_store(directory)
    with _open(context, found) as view:
        name = found.stored(read_shard(shard))
        passed = _SkippedBatches()
        records = inspect.records(
            view,
            name,
            offset=start,
            until=until,
            tag=tag,
            limit=limit,
            pass_over=passed.add,
        )
        store_output.print_values(name, records, raw=raw, as_json=as_json)
        if passed.count:
            typer.echo(f"{passed.count} passed over, the first: {passed.first}", err=True)


@app.command()
def get(
    context: typer.Context,
    directory: Directory,
    shard: ShardName,
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Print one record with all its fields.

    Example: [b]penstock store get data orders_0 17[/b]
    """
    found = find_store(directory)
    with _open(context, found) as view:
        detail = inspect.record_detail(view, found.stored(read_shard(shard)), offset)
        store_output.print_detail(detail, as_json=as_json)


@app.command()
def query(
    context: typer.Context,
    directory: Directory,
    within: Annotated[
        str | None,
        typer.Option("--in", metavar="NAME", help="Only this topic, or this shard."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Records of this key, newest first.")] = None,
    key_hex: Annotated[
        str | None, typer.Option(metavar="HEX", help="The same, for a key that is no text.")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Records of this tag, oldest first.")] = None,
    time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="The first record of each shard from this time on."),
    ] = None,
    begin: Annotated[
        str | None, typer.Option(metavar="TIME", help="With a key: nothing older.")
    ] = None,
    end: Annotated[
        str | None, typer.Option(metavar="TIME", help="With a key: nothing newer.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many records at most.")] = LIMIT,
    as_json: AsJson = False,
) -> None:
    """Find records by key, by tag or by time.

    A TIME is ISO (2026-01-31T12:00:00+01:00, UTC without a zone) or milliseconds since 1970.

    Examples: [b]penstock store query data --key o-17[/b],
    [b]penstock store query data --in orders --time 2026-01-31T12:00:00[/b]
    """
    wanted = read_key(key, key_hex)
    moment = read_time(time)
    if [wanted, tag, moment].count(None) != 2:
        raise BadRequestError("say what to look for: one of --key, --key-hex, --tag and --time")
    found = find_store(directory)
    with _open(context, found) as view:
        shards = inspect.shards_named(view, None if within is None else found.stored_name(within))
        if wanted is not None:
            begin_ms, end_ms = read_time(begin) or 0, read_time(end)
            hits = inspect.find_by_key(
                view, shards, wanted, begin_ms=begin_ms, end_ms=end_ms, limit=limit
            )
        elif tag is not None:
            hits = inspect.find_by_tag(view, shards, tag, limit=limit)
        else:
            hits = inspect.find_by_time(view, shards, moment or 0)
        store_output.print_hits(hits, as_json=as_json)


@app.command()
def verify(context: typer.Context, directory: Directory, as_json: AsJson = False) -> None:
    """Check everything: records, queues, key index, checksums, states, times, checkpoints.

    Every finding names its file and position. Exits with 1 when there is any. Nothing is changed.

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
    """Build queues, key index, times and checksums anew from the log.

    Takes the lock: nobody else may have the store open. Records and deletions stay as they are.
    Exits with 1 when records of the log are damaged: those cannot be built anew.

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
        bool, typer.Option("--yes", "--apply", help="Do it. Without, nothing is changed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let a store go on whose log lacks bytes that were on the device: a file was cut, or is gone.

    Without [b]--yes[/b] it lists what is lost, shard by shard, and what would be done to which
    file. Bring the files back from a copy if there is one. With [b]--yes[/b] the missing parts
    become holes: their offsets are reported as lost and never given out again, all other records
    stay, and whatever is overwritten is saved in the store's penstock/repair.

    Takes the lock: stop the store's writer first. Exits with 1 when there is, or was, something to
    repair.

    Example: [b]penstock store repair data[/b]
    """
    found = find_store(directory)
    with progress_bar() as progress:
        report = inspect.repair(
            found.root,
            apply=yes,
            settings=_settings(context),
            progress=step_progress(progress, "commit log"),
        )
    print_repair(report, found.names, as_json=as_json)
    sys.exit(DAMAGED if report.is_needed else 0)
