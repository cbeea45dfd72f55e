"""`penstock cluster`: Raft groups, leaders and members of a cluster."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Final

import typer

from penstock.cli.commands.cluster.reassign import (
    can_be_copied,
    move_replicas,
    reassign,
    wait_for_drain,
)
from penstock.cli.commands.cluster.recovery import recover
from penstock.cli.commands.cluster.replicas import elect, quarantine, replica_lines
from penstock.cli.commands.cluster.up import up
from penstock.cli.output import count_text, print_line
from penstock.cli.target import DEFAULT_ADDRESS, Namespace, Server
from penstock.errors import (
    BadRequestError,
    DeadlineError,
    NotSupportedError,
    UnknownTopicError,
)
from penstock.meta import LOST, Node, RemoteMetaClient
from penstock.meta.admin import (
    ANY_AGE,
    DRAINING,
    INTERNAL_LISTENER,
    MEMBERS,
    NODES,
    ONLINE,
    SHARDS,
    STALENESS_MS,
    Load,
    MetaConnection,
    RemoteRows,
    last_replica_shards,
    listed,
    load_of,
    lost_shards,
    replicated_topics,
)
from penstock.meta.admin import meta_pb2 as pb
from penstock.node.connect_store import check_addresses
from penstock.platform.clock import SystemClock

app: Final = typer.Typer(help="Show and change the members of a cluster.", no_args_is_help=True)
app.command()(recover)
app.command()(elect)
app.command()(quarantine)
app.command()(reassign)
app.command()(up)

_SINGLE: Final = (
    "this is a standalone node, which other nodes cannot join: restart it with node.peers listing "
    "itself, then add other nodes"
)
_DEADLINE_S: Final = 20.0
_POLL_INTERVAL_S: Final = 0.2

Force = Annotated[
    bool,
    typer.Option("--force", help="Remove the node even if it has the only copy of some shards."),
]
Wait = Annotated[
    float, typer.Option("--wait", metavar="SECONDS", help="Maximum time to wait for the node.")
]


@contextmanager
def _connection(server: str | None) -> Iterator[MetaConnection]:
    addresses = check_addresses(server or DEFAULT_ADDRESS)
    connection = MetaConnection(addresses, deadline_s=_DEADLINE_S, clock=SystemClock())
    try:
        yield connection
    finally:
        connection.close()


def _status(connection: MetaConnection) -> pb.ClusterStatusReply:
    return connection.call("ClusterStatus", pb.ClusterStatusRequest(), pb.ClusterStatusReply)


def _votes(reply: pb.ClusterStatusReply, node: int) -> bool:
    return bool(reply.groups) and all(node in group.voters for group in reply.groups)


def _nodes(connection: MetaConnection, reply: pb.ClusterStatusReply) -> list[str]:
    """Return a line per node; without a known leader, from local state with its age."""
    knows_leader = not reply.groups or reply.groups[0].leader != 0
    rows = RemoteRows(connection, 0, STALENESS_MS if knows_leader else ANY_AGE)
    known = {node.node_id: node for node in NODES.scan(rows)}
    states = {number: node.status for number, node in known.items()}
    load = load_of(SHARDS.scan(rows)) if states else Load()
    members = {member.node_id: member.address for member in reply.members}
    lines: list[str] = []
    for node in sorted({*members, *states}):
        held, led = load.replicas.get(node, 0), load.leaders.get(node, 0)
        where = members.get(node) or _place_of(known[node])
        state = states.get(node, "not registered")
        lines.append(f"node {node}  {where}  {state}, {held} shards, leader of {led}")
    lost = lost_shards(rows) if states else []
    if lost:
        lines.append(
            f"{len(lost)} shards are lost, their nodes returned without the records: "
            f"{listed(lost)}. Delete their topics, or restart the shards empty with `penstock "
            "cluster accept-loss`"
        )
    if states:
        lines += replica_lines(list(replicated_topics(rows)))
    if not knows_leader:
        age_ms = rows.age_ms
        age = "of unknown age" if age_ms is None else f"up to {age_ms / 1_000:.1f} s old"
        lines.append(f"this node knows no leader; its information about the nodes is {age}")
    return lines


def _place_of(node: Node) -> str:
    """Return where a node is reached by the others, for an answer that does not list it as a
    member."""
    if node.address:
        return node.address
    internal = node.listeners.get(INTERNAL_LISTENER)
    return f"{internal}, no metadata replica" if internal else "no metadata replica"


def _remove(connection: MetaConnection, node: int, *, is_forced: bool) -> list[str]:
    """Remove a node. A call is sent again when its answer was lost: the second one may find that
    the first one has removed the node."""
    was_known = _is_known(connection, node)
    request = pb.RemoveNodeRequest(node_id=node, is_forced=is_forced)
    try:
        return list(connection.call("RemoveNode", request, pb.RemoveNodeReply).lost_shards)
    except BadRequestError:
        if not was_known or _is_known(connection, node):
            raise
    return last_replica_shards(RemoteRows(connection, 0), node)


def _is_known(connection: MetaConnection, node: int) -> bool:
    rows = RemoteRows(connection, 0)
    return MEMBERS.get(rows, node) is not None or NODES.get(rows, node) is not None


def _print_lost(node: int, shards: list[str]) -> None:
    if shards:
        print_line(
            f"{len(shards)} shards have no leader until node {node} rejoins with its records or "
            f"their topics are deleted: {listed(shards)}"
        )


def _wait_for_voter(connection: MetaConnection, node: int, seconds: float) -> None:
    clock, never = SystemClock(), threading.Event()
    deadline = clock.monotonic() + seconds
    reported = ""
    while not _votes(reply := _status(connection), node):
        if not reply.groups:
            raise NotSupportedError(_SINGLE)
        where = _progress(reply, node)
        if where != reported:
            reported = where
            typer.echo(f"node {node} {where}", err=True)
        if clock.monotonic() > deadline:
            is_known = any(member.node_id == node for member in reply.members)
            undo = f"undo: penstock cluster remove {node}" if is_known else "start the node later"
            raise DeadlineError(
                f"node {node} {where} after {seconds:g} s. Check that it runs, that its node.peers "
                "list it and a member, and that the members reach its address; its log names the "
                f"reason of a rejection. Repeat this command to keep waiting, or {undo}"
            )
        clock.wait(never, _POLL_INTERVAL_S)


def _lead_elsewhere(connection: MetaConnection, old: int, new: int, seconds: float) -> None:
    """Wait until a node that is about to be removed leads no Raft group: one that does would have
    to remove itself, and answers no more."""
    clock, never = SystemClock(), threading.Event()
    deadline = clock.monotonic() + seconds
    while led := [group.name for group in _status(connection).groups if group.leader == old]:
        if clock.monotonic() > deadline:
            raise DeadlineError(
                f"node {old} still leads {', '.join(led)} after {seconds:g} s; stop it, then run "
                f"`penstock cluster remove {old}`"
            )
        for group in led:
            connection.call("Transfer", pb.TransferRequest(group=group, to=new), pb.Nothing)
        clock.wait(never, _POLL_INTERVAL_S)


def _progress(reply: pb.ClusterStatusReply, node: int) -> str:
    """Return the progress of a joining node."""
    voting = sum(node in group.voters for group in reply.groups)
    learning = sum(node in group.learners for group in reply.groups)
    if voting or learning:
        return (
            f"votes in {voting} of {len(reply.groups)} groups and is a learner in {learning}, "
            "receiving their state"
        )
    if any(member.node_id == node for member in reply.members):
        return "is a member but not in a group yet"
    return "has not asked to join yet"


@app.command()
def status(server: Server = None) -> None:
    """Show nodes, replicas of topics, Raft groups, leaders, terms and their progress."""
    with _connection(server) as connection:
        reply = _status(connection)
        nodes = _nodes(connection, reply)
    print_line(f"cluster {reply.cluster_id}, seen from node {reply.node_id}")
    if not reply.groups:
        is_alone = len(nodes) <= 1
        print_line(
            "a standalone node without other members"
            if is_alone
            else "this node has no metadata replica; ask another one for the Raft groups"
        )
    for line in (*nodes, *reply.problems):
        print_line(line)
    for group in reply.groups:
        voters = ",".join(str(node) for node in group.voters)
        learners = ",".join(str(node) for node in group.learners)
        print_line(
            f"{group.name}: leader {group.leader or 'unknown'}, term {group.term}, "
            f"commit {group.commit}, applied {group.applied}, log {group.first} to {group.last}, "
            f"voters {voters}" + (f", learners {learners}" if learners else "")
        )
        for member in group.progress:
            lag = max(0, group.last - member.matched)
            silent = "" if member.is_active else ", silent"
            print_line(f"  node {member.node}: {member.state}, lag {lag} entries{silent}")


@app.command()
def add(
    node: Annotated[int, typer.Argument(metavar="NODE", help="ID of the node to add.", min=1)],
    address: Annotated[
        str,
        typer.Argument(
            metavar="HOST:PORT", help="Internal address of the node, as the other nodes reach it."
        ),
    ],
    server: Server = None,
    wait: Wait = 60.0,
) -> None:
    """Print how to start a new node, and wait until it votes in all Raft groups."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise BadRequestError(
            f"{address!r} is not an address: write HOST:PORT, the internal address of node {node} "
            "as the other nodes reach it"
        )
    with _connection(server) as connection:
        reply = _status(connection)
        if not reply.groups:
            raise NotSupportedError(_SINGLE)
        peers = {member.node_id: member.address for member in reply.members}
        if peers.get(node, address) != address:
            raise BadRequestError(f"node {node} is already a member, at {peers[node]}")
        peers[node] = address
        _print_start(connection, peers, node)
        _wait_for_voter(connection, node, wait)
    print_line(f"node {node} votes in all groups")


