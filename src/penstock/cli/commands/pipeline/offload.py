"""`penstock pipeline offload`: upload commit logs to their tiers."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from penstock.cli.arguments import AsJson, Directory
from penstock.cli.commands.pipeline.jobs import Master, Topics, app, start_session
from penstock.cli.output import print_fields, print_json, print_table, progress_bar, size_text
from penstock.cli.quantities import read_size
from penstock.errors import BadRequestError

Tier = Annotated[
    str | None,
    typer.Option(
        "--tier",
        metavar="URL",
        help="URL of the tier: file:///var/lib/tier, s3://…",
        show_default="the tier of each topic",
    ),
]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Upload topics that their node uploads itself, too.")
]
_CHUNK_SIZE_MIN: Final = 4096
ChunkSize = Annotated[
    str,
    typer.Option(metavar="SIZE", help="Size of the uploaded objects: 4456448, 4352KiB, 64MB."),
]


@app.command()
def offload(
    context: typer.Context,
    directory: Directory,
    tier: Tier = None,
    topics: Topics = None,
    take_over: TakeOver = False,
    chunk_size: ChunkSize = "4352KiB",
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Upload committed records to a tier, all shards in parallel.

    Resumes at the end of the tier. The store is only read and may be in use. A node uploads its
    topics itself unless [b]tiering.uploader[/b] of the node or topic is [b]spark[/b].

    Example: [b]penstock pipeline offload data --tier s3://logs/penstock[/b]
    """
    size = read_size(chunk_size)
    if size < _CHUNK_SIZE_MIN:
        raise BadRequestError(f"--chunk-size is {size} bytes, the minimum is {_CHUNK_SIZE_MIN}")
    from penstock.pipeline import jobs

    with progress_bar() as progress:
        result = jobs.offload(
            start_session(context, master),
            directory,
            tier,
            topics=topics,
            take_over=take_over,
            chunk_size=size,
            progress=progress,
        )
    if as_json:
        print_json([result])
        return
    print_table(
        ("shard", "#from", "#to", "#rows", "#size", "#gone before"),
        (
            (shard.shard, shard.start, shard.end, shard.rows, size_text(shard.bytes), shard.gone)
            for shard in result.shards
        ),
    )
    print_fields(
        (
            ("rows", result.rows),
            ("size", size_text(result.bytes)),
            ("left to their node", len(result.left_to_node)),
            ("seconds", f"{result.seconds:.1f}"),
        )
    )
