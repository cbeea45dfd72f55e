"""`penstock cluster`: the groups of a cluster, their leaders, and who belongs to them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Final

import typer

from penstock.cli.commands.cluster_recovery import recover
from penstock.cli.output import print_line
from penstock.cli.target import DEFAULT_ADDRESS, Namespace, Server
from penstock.errors import (
    BadRequestError,
    DeadlineError,
    NotSupportedError,
    UnknownTopicError,
)
from penstock.meta.client_api.local_reads import ANY_AGE, STALENESS_MS
from penstock.meta.controller.decisions import DRAINING, ONLINE, Load, load_of
from penstock.meta.controller.decommission import last_replica_shards, listed, lost_shards
from penstock.meta.proto import meta_pb2 as pb
from penstock.meta.remote_client import MetaConnection, RemoteMetaClient, RemoteRows
from penstock.meta.state.constants import LOST
from penstock.meta.state.metadata.rows import NODES, SHARDS
from penstock.node.connect_store import check_addresses
from penstock.platform.clock import SystemClock

app: Final = typer.Typer(help="The nodes that keep the metadata.", no_args_is_help=True)
app.command()(recover)

_SINGLE: Final = (
    "this is a single node, which no other node can join: start it again with node.peers, in which "
    "it lists itself, and then add others"
)
_DEADLINE_S: Final = 20.0
_LOOK_SECONDS: Final = 0.2

Force = Annotated[
    bool, typer.Option("--force", help="Also when only that node has the records of some shards.")
]
Wait = Annotated[float, typer.Option("--wait", help="Seconds to wait for the node at most.")]


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
    """Return a line for each node; a node without a leader tells what it knows, and since when."""
    knows_leader = not reply.groups or reply.groups[0].leader != 0
    rows = RemoteRows(connection, 0, STALENESS_MS if knows_leader else ANY_AGE)
    states = {node.node_id: node.status for node in NODES.scan(rows)}
    load = load_of(SHARDS.scan(rows)) if states else Load()
    members = {member.node_id: member.address for member in reply.members}
    lines: list[str] = []
    for node in sorted({*members, *states}):
        held, led = load.replicas.get(node, 0), load.leaders.get(node, 0)
        where = members.get(node, "keeps no metadata")
        state = states.get(node, "not registered")
        lines.append(f"node {node}  {where}  {state}, has {held} shards and leads {led}")
    lost = lost_shards(rows) if states else []
    if lost:
        lines.append(
            f"{len(lost)} shards are lost, for their nodes came back without the records: "
            f"{listed(lost)}. Delete their topics, or begin them anew: penstock cluster accept-loss"
        )
    if not knows_leader:
        age_ms = rows.age_ms
        age = "nobody knows how" if age_ms is None else f"up to {age_ms / 1_000:.1f} s"
        lines.append(f"this node hears of no leader; what it knows of the nodes is {age} old")
    return lines


def _remove(connection: MetaConnection, node: int, *, is_forced: bool) -> list[str]:
    request = pb.RemoveNodeRequest(node_id=node, is_forced=is_forced)
    return list(connection.call("RemoveNode", request, pb.RemoveNodeReply).lost_shards)


def _print_lost(node: int, shards: list[str]) -> None:
    if shards:
        print_line(
            f"{len(shards)} shards have no leader until node {node} joins again with its records, "
            f"or their topics are deleted: {listed(shards)}"
        )


def _wait_for_voter(connection: MetaConnection, node: int, seconds: float) -> None:
    clock, never = SystemClock(), threading.Event()
    deadline = clock.monotonic() + seconds
    told = ""
    while not _votes(reply := _status(connection), node):
        if not reply.groups:
            raise NotSupportedError(_SINGLE)
        where = _progress(reply, node)
        if where != told:
            told = where
            typer.echo(f"node {node} {where}", err=True)
        if clock.monotonic() > deadline:
            is_known = any(member.node_id == node for member in reply.members)
            undo = f"undo: penstock cluster remove {node}" if is_known else "start the node later"
            raise DeadlineError(
                f"node {node} {where} after {seconds:g} s; does it run, do its node.peers list it "
                "and a member, and do the members reach its address? Its log says why it is "
                f"refused. Repeat this command to wait on, or {undo}"
            )
        clock.wait(never, _LOOK_SECONDS)


def _progress(reply: pb.ClusterStatusReply, node: int) -> str:
    """Return how far a node is on its way into the groups."""
    voting = sum(node in group.voters for group in reply.groups)
    learning = sum(node in group.learners for group in reply.groups)
    if voting or learning:
        return (
            f"votes in {voting} of {len(reply.groups)} groups and is a learner in {learning}: it "
            "gets their state"
        )
    if any(member.node_id == node for member in reply.members):
        return "is recorded as a member and belongs to no group yet"
    return "has not asked to join yet"


@app.command()
def status(server: Server = None) -> None:
    """Show groups, leaders, terms and how far the members are."""
    with _connection(server) as connection:
        reply = _status(connection)
        nodes = _nodes(connection, reply)
    print_line(f"cluster {reply.cluster_id}, seen from node {reply.node_id}")
    if not reply.groups:
        print_line("a single node: no group has other members")
    for line in nodes:
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
            heard = "" if member.is_active else ", silent"
            print_line(f"  node {member.node}: {member.state}, {lag} entries behind{heard}")


@app.command()
def add(
    node: Annotated[int, typer.Argument(help="ID of the node to add.", min=1)],
    address: Annotated[str, typer.Argument(help="HOST:PORT of its internal port.")],
    server: Server = None,
    wait: Wait = 60.0,
) -> None:
    """Print how to start a new node, and wait until it votes in all groups."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise BadRequestError(
            f"{address!r} is not an address: write HOST:PORT, the internal port of node {node} as "
            "the other nodes reach it"
        )
    with _connection(server) as connection:
        reply = _status(connection)
        if not reply.groups:
            raise NotSupportedError(_SINGLE)
        peers = {member.node_id: member.address for member in reply.members}
        if peers.get(node, address) != address:
            raise BadRequestError(f"node {node} is a member already, at {peers[node]}")
        peers[node] = address
        _print_start(connection, peers, node)
        _wait_for_voter(connection, node, wait)
    print_line(f"node {node} votes in all groups")


