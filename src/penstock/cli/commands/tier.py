"""`penstock tier …`: looking into a tier, checking it, and taking it in order, by its URL.

All commands but `gc`, `repair --apply`, `rebuild` and `pull` only read; all may run beside nodes
and jobs that use the tier.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from penstock.cli.arguments import AsJson, ShardName, read_shard
from penstock.cli.output import (
    print_fields,
    print_json,
    print_line,
    print_table,
    progress_bar,
    size_text,
    time_text,
)
from penstock.engine.segment.store import SegmentStore
from penstock.errors import BadRequestError
from penstock.node.component_settings import segment_settings
from penstock.settings import load_settings
from penstock.tiered import admin as tier_admin
from penstock.tiered.catalog import restore as tier_restore
from penstock.tiered.config import TierConfig
from penstock.tiered.maintenance import repair as tier_repair

DAMAGED: Final = 1

app: Final = typer.Typer(
    help="Look into a tier, check it, take it in order.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="file:///var/lib/tier, s3://bucket/prefix, …", show_default=False
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="An option of the tier: endpoint=…, region=…"),
]
Grace = Annotated[
    int, typer.Option(min=0, help="Milliseconds that objects without a reference are kept.")
]
Config = Annotated[
    str | None,
    typer.Option("--config", "-c", metavar="FILE", help="TOML file of settings, as for serve."),
]
OneShard = Annotated[
    str | None, typer.Option("--shard", help="Only this shard.", show_default="all")
]


@app.callback()
def tier() -> None:
    """Look into a tier, check it, take it in order.

    Credentials come from the environment, as for every program that uses the object store.
    """


def _config(url: str, options: list[str] | None, grace_ms: int = 3_600_000) -> TierConfig:
    found: dict[str, str] = {"create": "false"} if url.startswith("file:") else {}
    for each in options or []:
        name, between, value = each.partition("=")
        if not between:
            raise BadRequestError(f"{each!r} is no NAME=VALUE")
        found[name] = value
    return TierConfig(url=url, options=found, grace_ms=grace_ms)


@app.command()
def status(url: Url, options: Options = None, as_json: AsJson = False) -> None:
    """Say what a tier holds of each shard.

    Example: [b]penstock tier status s3://logs/penstock[/b]
    """
    shards = tier_admin.shard_status(_config(url, options))
    if as_json:
        print_json(shards)
        return
    print_table(
        ("shard", "#start", "#end", "#segments", "#chunks", "#size", "#epoch", "state"),
        (
            (
                one.shard,
                one.start_offset,
                one.end_offset,
                one.segments,
                one.chunks,
                size_text(one.size),
                one.epoch,
                "destroyed" if one.destroyed else "",
            )
            for one in shards
        ),
    )


@app.command()
def ls(url: Url, shard: OneShard = None, options: Options = None, as_json: AsJson = False) -> None:
    """List the chunks of a tier, with their offsets and times."""
    chosen = None if shard is None else read_shard(shard)
    found = tier_admin.list_objects(_config(url, options), chosen)
    if as_json:
        print_json(found)
        return
    print_table(
        ("shard", "chunk", "#first", "#end", "#size", "oldest", "youngest"),
        (
            (
                one.shard,
                one.name,
                one.first_offset,
                one.end_offset,
                size_text(one.size),
                time_text(one.min_ms),
                time_text(one.max_ms),
            )
            for one in found
        ),
    )


@app.command()
def verify(
    url: Url, shard: OneShard = None, options: Options = None, as_json: AsJson = False
) -> None:
    """Read everything and check every block, unit and record.

    Exits with 1 when something is damaged or missing. Nothing is changed.
    """
    chosen = None if shard is None else read_shard(shard)
    with progress_bar() as show:
        report = tier_admin.verify_tier(
            _config(url, options),
            chosen,
            None if show is None else lambda done, total: show("verify", done, total),
        )
    if as_json:
        print_json([report])
    else:
        print_line(
            f"{report.shards} shards, {report.chunks} chunks, {report.records} records, "
            f"{size_text(report.size)}"
        )
        for sentence in report.damage:
            print_line(sentence)
    raise typer.Exit(DAMAGED if report.damage else 0)


@app.command()
def gc(
    url: Url, grace_ms: Grace = 3_600_000, options: Options = None, as_json: AsJson = False
) -> None:
    """Delete objects that nothing refers to; what is not Penstock's is listed and left alone."""
    report = tier_admin.collect_garbage(_config(url, options, grace_ms))
    if as_json:
        print_json([report])
        return
    print_fields(
        (
            ("deleted", report.deleted),
            ("bytes freed", size_text(report.deleted_size)),
            ("too young to go", report.waiting),
            ("unfinished parts removed", report.leftovers),
            ("not Penstock's", ", ".join(report.foreign)),
        )
    )


