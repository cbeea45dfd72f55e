"""Runs a command line and maps its errors to one sentence on stderr and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn

import typer

from penstock.cli.exit_codes import FAILED, READER_GONE
from penstock.cli.output import printable
from penstock.errors import StoreError


def run(app: typer.Typer, arguments: list[str]) -> NoReturn:
    """Run a command and exit with its code."""
    try:
        _run(app, arguments)
    except StoreError as error:
        fail(str(error))
    except BrokenPipeError:
        _discard_output()
        sys.exit(READER_GONE)
    except OSError as error:
        _discard_output()
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    sys.exit(0)


def fail(sentence: str) -> NoReturn:
    """Print an error and exit."""
    lines = [printable(line) for line in sentence.split("\n")]
    typer.echo("penstock: " + "\n".join(lines), err=True)
    sys.exit(FAILED)


def _run(app: typer.Typer, arguments: list[str]) -> None:
    try:
        app(args=arguments, prog_name="penstock")
    except SystemExit as ended:
        # typer exits with 1 for both, and 1 means here that a check found damage.
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None
        if isinstance(ended.__context__, typer.Abort):
            sys.exit(FAILED)
        raise
    finally:
        # Flushed here: the interpreter's own flush at exit could only print that it failed.
        if sys.stdout is not None:  # None in a process that was started without one
            sys.stdout.flush()


def _discard_output() -> None:
    """Redirect stdout to the null device if it cannot be flushed, so that the interpreter's flush
    at exit does not fail."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
