"""`penstock pipeline package`: an archive of the dependencies of Spark executors."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.arguments import AsJson
from penstock.cli.commands.pipeline.jobs import app
from penstock.cli.output import print_fields, print_json, size_text

Output = Annotated[
    str, typer.Option("--output", "-o", metavar="FILE", help="Archive to write, a .tgz file.")
]
With = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="NAME", help="Additional distribution to include (repeatable)."),
]
Platform = Annotated[
    str | None,
    typer.Option(
        "--platform",
        metavar="TAG",
        help="Platform tag of the wheels that pip downloads, e.g. manylinux_2_28_aarch64.",
        show_default="this machine's",
    ),
]
PythonVersion = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="VERSION",
        help="Python version of the executors, e.g. 3.12; pip downloads the wheels.",
        show_default="this program's",
    ),
]
Venv = Annotated[
    bool, typer.Option("--venv", help="Include this Python interpreter and its standard library.")
]


@app.command()
def package(
    output: Output,
    more: With = None,
    platform: Platform = None,
    python: PythonVersion = None,
    venv: Venv = False,
    as_json: AsJson = False,
) -> None:
    """Pack this package and its dependencies into an archive for Spark executors.

    The archive fits machines of the same platform and Python version, unless [b]--platform[/b] or
    [b]--python[/b] names others. It does not contain Spark.

    Example: [b]penstock pipeline package -o env.tgz[/b]
    """
    from penstock.pipeline import archive_settings
    from penstock.pipeline import package as make

    packed = make(output, more=more or (), platform=platform, python=python, venv=venv)
    if as_json:
        print_json([packed])
        return
    print_fields(
        (
            ("archive", packed.path),
            ("size", size_text(packed.bytes)),
            ("files", packed.files),
            ("Python", packed.python),
            ("platform", packed.platform),
            ("native extension", "yes" if packed.has_native else "no"),
            *((f"  {name}", version) for name, version in packed.distributions.items()),
            *archive_settings(packed.path, venv=venv).items(),
        )
    )
