"""The `penstock` command.

Commands parse arguments, call one function of the library and print what it returns; a command
that needs more than that is missing a library function. Each group of commands has a file.

    exit code 0   done
              1   a check found damage
              2   the command could not be carried out; one sentence on stderr says why
            130   Ctrl-C or SIGTERM came first; `serve` and `consume --follow` end so, with 0
            141   whoever read the output has gone (`| head`): as programs end by SIGPIPE
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Final, NoReturn

import typer

from penstock.cli.output import printable
from penstock.cli.startup import without_collecting
from penstock.errors import StoreError

FAILED: Final = 2
READER_GONE: Final = 141


def _add_serve(app: typer.Typer) -> None:
    with without_collecting():
        from penstock.cli.commands import serve

    app.command()(serve.serve)


def _add_config(app: typer.Typer) -> None:
    from penstock.cli.commands import serve

    app.command("config")(serve.show_config)


def _add_topic(app: typer.Typer) -> None:
    from penstock.cli.commands import topic

    app.add_typer(topic.app, name="topic")


def _add_produce(app: typer.Typer) -> None:
    from penstock.cli.commands import produce as messages

    app.command()(messages.produce)


def _add_consume(app: typer.Typer) -> None:
    from penstock.cli.commands import consume

    app.command()(consume.consume)


def _add_groups(app: typer.Typer) -> None:
    from penstock.cli.commands import groups

    app.add_typer(groups.app, name="groups")


def _add_retention(app: typer.Typer) -> None:
    from penstock.cli.commands import produce as messages

    retention = typer.Typer(help="Delete what is no longer kept.", no_args_is_help=True)
    retention.command("run")(messages.retention_run)
    retention.callback()(lambda: None)
    app.add_typer(retention, name="retention")


def _add_store(app: typer.Typer) -> None:
    from penstock.cli.commands import store

    app.add_typer(store.app, name="store")


def _add_cluster(app: typer.Typer) -> None:
    from penstock.cli.commands import cluster

    app.add_typer(cluster.app, name="cluster")


def _add_pipeline(app: typer.Typer) -> None:
    # The others add commands to the first.
    from penstock.cli.commands.pipeline import export_import as pipeline_exchange
    from penstock.cli.commands.pipeline import jobs as pipeline
    from penstock.cli.commands.pipeline import offload as pipeline_offload
    from penstock.cli.commands.pipeline import package as pipeline_package
    from penstock.cli.commands.pipeline import run as pipeline_run

    app.add_typer(pipeline.app, name="pipeline")


def _add_tier(app: typer.Typer) -> None:
    from penstock.cli.commands import tier

    app.add_typer(tier.app, name="tier")


def _add_clock(app: typer.Typer) -> None:
    from penstock.cli.commands import clock

    app.add_typer(clock.app, name="clock")


_COMMANDS: Final[dict[str, Callable[[typer.Typer], None]]] = {
    "serve": _add_serve,
    "config": _add_config,
    "topic": _add_topic,
    "produce": _add_produce,
    "consume": _add_consume,
    "groups": _add_groups,
    "retention": _add_retention,
    "store": _add_store,
    "cluster": _add_cluster,
    "pipeline": _add_pipeline,
    "tier": _add_tier,
    "clock": _add_clock,
}
"""Each loads what it needs when it is wanted: a server starts in half the time without the rest."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"penstock {version('penstock')}")
        raise typer.Exit


def root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """A message store for Python: its files are Apache RocketMQ's, byte for byte."""


def build(command: str | None = None) -> typer.Typer:
    """Return the command line; given the name of a command, only so much of it."""
    app = typer.Typer(
        name="penstock",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    known = _COMMANDS.get(command or "")
    for add in [known] if known is not None else _COMMANDS.values():
        add(app)
    return app


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; the entry point of the console script."""
    if not __debug__:
        _fail("python -O switches off the checks that protect the store; run it without")
    words = sys.argv[1:] if arguments is None else list(arguments)
    # gRPC's own lines say less than our sentences, and come between them.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    app = build(words[0] if words else None)
    try:
        _run(app, words)
    except StoreError as error:
        _fail(str(error))
    except BrokenPipeError:
        _drop_output()
        sys.exit(READER_GONE)
    except OSError as error:
        _drop_output()
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    sys.exit(0)


def _run(app: typer.Typer, words: list[str]) -> None:
    try:
        app(args=words, prog_name="penstock")
    except SystemExit as ended:
        # typer has 1 for these two, which says here that a check found damage.
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None
        if isinstance(ended.__context__, typer.Abort):
            sys.exit(FAILED)
        raise
    finally:
        # Not left to the interpreter's end, which can only print that it failed.
        if sys.stdout is not None:  # as for those that were started without one
            sys.stdout.flush()


def _drop_output() -> None:
    """What could not be written is not tried again at the exit, which would fail there."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(sentence: str) -> NoReturn:
    lines = [printable(line) for line in sentence.split("\n")]
    typer.echo("penstock: " + "\n".join(lines), err=True)
    sys.exit(FAILED)
