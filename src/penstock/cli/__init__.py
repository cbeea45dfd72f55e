"""The `penstock` command.

Commands parse arguments, call one function of the library and print what it returns; a command
that needs more than that is missing a library function. Each group of commands has a file.

    exit code 0   done
              1   a check found damage
              2   the command could not be carried out; one sentence on stderr says why
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Final, NoReturn

import typer

from penstock.cli import (
    cluster,
    groups,
    messages,
    pipeline,
    pipeline_run,
    serve,
    store,
    tier,
    topic,
)
from penstock.errors import StoreError

FAILED: Final = 2

app: Final = typer.Typer(
    name="penstock",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(serve.serve)
app.command("config")(serve.show_config)
app.add_typer(topic.app, name="topic")
app.command()(messages.produce)
app.command()(messages.consume)
app.add_typer(groups.app, name="groups")
retention: Final = typer.Typer(help="Delete what is no longer kept.", no_args_is_help=True)
retention.command("run")(messages.retention_run)
retention.callback()(lambda: None)
app.add_typer(retention, name="retention")
app.add_typer(store.app, name="store")
app.add_typer(cluster.app, name="cluster")
pipeline.app.command()(pipeline_run.run)
pipeline.app.command()(pipeline_run.lag)
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(tier.app, name="tier")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """A message store for Python: its files are Apache RocketMQ's, byte for byte."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; the entry point of the console script."""
    if not __debug__:
        _fail("python -O switches off the checks that protect the store; run it without")
    try:
        app(args=None if arguments is None else list(arguments), prog_name="penstock")
    except StoreError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    sys.exit(0)


def _fail(sentence: str) -> NoReturn:
    typer.echo(f"penstock: {sentence}", err=True)
    sys.exit(FAILED)
