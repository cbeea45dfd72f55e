"""`penstock cluster reassign`: move the replicas of shards to other nodes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from typing import Annotated, Final

import msgspec
import typer

from penstock.cli.output import count_text, print_line, print_table, progress_bar, size_text
from penstock.cli.quantities import read_size
from penstock.cli.target import DEFAULT_ADDRESS, Namespace, Server
from penstock.errors import BadRequestError, DeadlineError, RequestError, StoreError
from penstock.meta import RemoteMetaClient, ReplicaMove, Shard, Topic
from penstock.meta.admin import (
    REASSIGNMENT_ROLE,
    plan_balance,
    plan_to,
    replica_nodes,
    short_of_room,
)
from penstock.node.connect_store import check_addresses
from penstock.platform.clock import SystemClock
from penstock.record import ShardId

_DEADLINE_S: Final = 20.0
_POLL_INTERVAL_S: Final = 0.5
_PLAN_SIZE_MAX: Final = 64 << 20


class PlannedShard(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    replicas: tuple[int, ...]


class Plan(msgspec.Struct, frozen=True):
    """A plan as it is printed and read; the form is that of Kafka's tool."""

    partitions: tuple[PlannedShard, ...]
    version: int = 1


def reassign(
    topics: Annotated[
        str | None, typer.Option("--topics", metavar="TOPIC,…", help="Topics; default: all.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="NODE,…", help="Nodes that hold the replicas afterwards."),
    ] = None,
    remove: Annotated[
        int | None,
        typer.Option("--remove", metavar="NODE", help="Node that holds no replica afterwards."),
    ] = None,
    execute: Annotated[
        str | None,
        typer.Option("--execute", metavar="PLAN", help="File with a plan in JSON; -: stdin."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Execute the plan immediately.")] = False,
    throttle: Annotated[
        str | None,
        typer.Option(
            "--throttle",
            metavar="SIZE",
            help="Bytes per second that each node copies: 262144, 256KiB, 50MB.",
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", min=0, help="Maximum wait for the end; 0: none."),
    ] = 3_600.0,
    status: Annotated[
        bool, typer.Option("--status", help="Show the moves that are under way.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel moves that are under way.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    server: Server = None,
    namespace: Namespace = "default",
) -> None:
    """Move replicas to other nodes: new ones copy first, then the old ones go.

    Without --yes or --execute, print a plan; without --to or --remove, one that balances the nodes.

    penstock cluster reassign --topics orders --to 2,3,4 --json > plan.json

    penstock cluster reassign --execute plan.json --throttle 50MB

    penstock cluster reassign --remove 1 --yes
    """
    addresses = check_addresses(server or DEFAULT_ADDRESS)
    rate = 0 if throttle is None else read_size(throttle)
    with closing(RemoteMetaClient(addresses, node_id=1, deadline_s=_DEADLINE_S)) as client:
        chosen = _topics(client, topics, namespace)
        if status:
            _print_status(client, chosen)
        elif cancel:
            _cancel(client, chosen)
        else:
            if execute is not None:
                moves = _read_plan(client, execute, chosen, rate)
            else:
                moves = _plan(client, list(chosen.values()), to, remove, rate)
            if execute is not None or yes:
                _execute(client, chosen, moves, wait)
            else:
                _print_plan(client, chosen, moves, as_json=as_json)


def _topics(client: RemoteMetaClient, names: str | None, namespace: str) -> dict[str, Topic]:
    """Return the topics that are meant, by id."""
    known = {topic.name: topic for topic in client.list_topics(namespace)}
    chosen = list(known) if names is None else [name.strip() for name in names.split(",")]
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise BadRequestError(f"topic {unknown[0]!r} does not exist")
    return {known[name].topic_id: known[name] for name in chosen}


def _nodes(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise BadRequestError(f"{text!r} is not a list of nodes: write their ids, as 2,3,4")
    return list(dict.fromkeys(int(part) for part in parts))


def _shards(client: RemoteMetaClient, topics: Sequence[Topic]) -> list[Shard]:
    topic_ids = {topic.topic_id for topic in topics}
    return [shard for shard in client.list_shards() if shard.topic_id in topic_ids]


def _plan(
    client: RemoteMetaClient,
    topics: Sequence[Topic],
    to: str | None,
    remove: int | None,
    throttle: int,
) -> list[ReplicaMove]:
    nodes = client.list_nodes()
    able = sorted(replica_nodes(nodes))
    if to is not None and remove is not None:
        raise BadRequestError("name --to or --remove, not both")
    if remove is not None and remove not in {node.node_id for node in nodes}:
        raise BadRequestError(f"node {remove} does not exist")
    targets = _nodes(to) if to is not None else [node for node in able if node != remove]
    missing = [node for node in targets if node not in able]
    if missing:
        raise BadRequestError(
            f"node {missing[0]} is not online, stores no records, or has no internal port"
        )
    make = plan_balance if to is None and remove is None else plan_to
    moves = make(_shards(client, topics), targets, short_of_room(nodes))
    return [msgspec.structs.replace(move, throttle=throttle) for move in moves]


def _read_plan(
    client: RemoteMetaClient, path: str, topics: dict[str, Topic], throttle: int
) -> list[ReplicaMove]:
    try:
        if path == "-":
            data = sys.stdin.buffer.read(_PLAN_SIZE_MAX)
        else:
            with open(path, "rb") as file:
                data = file.read(_PLAN_SIZE_MAX)
        plan = msgspec.json.decode(data, type=Plan)
    except (OSError, msgspec.MsgspecError) as error:
        raise BadRequestError(
            f"{path} is not a plan of `cluster reassign --json`: {error}"
        ) from None
    ids = {topic.name: topic for topic in topics.values()}
    known = {shard.id for shard in client.list_shards()}
    moves: list[ReplicaMove] = []
    for move in plan.partitions:
        topic = ids.get(move.topic)
        shard = None if topic is None else ShardId(topic.topic_id, move.partition)
        if topic is None or shard is None or shard not in known:
            raise BadRequestError(
                f"the plan names {move.topic}/{move.partition}, which is not there"
            )
        if len(move.replicas) != topic.config.replication:
            raise BadRequestError(
                f"the plan gives {move.topic}/{move.partition} {len(move.replicas)} replicas, but "
                f"the topic has replication {topic.config.replication}: change that with `penstock "
                "topic alter --replication`"
            )
        moves.append(ReplicaMove(shard, move.replicas, throttle))
    return moves


def _print_plan(
    client: RemoteMetaClient,
    topics: dict[str, Topic],
    moves: Sequence[ReplicaMove],
    *,
    as_json: bool,
) -> None:
    names = {topic_id: topic.name for topic_id, topic in topics.items()}
    if as_json:
        planned = tuple(
            PlannedShard(names[move.shard.topic], move.shard.partition, move.replicas)
            for move in moves
        )
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(Plan(planned))) + b"\n")
        sys.stdout.buffer.flush()
        return
    if not moves:
        print_line("nothing to move")
        return
    shards = {shard.id: shard for shard in client.list_shards()}
    rows = [
        (
            f"{names[move.shard.topic]}/{move.shard.partition}",
            _listed(shards[move.shard].replicas),
            _listed(move.replicas),
        )
        for move in moves
    ]
    print_table(("shard", "replicas now", "replicas planned"), rows)
    print_line(f"{count_text(len(moves), 'shard')} would move; add --yes to move them")


def _execute(
    client: RemoteMetaClient, topics: dict[str, Topic], moves: Sequence[ReplicaMove], wait_s: float
) -> None:
    if not moves:
        print_line("nothing to move")
        return
    refused = 0
    begun: list[ReplicaMove] = []
    for move, outcome in zip(moves, client.start_reassignments(moves), strict=True):
        if isinstance(outcome, StoreError):
            refused += 1
            name = topics[move.shard.topic].name
            typer.echo(f"{name}/{move.shard.partition} does not move: {outcome}", err=True)
        else:
            begun.append(move)
    if begun and wait_s:
        _wait(client, begun, wait_s)
        moved = _arrived(client, begun)
        print_line(f"moved {count_text(moved, 'shard')}")
        if moved < len(begun):
            print_line(f"{len(begun) - moved} moves were cancelled, or replaced by other ones")
    elif begun:
        print_line(f"{count_text(len(begun), 'shard')} began to move")
    if refused:
        raise RequestError(f"{count_text(refused, 'shard')} were not moved")


def _wait(client: RemoteMetaClient, moves: Sequence[ReplicaMove], seconds: float) -> None:
    clock, never = SystemClock(), threading.Event()
    deadline = clock.monotonic() + seconds
    waited = {move.shard for move in moves}
    with progress_bar() as show:
        while True:
            left = sum(1 for shard in client.list_reassignments() if shard.id in waited)
            if show is not None:
                show("moving", len(moves) - left, len(moves))
            if not left:
                return
            if clock.monotonic() > deadline:
                raise DeadlineError(
                    f"{left} of {len(moves)} shards still move after {seconds:g} s; see `penstock "
                    "cluster reassign --status`"
                )
            clock.wait(never, _POLL_INTERVAL_S)


def move_replicas(client: RemoteMetaClient, old: int, new: int, wait_s: float) -> int:
    """Let one node have the replicas of another; return of how many shards. Shards with one copy
    stay when that node is not there to copy them from."""
    copied_min = 1 if can_be_copied(client, old) else 2
    moves = [
        ReplicaMove(shard.id, tuple(new if node == old else node for node in settled))
        for shard in client.list_shards()
        if old in (settled := [node for node in shard.replicas if node not in shard.removing])
        and len(settled) >= copied_min
        and new not in settled
    ]
    for outcome in client.start_reassignments(moves):
        if isinstance(outcome, StoreError):
            raise outcome
    if moves:
        _wait(client, moves, wait_s)
    return len(moves)


def can_be_copied(client: RemoteMetaClient, node: int) -> bool:
    """Return whether other nodes can copy shards of which a node has the only copy."""
    nodes = client.list_nodes()
    if not all(REASSIGNMENT_ROLE in known.roles for known in nodes):
        return False
    return any(
        known.node_id == node and known.address and known.status != "offline" for known in nodes
    )


def wait_for_drain(client: RemoteMetaClient, node: int, seconds: float) -> None:
    """Wait until a node that drains has no replica of a shard that others can copy."""
    copied_min = 1 if can_be_copied(client, node) else 2
    clock, never = SystemClock(), threading.Event()
    deadline = clock.monotonic() + seconds
    first: int | None = None
    with progress_bar() as show:
        while True:
            held = [shard for shard in client.list_shards() if node in shard.replicas]
            left = sum(1 for shard in held if len(shard.replicas) >= copied_min)
            first = left if first is None else max(first, left)
            if show is not None and first:
                show("moving", first - left, first)
            if not left:
                return
            if clock.monotonic() > deadline:
                raise DeadlineError(
                    f"node {node} still has replicas of {count_text(left, 'shard')} after "
                    f"{seconds:g} s: other nodes copy them, or none can take them"
                )
            clock.wait(never, _POLL_INTERVAL_S)


def _arrived(client: RemoteMetaClient, moves: Sequence[ReplicaMove]) -> int:
    shards = {shard.id: shard for shard in client.list_shards()}
    return sum(
        1
        for move in moves
        if move.shard in shards and shards[move.shard].replicas == tuple(move.replicas)
    )


def _print_status(client: RemoteMetaClient, topics: dict[str, Topic]) -> None:
    moving = [shard for shard in client.list_reassignments() if shard.topic_id in topics]
    if not moving:
        print_line("no shard moves")
        return
    rows = [
        (
            f"{topics[shard.topic_id].name}/{shard.partition}",
            _listed(shard.adding) or "-",
            _listed([node for node in shard.adding if node not in shard.in_sync]) or "-",
            _listed(shard.removing) or "-",
            f"{size_text(shard.throttle)}/s" if shard.throttle else "-",
        )
        for shard in moving
    ]
    print_table(("shard", "adding", "not in sync yet", "removing", "throttle"), rows)
    offline = {node.node_id for node in client.list_nodes() if node.status == "offline"}
    absent = sorted({node for shard in moving for node in shard.adding} & offline)
    if absent:
        print_line(
            f"nodes {_listed(absent)} are offline: moves to them continue when they are back; "
            "--cancel gives them up"
        )


def _cancel(client: RemoteMetaClient, topics: dict[str, Topic]) -> None:
    moving = [shard.id for shard in client.list_reassignments() if shard.topic_id in topics]
    if not moving:
        print_line("no shard moves")
        return
    failed = 0
    for shard, outcome in zip(moving, client.cancel_reassignments(moving), strict=True):
        if isinstance(outcome, StoreError):
            failed += 1
            name = topics[shard.topic].name
            typer.echo(f"{name}/{shard.partition} is not cancelled: {outcome}", err=True)
    print_line(f"cancelled the moves of {count_text(len(moving) - failed, 'shard')}")
    if failed:
        raise RequestError(f"the moves of {count_text(failed, 'shard')} were not cancelled")


def _listed(nodes: Sequence[int]) -> str:
    return ",".join(str(node) for node in nodes)
