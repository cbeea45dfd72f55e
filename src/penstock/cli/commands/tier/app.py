"""`penstock tier`: inspect, verify and repair a tier, given by its URL.

`gc`, `repair --apply`, `rebuild`, `restore`, `attach` and `pull` write; the other commands only
read. All may run while nodes and jobs use the tier.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from penstock.cli.arguments import AsJson, ShardName, read_shard
from penstock.cli.commands.tier import output as tier_output
from penstock.cli.exit_codes import DAMAGED
from penstock.cli.output import print_line, progress_bar, step_progress
from penstock.engine.segment import SegmentSettings, SegmentStore
from penstock.errors import BadRequestError
from penstock.node.component_settings import segment_settings
from penstock.record import ShardId
from penstock.settings import load_settings
from penstock.tiered import TierConfig
from penstock.tiered import admin as tier_admin

GRACE_MS: Final = 3_600_000

app: Final = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="URL of the tier: file:///var/lib/tier, s3://bucket/prefix, …",
        show_default=False,
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Tier option such as endpoint=… or region=… (repeatable).",
    ),
]
Grace = Annotated[
    int,
    typer.Option(
        min=0, metavar="MS", help="Milliseconds to keep unreferenced objects before deletion."
    ),
]
Config = Annotated[
    str | None,
    typer.Option(
        "--config", "-c", metavar="FILE", help="TOML settings file, as for `penstock serve`."
    ),
]
OneShard = Annotated[
    str | None,
    typer.Option(
        "--shard", metavar="SHARD", help="Limit the command to this shard.", show_default="all"
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data", "-d", metavar="DIR", help="Data directory of the node.", show_default=False
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="ID",
        help="ID of the cluster whose topics to restore, if the tier holds several clusters.",
    ),
]


@app.callback()
def tier() -> None:
    """Inspect, verify and repair tiered storage.

    Credentials are read from the environment, as by other clients of the object store.
    """


def _config(url: str, options: list[str] | None, grace_ms: int = GRACE_MS) -> TierConfig:
    parsed: dict[str, str] = {"create": "false"} if url.startswith("file:") else {}
    for option in options or []:
        name, separator, value = option.partition("=")
        if not separator:
            raise BadRequestError(f"{option!r} is not a tier option: write --set NAME=VALUE")
        parsed[name] = value
    return TierConfig(url=url, options=parsed, grace_ms=grace_ms)


def _shard(name: str | None) -> ShardId | None:
    return None if name is None else read_shard(name)


def _new_store_settings(config: str | None) -> tuple[SegmentSettings, int]:
    """Return the settings for a new segment store, and the node's id."""
    settings = load_settings(config)
    return segment_settings(settings, is_new=True), settings.node.id


@app.command()
def status(url: Url, options: Options = None, as_json: AsJson = False) -> None:
    """Show offsets, size and epoch of each shard in a tier.

    Example: [b]penstock tier status s3://logs/penstock[/b]
    """
    tier_output.print_status(tier_admin.shard_status(_config(url, options)), as_json=as_json)


@app.command()
def ls(url: Url, shard: OneShard = None, options: Options = None, as_json: AsJson = False) -> None:
    """List the chunks of a tier with their offsets and timestamps."""
    chunks = tier_admin.list_objects(_config(url, options), _shard(shard))
    tier_output.print_objects(chunks, as_json=as_json)


@app.command()
def verify(
    url: Url, shard: OneShard = None, options: Options = None, as_json: AsJson = False
) -> None:
    """Read a tier and verify the checksums of all blocks, queue entries and records.

    Read-only. Exits with 1 if anything is damaged or missing.
    """
    with progress_bar() as show:
        report = tier_admin.verify_tier(
            _config(url, options), _shard(shard), step_progress(show, "verify")
        )
    tier_output.print_verify(report, as_json=as_json)
    raise typer.Exit(DAMAGED if report.damage else 0)


@app.command()
def gc(
    url: Url, grace_ms: Grace = GRACE_MS, options: Options = None, as_json: AsJson = False
) -> None:
    """Delete unreferenced objects from a tier.

    Objects that Penstock did not write are listed and kept.
    """
    report = tier_admin.collect_garbage(_config(url, options, grace_ms))
    tier_output.print_garbage(report, as_json=as_json)


