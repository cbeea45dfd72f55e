"""`penstock retention`: apply the retention policies now."""

from __future__ import annotations

from typing import Final

import typer

from penstock.cli.output import print_line
from penstock.cli.target import Data, Namespace, Server, open_target

app: Final = typer.Typer(no_args_is_help=True)


@app.callback()
def retention() -> None:
    """Apply the topics' retention policies."""


@app.command("run")
def retention_run(
    server: Server = None, data: Data = None, namespace: Namespace = "default"
) -> None:
    """Delete expired records, compact topics and seal full segments now.

    A node does this in the background every few seconds.
    """
    with open_target(server, data, namespace) as store:
        store.run_upkeep()
    print_line("retention, compaction and sealing done")