def _print_start(connection: MetaConnection, peers: dict[int, str], node: int) -> None:
    request = pb.MakeJoinTokenRequest(node_id=node, address=peers[node])
    reply = connection.call("MakeJoinToken", request, pb.MakeJoinTokenReply)
    listed = ",".join(f'"{number}@{peers[number]}"' for number in sorted(peers))
    how = f"start it with: --set node.id={node} --set 'node.peers=[{listed}]'"
    if reply.token:
        print_line(f"{how} --set node.join_token={reply.token}")
        print_line("the token is valid once, for this node and address, for one hour")
    else:
        print_line(f"{how} and the node.secret_file of the other nodes")
    if reply.problem:
        typer.echo(f"the server cannot reach {peers[node]} yet: {reply.problem}", err=True)


@app.command()
def replace(
    old: Annotated[int, typer.Argument(metavar="OLD", help="ID of the node to remove.")],
    new: Annotated[int, typer.Argument(metavar="NEW", help="ID of the replacement node.")],
    server: Server = None,
    wait: Wait = 60.0,
    force: Force = False,
) -> None:
    """Wait until a new node votes in all Raft groups, move the old one's replicas, and remove it.

    Shards with one copy stay where they are if the old node is down (see `remove`).
    """
    with _connection(server) as connection:
        _wait_for_voter(connection, new, wait)
        addresses = check_addresses(server or DEFAULT_ADDRESS)
        with closing(RemoteMetaClient(addresses, node_id=1, deadline_s=_DEADLINE_S)) as client:
            moved = move_replicas(client, old, new, wait)
        _lead_elsewhere(connection, old, new, wait)
        lost = _remove(connection, old, is_forced=force)
    if moved:
        print_line(f"moved {count_text(moved, 'shard')} to node {new}")
    print_line(f"node {new} replaced node {old}: stop node {old} if it runs")
    _print_lost(old, lost)


