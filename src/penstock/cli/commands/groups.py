"""`penstock groups`: show and change consumer groups."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Final

import typer

from penstock.api import GroupInfo, Store
from penstock.cli.arguments import AsJson, TopicName, confirm, read_ago, read_offset, read_time
from penstock.cli.output import print_json, print_line, print_table, time_text
from penstock.cli.target import Data, Namespace, Server, open_target
from penstock.errors import BadRequestError, GroupNotEmptyError, UnknownGroupError
from penstock.platform.clock import SystemClock

app: Final = typer.Typer(
    help="List, describe, reset and delete consumer groups.", no_args_is_help=True
)

Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="Name of the consumer group.", show_default=False)
]


@app.command("list")
def list_groups(
    as_json: AsJson = False,
    server: Server = None,
    data: Data = None,
    namespace: Namespace = "default",
) -> None:
    """List the groups that have members or committed offsets."""
    with open_target(server, data, namespace) as store:
        infos = _describe_all(store)
    if as_json:
        print_json(
            [
                {
                    "group": info.group,
                    "lag": info.total_lag,
                    "state": info.state,
                    "members": len(info.members),
                }
                | ({"unknown": len(info.problems)} if info.problems else {})
                for info in infos
            ]
        )
        return
    rows = [
        (
            info.group,
            info.state,
            len(info.members),
            f">= {info.total_lag}" if info.problems else info.total_lag,
            time_text(info.last_commit_ms) if info.last_commit_ms else "",
        )
        for info in infos
    ]
    print_table(("group", "state", "#members", "#lag", "last commit"), rows)
    _print_problems(infos)


def _describe_all(store: Store) -> list[GroupInfo]:
    infos: list[GroupInfo] = []
    for name in store.groups():
        with suppress(UnknownGroupError):  # its last member left in the meantime
            infos.append(store.describe_group(name))
    return infos


@app.command()
def describe(
    group: Group,
    as_json: AsJson = False,
    server: Server = None,
    data: Data = None,
    namespace: Namespace = "default",
) -> None:
    """Show the state, members, committed offsets and lag of a group."""
    with open_target(server, data, namespace) as store:
        info = store.describe_group(group)
    readers = {
        partition: member.member_id for member in info.members for partition in member.partitions
    }
    rows = [
        (
            topic,
            partition,
            info.offsets.get((topic, partition)),
            info.lag.get((topic, partition)),
            readers.get((topic, partition)),
        )
        for topic, partition in sorted({*info.offsets, *readers})
    ]
    if as_json:
        names = ("topic", "partition", "offset", "lag", "member")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    state = f"{group}: {info.state}" + (f", {info.protocol}" if info.protocol else "")
    shown = [
        (topic, partition, offset, "?" if (topic, partition) in info.problems else lag, member)
        for topic, partition, offset, lag, member in rows
    ]
    print_table(
        ("topic", "#partition", "#offset", "#lag", "member"),
        [tuple("" if cell is None else cell for cell in row) for row in shown],
        title=state,
    )
    if info.members:
        members = [
            (member.member_id, member.client_host, member.instance_id or "", len(member.partitions))
            for member in info.members
        ]
        print_table(("member", "host", "instance", "#partitions"), members)
    _print_problems([info])


def _print_problems(infos: Sequence[GroupInfo]) -> None:
    """Print the partitions whose lag is unknown, each once."""
    problems = {
        partition: problem for info in infos for partition, problem in info.problems.items()
    }
    for (topic, partition), problem in sorted(problems.items()):
        print_line(f"lag of {topic}/{partition} is unknown: {problem}")


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")]


@app.command()
def reset(
    group: Group,
    topic: TopicName,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="POSITION",
            help="New position: earliest, latest, an offset, a time (@2026-01-31) or an age "
            "(-90m, -12h, -7d).",
            show_default=False,
        ),
    ],
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Reset only this partition.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the new offsets without setting them.")
    ] = False,
    yes: Yes = False,
    server: Server = None,
    data: Data = None,
    namespace: Namespace = "default",
) -> None:
    """Set the committed offsets of a group, to re-read or skip records.

    Fails while the group has members. Commits from before the reset are rejected.

    penstock groups reset billing orders --to @2026-01-31T12:00
    """
    with open_target(server, data, namespace) as store:
        offsets = _targets(store, topic, to, partition)
        known = _offsets_without_members(store, group)
        rows = [
            (*partition, known.get(partition, ""), offset, _moved(known.get(partition), offset))
            for partition, offset in sorted(offsets.items())
        ]
        print_table(("topic", "#partition", "#offset", "#new offset", "#records"), rows)
        if dry_run:
            print_line("dry run: nothing was set")
            return
        confirm(f"Set {len(offsets)} offsets of group {group}?", yes=yes)
        store.reset_group(group, offsets)
    print_line(f"set {len(offsets)} offsets of {group}")


def _offsets_without_members(store: Store, group: str) -> dict[tuple[str, int], int]:
    """Return the committed offsets; raise for a group with members before asking to confirm."""
    try:
        info = store.describe_group(group)
    except UnknownGroupError:
        return {}
    if info.members:
        members = ", ".join(f"{member.member_id} ({member.client_host})" for member in info.members)
        raise GroupNotEmptyError(group, members=members, action="a reset of its offsets")
    return {partition: int(offset) for partition, offset in info.offsets.items()}


def _moved(known: int | None, offset: int) -> str:
    return "" if known is None else f"{offset - known:+d}"


def _targets(
    store: Store, topic: str, to: str, partition: int | None
) -> dict[tuple[str, int], int]:
    info = store.topic(topic).describe()
    chosen = [bounds for bounds in info.bounded if partition in (None, bounds.partition)]
    if not chosen:
        raise BadRequestError(f"topic {topic!r} has no partition {partition}")
    if to.startswith("@"):
        moment = read_time(to[1:])
        assert moment is not None
        offsets = store.topic(topic).offsets_at(moment)
        return {(topic, bounds.partition): int(offsets[bounds.partition]) for bounds in chosen}
    if (ago_ms := read_ago(to)) is not None:
        offsets = store.topic(topic).offsets_at(SystemClock().now_ms() - ago_ms)
        return {(topic, bounds.partition): int(offsets[bounds.partition]) for bounds in chosen}
    if to == "earliest":
        return {(topic, bounds.partition): int(bounds.earliest) for bounds in chosen}
    if to == "latest":
        return {(topic, bounds.partition): int(bounds.commit) for bounds in chosen}
    offset = read_offset(to)
    if offset is None:
        raise BadRequestError(
            f"{to!r} is not a position; write earliest, latest, an offset, @TIME or an age (-12h)"
        )
    return {(topic, bounds.partition): offset for bounds in chosen}


@app.command()
def delete(
    group: Group,
    yes: Yes = False,
    server: Server = None,
    data: Data = None,
    namespace: Namespace = "default",
) -> None:
    """Delete a group and its committed offsets. Fails while the group has members."""
    with open_target(server, data, namespace) as store:
        info = store.describe_group(group)
        confirm(f"Delete group {group} and its {len(info.offsets)} offsets?", yes=yes)
        store.delete_group(group)
    print_line(f"deleted {group}")