@app.command()
def repair(
    url: Url,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Data directory of the node, to restore records from its commit log.",
        ),
    ] = None,
    shard: OneShard = None,
    older: Annotated[
        bool,
        typer.Option(
            "--older",
            help="Use older object generations even if they may hold deleted records.",
        ),
    ] = False,
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Restore the recoverable records and mark the rest as holes."),
    ] = False,
    options: Options = None,
    as_json: AsJson = False,
) -> None:
    """List damaged or missing objects and the records that can be restored.

    Records are restored from the intact part of the object, from older generations that are not
    deleted yet, and from the node's commit log ([b]--data[/b]). With [b]--apply[/b], offsets
    without a copy become holes, which readers skip. Exits with 1 if damage remains.

    Example: [b]penstock tier repair s3://logs/penstock --data /var/lib/penstock[/b]
    """
    report = tier_admin.repair_tier(
        _config(url, options), shard=_shard(shard), data=data, older=older, apply=apply
    )
    tier_output.print_repair(report, as_json=as_json)
    is_left = report.unreadable or not all(repair.applied for repair in report.repairs)
    raise typer.Exit(DAMAGED if is_left else 0)


@app.command()
def rebuild(
    url: Url,
    directory: Annotated[
        str,
        typer.Argument(metavar="DIR", help="Data directory of the node.", show_default=False),
    ],
    options: Options = None,
) -> None:
    """Rebuild the tier metadata of a data directory from the tier.

    Stop the node that uses the directory first.
    """
    count = tier_admin.rebuild_metadata(_config(url, options), f"{directory}/tier-meta")
    print_line(f"{count} shards")


@app.command()
def restore(
    url: Url,
    data: Data,
    cluster: Cluster = None,
    config: Config = None,
    options: Options = None,
    as_json: AsJson = False,
) -> None:
    """Create a new data directory from a tier, ready for [b]penstock serve[/b].

    Topics keep their ids, names, options and offsets; groups resume at their committed offsets.
    Records that were never uploaded are lost. The old node is fenced: it can no longer write to
    the tier.

    Example: [b]penstock tier restore s3://logs/penstock --data /var/lib/penstock[/b]
    """
    store_settings, node_id = _new_store_settings(config)
    result = tier_admin.restore_tier(
        _config(url, options), data, store_settings, node_id=node_id, cluster_id=cluster
    )
    tier_output.print_restored(result, as_json=as_json)


@app.command()
def attach(
    url: Url,
    data: Data,
    cluster: Cluster = None,
    config: Config = None,
    options: Options = None,
    as_json: AsJson = False,
) -> None:
    """Add the topics of a tier to the data directory of a stopped node.

    Like [b]restore[/b], for a directory that already has topics. Topics that exist in it are
    skipped.

    Example: [b]penstock tier attach s3://logs/penstock --data /var/lib/penstock[/b]
    """
    store_settings, node_id = _new_store_settings(config)
    result = tier_admin.attach_tier(
        _config(url, options), data, store_settings, node_id=node_id, cluster_id=cluster
    )
    tier_output.print_restored(result, as_json=as_json)


@app.command()
def pull(
    url: Url,
    shard: ShardName,
    directory: Annotated[
        str,
        typer.Argument(metavar="DIR", help="Store directory to create.", show_default=False),
    ],
    renumber: Annotated[
        bool, typer.Option("--renumber", help="Assign new offsets to the records, from 0.")
    ] = False,
    options: Options = None,
) -> None:
    """Copy a shard from a tier into a new store directory.

    Records keep their offsets unless [b]--renumber[/b] is given.

    Example: [b]penstock tier pull s3://logs/penstock orders_0 restored[/b]
    """
    shard_id = read_shard(shard)
    with progress_bar() as show:
        count = tier_admin.pull_shard(
            _config(url, options),
            shard_id,
            directory,
            step_progress(show, "pull"),
            renumber=renumber,
        )
    with SegmentStore.open(directory) as store:
        bounds = store.bounds(shard_id)
    print_line(f"{count} records, offsets {bounds.earliest} to {bounds.commit}")