@app.command()
def remove(
    node: Annotated[int, typer.Argument(metavar="NODE", help="ID of the node to remove.")],
    server: Server = None,
    force: Force = False,
) -> None:
    """Remove a node from all Raft groups.

    Fails while the node has the only copy of some shards; drain it first to move replicated ones.
    """
    with _connection(server) as connection:
        lost = _remove(connection, node, is_forced=force)
    print_line(f"removed node {node} from all groups")
    _print_lost(node, lost)


@app.command("accept-loss")
def accept_loss(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic with lost shards.")],
    server: Server = None,
    namespace: Namespace = "default",
) -> None:
    """Restart the lost shards of a topic empty, and delete their committed offsets.

    A shard is lost when its node returned without its data.
    """
    addresses = check_addresses(server or DEFAULT_ADDRESS)
    with closing(RemoteMetaClient(addresses, node_id=1, deadline_s=_DEADLINE_S)) as client:
        existing = client.get_topic(topic, namespace=namespace)
        if existing is None:
            raise UnknownTopicError(topic)
        lost = [shard.id for shard in client.list_shards(existing.topic_id) if shard.status == LOST]
        if not lost:
            raise BadRequestError(f"topic {topic!r} has no lost shards")
        for shard in lost:
            client.accept_data_loss(shard)
        client.delete_topic_offsets(existing.topic_id, [shard.partition for shard in lost])
    print_line(f"restarted {len(lost)} shards of {topic}, empty")


@app.command()
def drain(
    node: Annotated[int, typer.Argument(metavar="NODE", help="ID of the node.")],
    undo: Annotated[bool, typer.Option("--undo", help="Undo the drain.")] = False,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", help="Wait until its replicas have moved."),
    ] = 0.0,
    server: Server = None,
) -> None:
    """Place no new shards on a node, let other replicas lead, and move its replicas elsewhere."""
    addresses = check_addresses(server or DEFAULT_ADDRESS)
    with closing(RemoteMetaClient(addresses, node_id=node, deadline_s=_DEADLINE_S)) as client:
        client.set_node_status(node, ONLINE if undo else DRAINING)
        if wait and not undo:
            wait_for_drain(client, node, wait)
        stay = [] if undo else last_replica_shards(RemoteRows(client.connection, 0), node)
        does_move = bool(stay) and can_be_copied(client, node)
    print_line(f"node {node} {'is online again' if undo else 'is draining'}")
    if stay:
        until = " yet; other nodes copy them" if does_move else ""
        print_line(
            f"{len(stay)} shards stay: no other node has their records{until}: {listed(stay)}"
        )


@app.command()
def transfer(
    group: Annotated[
        str, typer.Argument(metavar="GROUP", help="Raft group: metadata, offset-0, …")
    ],
    to: Annotated[int, typer.Argument(metavar="NODE", help="ID of the new leader.")],
    server: Server = None,
) -> None:
    """Transfer the leadership of a Raft group to another node."""
    with _connection(server) as connection:
        connection.call("Transfer", pb.TransferRequest(group=group, to=to), pb.Nothing)
    print_line(f"asked node {to} to lead {group}")


@app.command()
def snapshot(server: Server = None) -> None:
    """Take a snapshot on one node and truncate its Raft logs."""
    with _connection(server) as connection:
        connection.call("CutLogs", pb.Nothing(), pb.Nothing)
    print_line("truncated the logs up to the applied and synced entries")
