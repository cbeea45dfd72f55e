"""`penstock mqtt`: the commands, and those that show what the front end has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from penstock.cli.arguments import AsJson, confirm
from penstock.cli.commands.mqtt import blacklist, messages, password
from penstock.cli.commands.mqtt.target import (
    DEFAULT_ADDRESS,
    Broker,
    CaFile,
    Item,
    Limit,
    PasswordFile,
    User,
    options_of,
    request,
)
from penstock.cli.output import Cell, print_fields, print_json, print_line, print_table, time_text

app: Final = typer.Typer(
    help="Publish, subscribe, and administer the MQTT front end.", no_args_is_help=True
)
app.command()(messages.publish)
app.command()(messages.subscribe)
app.command()(password.password)
app.add_typer(blacklist.app, name="blacklist")

Client = Annotated[str, typer.Argument(metavar="CLIENT", help="Client id.", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")]


@app.command()
def sessions(
    idle: Annotated[
        bool, typer.Option("--idle", help="Only sessions without a connection.")
    ] = False,
    limit: Limit = 1_000,
    as_json: AsJson = False,
    broker: Broker = DEFAULT_ADDRESS,
    user: User = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
) -> None:
    """List sessions."""
    options = options_of(broker, user, password_file, ca_file)
    items = request(options, "sessions", {"idle": idle, "limit": limit})
    rows = [
        (
            str(item["client"]),
            "connected" if item["is_connected"] else "",
            _time(item["expires_at_ms"]),
            *(_text(item, name) for name in ("subscriptions", "in_flight", "shards_behind")),
        )
        for item in items
    ]
    names = ("client", "state", "expires", "#subscriptions", "#in flight", "#shards to catch up")
    _show(items, names, rows, as_json=as_json)


@app.command()
def subscriptions(
    client: Annotated[
        str | None, typer.Argument(metavar="[CLIENT]", help="Only those of this client id.")
    ] = None,
    limit: Limit = 1_000,
    as_json: AsJson = False,
    broker: Broker = DEFAULT_ADDRESS,
    user: User = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
) -> None:
    """List subscriptions, of all clients or one."""
    options = options_of(broker, user, password_file, ca_file)
    arguments: dict[str, object] = {"limit": limit}
    if client is not None:
        arguments["client"] = client
    items = request(options, "subscriptions", arguments)
    rows = [tuple(_text(item, name) for name in ("client", "filter", "qos")) for item in items]
    _show(items, ("client", "filter", "#qos"), rows, as_json=as_json)


@app.command()
def retained(
    topic_filter: Annotated[str, typer.Argument(metavar="[FILTER]", help="Topic filter.")] = "#",
    limit: Limit = 1_000,
    as_json: AsJson = False,
    broker: Broker = DEFAULT_ADDRESS,
    user: User = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
) -> None:
    """List retained messages."""
    options = options_of(broker, user, password_file, ca_file)
    items = request(options, "retained", {"filter": topic_filter, "limit": limit})
    names = ("topic", "qos", "size", "payload")
    rows = [tuple(_text(item, name) for name in names) for item in items]
    _show(items, ("topic", "#qos", "#bytes", "payload"), rows, as_json=as_json)


@app.command()
def explain(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="MQTT topic.", show_default=False)],
    limit: Limit = 100,
    as_json: AsJson = False,
    broker: Broker = DEFAULT_ADDRESS,
    user: User = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
) -> None:
    """Show where the messages of a topic are stored, and which sessions receive them."""
    options = options_of(broker, user, password_file, ca_file)
    [item] = request(options, "explain", {"topic": topic, "limit": limit})
    if as_json:
        print_json([item])
        return
    found = item["subscribers"]
    subscribers = found if isinstance(found, list) else []
    print_fields(
        [
            ("rule", str(item["rule"])),
            ("stored topic", str(item["stored_topic"])),
            ("shard", _text(item, "shard") or "created by the first publish"),
            ("QoS 0", "stored" if item["is_stored_at_qos0"] else "not stored"),
            ("retained", "yes" if item["retained"] else "no"),
        ],
        title=topic,
    )
    rows = [tuple(_text(one, name) for name in ("client", "filter", "qos")) for one in subscribers]
    print_table(("client", "filter", "#qos"), rows)


@app.command()
def kick(
    client: Client,
    yes: Yes = False,
    broker: Broker = DEFAULT_ADDRESS,
    user: User = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
) -> None:
    """Disconnect a client. It may connect again: see `penstock mqtt blacklist`."""
    confirm(f"Disconnect {client}?", yes=yes)
    options = options_of(broker, user, password_file, ca_file)
    [item] = request(options, "kick", {"client": client})
    print_line(f"disconnected {client}" if item["was_connected"] else f"{client} was not connected")


@app.command()
def slow(
    as_json: AsJson = False,
    broker: Broker = DEFAULT_ADDRESS,
    user: User = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
) -> None:
    """List the subscribers that acknowledged slowest in the last five minutes."""
    options = options_of(broker, user, password_file, ca_file)
    items = request(options, "slow", {})
    rows = [
        (_text(item, "latency_ms"), _text(item, "client_id"), _text(item, "topic"))
        for item in items
    ]
    _show(items, ("#ms", "client", "topic"), rows, as_json=as_json)


def _show(
    items: list[Item], names: tuple[str, ...], rows: Sequence[tuple[Cell, ...]], *, as_json: bool
) -> None:
    if as_json:
        print_json(items)
    else:
        print_table(names, rows)


def _text(item: Item, name: str) -> Cell:
    value = item.get(name)
    return "" if value is None else str(value)


def _time(value: object) -> str:
    return time_text(value) if isinstance(value, int) else ""
