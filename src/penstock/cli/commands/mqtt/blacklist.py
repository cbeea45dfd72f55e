"""`penstock mqtt blacklist`: clients that may not connect."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final

import typer

from penstock.cli.arguments import AsJson
from penstock.cli.commands.mqtt.target import (
    DEFAULT_ADDRESS,
    Broker,
    CaFile,
    Limit,
    PasswordFile,
    User,
    options_of,
    request,
)
from penstock.cli.output import print_json, print_line, print_table, time_text
from penstock.cli.quantities import read_duration_ms
from penstock.errors import BadRequestError
from penstock.platform.clock import SystemClock

app: Final = typer.Typer(help="List, add and remove refused clients.", no_args_is_help=True)


class Kind(Enum):
    """What an entry names."""

    USER = "user"
    CLIENT = "client"
    ADDRESS = "address"


class Match(Enum):
    """How it names it."""

    EXACT = "exact"
    REGEX = "regex"
    CIDR = "cidr"


KindArgument = Annotated[
    Kind, typer.Argument(help="User name, client id or address.", show_default=False)
]
Value = Annotated[
    str,
    typer.Argument(
        metavar="VALUE", help="Name, address, network or expression.", show_default=False
    ),
]
MatchOption = Annotated[
    Match, typer.Option("--match", "-m", help="Exact text, regular expression, or network.")
]


@app.command("list")
def list_entries(
    limit: Limit = 1_000,
    as_json: AsJson = False,
    broker: Broker = DEFAULT_ADDRESS,
    user: User = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
) -> None:
    """List the entries that have not expired."""
    options = options_of(broker, user, password_file, ca_file)
    items = request(options, "blacklist", {"limit": limit})
    if as_json:
        print_json(items)
        return
    rows = [
        (
            str(item["kind"]),
            str(item["match"]),
            str(item["value"]),
            _time(item.get("expires_at_ms")),
            str(item.get("reason", "")),
        )
        for item in items
    ]
    print_table(("kind", "match", "value", "expires", "reason"), rows)


@app.command()
def add(
    kind: KindArgument,
    value: Value,
    match: MatchOption = Match.EXACT,
    lasting: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="DURATION",
            help="Time until it expires (90m, 12h, 7d).",
            show_default="never",
        ),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Text for other administrators.")] = "",
    broker: Broker = DEFAULT_ADDRESS,
    user: User = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
) -> None:
    """Refuse clients from now on; those that are connected are disconnected.

    penstock mqtt blacklist add client sensor-7 --for 12h

    penstock mqtt blacklist add address 10.9.0.0/16 --match cidr
    """
    options = options_of(broker, user, password_file, ca_file)
    entry: dict[str, object] = {
        "kind": kind.value,
        "match": match.value,
        "value": value,
        "reason": reason,
    }
    if lasting is not None:
        duration_ms = read_duration_ms(lasting)
        if duration_ms is None:
            raise BadRequestError(f"{lasting!r} is not a duration; write 90m, 12h or 7d")
        entry["expires_at_ms"] = SystemClock().now_ms() + duration_ms
    [item] = request(options, "blacklist-add", entry)
    print_line(f"refused {value}; disconnected {item['disconnected']}")


@app.command()
def remove(
    kind: KindArgument,
    value: Value,
    match: MatchOption = Match.EXACT,
    broker: Broker = DEFAULT_ADDRESS,
    user: User = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
) -> None:
    """Remove an entry."""
    options = options_of(broker, user, password_file, ca_file)
    arguments: dict[str, object] = {"kind": kind.value, "match": match.value, "value": value}
    request(options, "blacklist-remove", arguments)
    print_line(f"removed {value}")


def _time(value: object) -> str:
    return time_text(value) if isinstance(value, int) else ""
