"""`penstock clock`: whether a node believes its clock, and the operator's word that it is right."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
import typer

from penstock.cli.arguments import AsJson
from penstock.cli.output import print_fields, print_json, print_line
from penstock.cli.target import Data, Server, open_target
from penstock.platform.clock_guard import ClockStatus

app: Final = typer.Typer(
    help="Show whether a node believes its clock, and confirm it.", no_args_is_help=True
)


@app.command()
def status(as_json: AsJson = False, server: Server = None, data: Data = None) -> None:
    """Show what the node's clock says, and whether the node deletes by age."""
    with open_target(server, data, "default") as store:
        found = store.clock_status()
    if as_json:
        print_json([msgspec.structs.asdict(found)])
        return
    print_fields(_fields(found), title="clock")


@app.command()
def confirm(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    server: Server = None,
    data: Data = None,
) -> None:
    """Take what the node's clock shows for the right time.

    What is too old by that time is deleted from then on. Look at `penstock clock status` and at
    the machine's clock first.
    """
    with open_target(server, data, "default") as store:
        before = store.clock_status()
        if not before.held:
            print_line(f"the node believes its clock: {_moment(before.now_ms)}")
            return
        if not yes:
            typer.confirm(
                f"The node's clock {before.reason}. Is it {_moment(before.now_ms)}?", abort=True
            )
        after = store.confirm_clock()
    print_line(f"confirmed: it is {_moment(after.now_ms)}; deletion by age goes on")


def _fields(found: ClockStatus) -> list[tuple[str, str]]:
    fields = [("now", _moment(found.now_ms)), ("held", "yes" if found.held else "no")]
    if found.held:
        fields += [
            ("reason", f"the clock {found.reason}"),
            ("offset", f"{found.offset_ms / 1000:.0f} s"),
            ("deletes by age until", _moment(found.expiry_ms)),
            ("what to do", "set the clock right, or: penstock clock confirm"),
        ]
    return fields


def _moment(now_ms: int) -> str:
    try:
        return datetime.fromtimestamp(now_ms / 1000, tz=UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{now_ms} ms since 1970"
