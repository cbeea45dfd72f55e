"""`penstock pipeline package`: what executors need, as an archive."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.arguments import AsJson
from penstock.cli.commands.pipeline.jobs import app
from penstock.cli.output import print_fields, print_json, size_text

Output = Annotated[
    str, typer.Option("--output", "-o", metavar="FILE", help="The archive, a .tgz file.")
]
With = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="NAME", help="Further distribution to pack (repeatable)."),
]


@app.command()
def package(output: Output, more: With = None, as_json: AsJson = False) -> None:
    """Pack this package and what it needs into an archive for the executors of a cluster.

    The archive is for machines of the same platform and Python version. Spark is not in it.

    Example: [b]penstock pipeline package -o env.tgz[/b]
    """
    from penstock.pipeline import archive_settings
    from penstock.pipeline import package as make

    made = make(output, more=more or ())
    if as_json:
        print_json([made])
        return
    print_fields(
        (
            ("archive", made.path),
            ("size", size_text(made.bytes)),
            ("files", made.files),
            ("Python", made.python),
            ("platform", made.platform),
            *((f"  {name}", version) for name, version in made.distributions.items()),
            *archive_settings(made.path).items(),
        )
    )