@app.command()
def repair(
    url: Url,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="DIR", help="Data directory of the node, whose log may still help."
        ),
    ] = None,
    shard: OneShard = None,
    older: Annotated[
        bool,
        typer.Option(
            "--older", help="Use older generations also when they may hold deleted records."
        ),
    ] = False,
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Restore what can be, and mark the rest as holes."),
    ] = False,
    options: Options = None,
    as_json: AsJson = False,
) -> None:
    """Say what is damaged or missing, and what of it can be restored; with --apply, restore it.

    Records come from what is sound of the object, from older generations that were not deleted
    yet, and from the node's log ([b]--data[/b]). With [b]--apply[/b], offsets that are found
    nowhere become holes: readers go on after them. Exits with 1 when damage remains.

    Example: [b]penstock tier repair s3://logs/penstock --data /var/lib/penstock[/b]
    """
    chosen = None if shard is None else read_shard(shard)
    report = tier_repair.repair_tier(
        _config(url, options), shard=chosen, data=data, older=older, apply=apply
    )
    if as_json:
        print_json([report])
    else:
        _print_repairs(report)
    is_left = report.unreadable or not all(one.applied for one in report.repairs)
    raise typer.Exit(DAMAGED if is_left else 0)


def _print_repairs(report: tier_repair.RepairReport) -> None:
    print_line(f"{report.shards} shards, {report.chunks} chunks, {len(report.repairs)} damaged")
    if report.repairs:
        print_table(
            ("object", "#first", "#end", "state", "#sound", "#older", "#in log", "#lost", "done"),
            (
                (
                    one.object_name,
                    one.first_offset,
                    one.end_offset,
                    "missing" if one.is_missing else "damaged",
                    one.sound,
                    one.from_generation,
                    one.from_log,
                    one.lost_count,
                    "yes" if one.applied else "no",
                )
                for one in report.repairs
            ),
        )
    for one in report.repairs:
        for first, end in one.lost:
            print_line(f"lost: {one.shard} offsets {first} to {end - 1}")
    for sentence in report.unreadable:
        print_line(sentence)


@app.command()
def rebuild(
    url: Url,
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="A data directory.", show_default=False)
    ],
    options: Options = None,
) -> None:
    """Fill the metadata store of a data directory from the tier alone; no node may use it now."""
    count = tier_admin.rebuild_metadata(_config(url, options), f"{directory}/tier-meta")
    print_line(f"{count} shards")


Directory = Annotated[
    str, typer.Option("--data", "-d", metavar="DIR", help="A data directory.", show_default=False)
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster", metavar="ID", help="Whose topics, when the tier holds those of several."
    ),
]


@app.command()
def restore(
    url: Url,
    data: Directory,
    cluster: Cluster = None,
    config: Config = None,
    options: Options = None,
    as_json: AsJson = False,
) -> None:
    """Make a new data directory from a tier alone, ready for [b]penstock serve[/b].

    Topics keep their ids, names, options and offsets; groups go on where they had committed.
    What was never uploaded is lost. The old node, should it come back, can no longer change the
    tier.

    Example: [b]penstock tier restore s3://logs/penstock --data /var/lib/penstock[/b]
    """
    settings = load_settings(config)
    done = tier_restore.restore_tier(
        _config(url, options),
        data,
        segment_settings(settings, is_new=True),
        node_id=settings.node.id,
        cluster_id=cluster,
    )
    _print_restored(done, as_json=as_json)


@app.command()
def attach(
    url: Url,
    data: Directory,
    cluster: Cluster = None,
    config: Config = None,
    options: Options = None,
    as_json: AsJson = False,
) -> None:
    """Add the topics of a tier to the data directory of a node that is stopped.

    As [b]restore[/b], for a directory that has topics of its own. Topics that it has already are
    passed over.

    Example: [b]penstock tier attach s3://logs/penstock --data /var/lib/penstock[/b]
    """
    settings = load_settings(config)
    done = tier_restore.attach_tier(
        _config(url, options),
        data,
        segment_settings(settings, is_new=True),
        node_id=settings.node.id,
        cluster_id=cluster,
    )
    _print_restored(done, as_json=as_json)


def _print_restored(done: tier_restore.Restored, *, as_json: bool) -> None:
    if as_json:
        print_json([done])
        return
    print_table(
        ("shard", "topic", "#start", "#next offset"),
        ((one.shard, one.topic, one.start_offset, one.next_offset) for one in done.shards),
    )
    print_fields(
        (
            ("topics", done.topics),
            ("groups", done.groups),
            ("offsets moved back to the end", done.offsets_moved_back),
            (
                "catalogue of",
                time_text(done.catalogue_ms) if done.catalogue_ms else "(none: names from ids)",
            ),
            ("cluster", done.cluster_id),
            ("restored from cluster", done.restored_from),
        )
    )


@app.command()
def pull(
    url: Url,
    shard: ShardName,
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="A new store directory.", show_default=False)
    ],
    renumber: Annotated[
        bool, typer.Option("--renumber", help="Give the records new offsets, from 0 on.")
    ] = False,
    options: Options = None,
) -> None:
    """Copy a shard from the tier into a new store directory. Records keep their offsets.

    Example: [b]penstock tier pull s3://logs/penstock orders_0 restored[/b]
    """
    with progress_bar() as show:
        count = tier_admin.pull_shard(
            _config(url, options),
            read_shard(shard),
            directory,
            None if show is None else lambda done, total: show("pull", done, total),
            renumber=renumber,
        )
    with SegmentStore.open(directory) as store:
        bounds = store.bounds(read_shard(shard))
    print_line(f"{count} records, offsets {bounds.earliest} to {bounds.commit}")