def _print_start(connection: MetaConnection, peers: dict[int, str], node: int) -> None:
    request = pb.MakeJoinTokenRequest(node_id=node, address=peers[node])
    made = connection.call("MakeJoinToken", request, pb.MakeJoinTokenReply)
    listed = ",".join(f'"{number}@{peers[number]}"' for number in sorted(peers))
    how = f"start it with: --set node.id={node} --set 'node.peers=[{listed}]'"
    if made.token:
        print_line(f"{how} --set node.join_token={made.token}")
        print_line("the token is good for this node and this address, once, within an hour")
    else:
        print_line(f"{how} and the node.secret_file of the other nodes")
    if made.problem:
        typer.echo(f"{peers[node]} is not reached from the server yet: {made.problem}", err=True)


@app.command()
def replace(
    old: Annotated[int, typer.Argument(help="Number of the node that leaves for good.")],
    new: Annotated[int, typer.Argument(help="Number of the node that takes its place.")],
    server: Server = None,
    wait: Wait = 60.0,
    force: Force = False,
) -> None:
    """Wait until a new node votes in all groups, then take an old one out of them. The metadata
    moves; records do not: see `remove`."""
    with _connection(server) as connection:
        _wait_for_voter(connection, new, wait)
        lost = _remove(connection, old, is_forced=force)
    print_line(f"node {new} has taken the place of node {old}")
    _print_lost(old, lost)


@app.command()
def remove(
    node: Annotated[int, typer.Argument(help="Number of the node that leaves for good.")],
    server: Server = None,
    force: Force = False,
) -> None:
    """Take a node out of all groups. Refused while only that node has the records of some shards:
    they are not moved."""
    with _connection(server) as connection:
        lost = _remove(connection, node, is_forced=force)
    print_line(f"node {node} belongs to no group any more")
    _print_lost(node, lost)


@app.command("accept-loss")
def accept_loss(
    topic: Annotated[str, typer.Argument(help="A topic that has lost shards.")],
    server: Server = None,
    namespace: Namespace = "default",
) -> None:
    """Begin the lost shards of a topic anew, empty, and forget what consumers had read of them.
    Lost are shards whose node came back without its data."""
    addresses = check_addresses(server or DEFAULT_ADDRESS)
    with closing(RemoteMetaClient(addresses, node_id=1, deadline_s=_DEADLINE_S)) as client:
        found = client.get_topic(topic, namespace=namespace)
        if found is None:
            raise UnknownTopicError(topic)
        lost = [shard.id for shard in client.list_shards(found.topic_id) if shard.status == LOST]
        if not lost:
            raise BadRequestError(f"no shard of topic {topic!r} is lost")
        for shard in lost:
            client.accept_data_loss(shard)
        client.forget_topic_offsets(found.topic_id, [shard.partition for shard in lost])
    print_line(f"{len(lost)} shards of {topic} begin anew, empty")


@app.command()
def drain(
    node: Annotated[int, typer.Argument(help="Number of the node.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let it be as the others again.")] = False,
    server: Server = None,
) -> None:
    """Place no new shards on a node, and let others lead what they can."""
    addresses = check_addresses(server or DEFAULT_ADDRESS)
    with closing(RemoteMetaClient(addresses, node_id=node, deadline_s=_DEADLINE_S)) as client:
        client.set_node_status(node, ONLINE if undo else DRAINING)
        stay = [] if undo else last_replica_shards(RemoteRows(client.connection, 0), node)
    print_line(f"node {node} {'is as the others again' if undo else 'drains'}")
    if stay:
        print_line(f"{len(stay)} shards stay, for no other node has their records: {listed(stay)}")


@app.command()
def transfer(
    group: Annotated[str, typer.Argument(help="metadata, offset-0, …")],
    to: Annotated[int, typer.Argument(help="The node that is to lead.")],
    server: Server = None,
) -> None:
    """Ask for another leader of a group; any node passes it on."""
    with _connection(server) as connection:
        connection.call("Transfer", pb.TransferRequest(group=group, to=to), pb.Nothing)
    print_line(f"node {to} was asked to lead {group}")


@app.command()
def snapshot(server: Server = None) -> None:
    """Cut the logs of one node: its state stands for them, and who lacks entries is sent it."""
    with _connection(server) as connection:
        connection.call("CutLogs", pb.Nothing(), pb.Nothing)
    print_line("the logs are cut up to what is applied and on the device")
