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


@app.command()
def package(output: Output, more: With = None, as_json: AsJson = False) -> None:
    """Pack this package and its dependencies into an archive for Spark executors.

    The archive fits machines of the same platform and Python version. It does not contain Spark.

    Example: [b]penstock pipeline package -o env.tgz[/b]
    """
    from penstock.pipeline import archive_settings
    from penstock.pipeline import package as make

    archive = make(output, more=more or ())
    if as_json:
        print_json([archive])
        return
    print_fields(
        (
            ("archive", archive.path),
            ("size", size_text(archive.bytes)),
            ("files", archive.files),
            ("Python", archive.python),
            ("platform", archive.platform),
            *((f"  {name}", version) for name, version in archive.distributions.items()),
            *archive_settings(archive.path).items(),
        )
    )
