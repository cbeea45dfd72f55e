"""The `penstock` command.

A command parses its arguments, calls one function of the library and prints the result; a command
that needs more than that is missing a library function.

    commands/           one module, or one folder, per subcommand
    command_table.py    the subcommands and their lazy imports
    invocation.py       errors become a sentence on stderr and an exit code (exit_codes.py)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from penstock.cli.command_table import COMMANDS
from penstock.cli.invocation import fail, run

__all__ = ["build", "main"]


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"penstock {version('penstock')}")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Run and manage Penstock, a message store for Python with RocketMQ's file formats."""


def build(command: str | None = None) -> typer.Typer:
    """Return the command line; given the name of a subcommand, with that subcommand only."""
    app = typer.Typer(
        name="penstock",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    known = COMMANDS.get(command or "")
    for add in [known] if known is not None else COMMANDS.values():
        add(app)
    return app


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; the entry point of the console script."""
    if not __debug__:
        fail("python -O disables the assertions that protect the store: run without -O")
    given = sys.argv[1:] if arguments is None else list(arguments)
    # gRPC's own log lines repeat our error messages with less detail.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    run(build(given[0] if given else None), given)
