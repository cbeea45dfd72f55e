"""`penstock clock`: show and confirm the clock of a node (see docs/clock.md)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
import typer

from penstock.cli.arguments import AsJson
from penstock.cli.output import print_fields, print_json, print_line
from penstock.cli.target import Data, Server, open_target
from penstock.platform.clock_guard import ClockStatus

app: Final = typer.Typer(help="Show and confirm the clock of a node.", no_args_is_help=True)


@app.command()
def status(as_json: AsJson = False, server: Server = None, data: Data = None) -> None:
    """Show the node's clock, and whether it deletes records by age."""
    with open_target(server, data, "default") as store:
        status = store.clock_status()
    if as_json:
        print_json([msgspec.structs.asdict(status)])
        return
    print_fields(_fields(status), title="clock")


@app.command()
def confirm(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")] = False,
    server: Server = None,
    data: Data = None,
) -> None:
    """Confirm that the node's clock shows the right time after a suspected step.

    The node then resumes deletion by age: records that are too old at that time are deleted. Check
    `penstock clock status` and the machine's clock first.
    """
    with open_target(server, data, "default") as store:
        before = store.clock_status()
        if not before.held:
            print_line(f"the clock is not held, nothing to confirm: {_time(before.now_ms)}")
            return
        if not yes:
            typer.confirm(
                f"The node's clock {before.reason}. Is it {_time(before.now_ms)}?", abort=True
            )
        after = store.confirm_clock()
    print_line(f"confirmed: it is {_time(after.now_ms)}; deletion by age is resumed")


def _fields(status: ClockStatus) -> list[tuple[str, str]]:
    fields = [("now", _time(status.now_ms)), ("held", "yes" if status.held else "no")]
    if status.held:
        fields += [
            ("reason", f"the clock {status.reason}"),
            ("offset", f"{status.offset_ms / 1000:.0f} s"),
            ("deletes by age until", _time(status.expiry_ms)),
            ("what to do", "correct the clock, or run: penstock clock confirm"),
        ]
    return fields


def _time(now_ms: int) -> str:
    try:
        return datetime.fromtimestamp(now_ms / 1000, tz=UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{now_ms} ms since 1970"
