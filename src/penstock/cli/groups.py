"""`penstock groups`: what groups of consumers have read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from penstock.api import Store
from penstock.api.topic_info import GroupInfo
from penstock.cli.arguments import AsJson, TopicName, read_offset, read_time
from penstock.cli.output import print_json, print_line, print_table, time_text
from penstock.cli.target import Data, Namespace, Server, open_target
from penstock.errors import BadRequestError

app: Final = typer.Typer(help="Show and reset groups of consumers.", no_args_is_help=True)

Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="The group's name.", show_default=False)
]


@app.command("list")
def list_groups(
    as_json: AsJson = False,
    server: Server = None,
    data: Data = None,
    namespace: Namespace = "default",
) -> None:
    """List the groups that have committed something."""
    with open_target(server, data, namespace) as store:
        found = [store.describe_group(name) for name in store.groups()]
    if as_json:
        print_json(
            [
                {"group": info.group, "lag": info.total_lag}
                | ({"unknown": len(info.problems)} if info.problems else {})
                for info in found
            ]
        )
        return
    rows = [
        (
            info.group,
            f">= {info.total_lag}" if info.problems else info.total_lag,
            time_text(info.last_commit_ms),
        )
        for info in found
    ]
    print_table(("group", "#lag", "last commit"), rows)
    _print_problems(found)


@app.command()
def describe(
    group: Group,
    as_json: AsJson = False,
    server: Server = None,
    data: Data = None,
    namespace: Namespace = "default",
) -> None:
    """Show how far a group has read, and how far it is behind."""
    with open_target(server, data, namespace) as store:
        info = store.describe_group(group)
    rows = [
        (topic, partition, offset, info.lag.get((topic, partition)))
        for (topic, partition), offset in sorted(info.offsets.items())
    ]
    if as_json:
        names = ("topic", "partition", "offset", "lag")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    shown = [(*row[:3], "?" if row[3] is None else row[3]) for row in rows]
    print_table(("topic", "#partition", "#offset", "#lag"), shown, title=group)
    _print_problems([info])


def _print_problems(found: Sequence[GroupInfo]) -> None:
    """Say which partitions are left out of the lag, each once."""
    problems = {at: problem for info in found for at, problem in info.problems.items()}
    for (topic, partition), problem in sorted(problems.items()):
        print_line(f"lag of {topic}/{partition} is not known: {problem}")


@app.command()
def reset(
    group: Group,
    topic: TopicName,
    to: Annotated[
        str,
        typer.Option("--to", help="earliest, latest, an offset, or a time after `@`: @2026-01-31."),
    ] = "earliest",
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")
    ] = None,
    server: Server = None,
    data: Data = None,
    namespace: Namespace = "default",
) -> None:
    """Let a group read again, or skip: no commit made before can undo it.

    penstock groups reset billing orders --to @2026-01-31T12:00
    """
    with open_target(server, data, namespace) as store:
        offsets = _targets(store, topic, to, partition)
        store.reset_group(group, offsets)
    print_table(
        ("topic", "#partition", "#offset"),
        [(name, one, offset) for (name, one), offset in sorted(offsets.items())],
    )


def _targets(
    store: Store, topic: str, to: str, partition: int | None
) -> dict[tuple[str, int], int]:
    info = store.topic(topic).describe()
    chosen = [one for one in info.bounded if partition in (None, one.partition)]
    if not chosen:
        raise BadRequestError(f"topic {topic!r} has no partition {partition}")
    if to.startswith("@"):
        moment = read_time(to[1:])
        assert moment is not None
        at = store.topic(topic).offsets_at(moment)
        return {(topic, one.partition): int(at[one.partition]) for one in chosen}
    if to == "earliest":
        return {(topic, one.partition): int(one.earliest) for one in chosen}
    if to == "latest":
        return {(topic, one.partition): int(one.commit) for one in chosen}
    offset = read_offset(to)
    if offset is None:
        raise BadRequestError(f"{to!r} is no place; say earliest, latest, an offset or @time")
    return {(topic, one.partition): offset for one in chosen}


@app.command()
def delete(
    group: Group, server: Server = None, data: Data = None, namespace: Namespace = "default"
) -> None:
    """Forget a group and its offsets."""
    with open_target(server, data, namespace) as store:
        store.delete_group(group)
    print_line(f"deleted {group}")
