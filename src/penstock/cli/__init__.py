"""The `penstock` command: parses arguments, calls one function of the library, prints."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="penstock",
    help="A message store for Python.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def root() -> None:
    """A message store for Python."""


def main() -> None:
    """The entry point of the console script."""
    app()
