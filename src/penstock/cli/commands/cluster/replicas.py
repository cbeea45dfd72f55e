"""`penstock cluster`: the replicas of shards, elections that give records up, quarantine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Annotated, Final

import typer

from penstock.cli.commands.cluster.known_ends import KnownEnd, known_ends
from penstock.cli.output import print_line
from penstock.cli.target import DEFAULT_ADDRESS, Namespace, Server
from penstock.engine.replication.runtime.shard_replica import ReplicaPosition
from penstock.engine.routing.quarantine import Quarantine
from penstock.errors import BadRequestError, DeadlineError, StoreError, UnknownTopicError
from penstock.meta import STORAGE_LISTENER, Node, RemoteMetaClient, Shard, min_insync_of
from penstock.meta.admin import ReplicaProblem, TopicReplicas
from penstock.node.connect_store import check_addresses
from penstock.platform.data_directory import check_path
from penstock.platform.local_disk import LocalDisk
from penstock.remote.peers.replica_positions import ask_positions

_SHOWN: Final = 10
_DEADLINE_S: Final = 20.0


def replica_lines(topics: Sequence[TopicReplicas]) -> Iterator[str]:
    """Yield what `status` shows of topics with several replicas."""
    for topic in topics:
        config = topic.topic.config
        words = [problem.word for problem in topic.problems]
        counts = {
            "offline": words.count("offline"),
            "under-replicated": len(words) - words.count("offline"),
            "refusing writes": words.count("refusing writes"),
            "at risk": words.count("at risk"),
        }
        counted = [f"{count} {word}" for word, count in counts.items() if count]
        if topic.moving:
            counted.append(f"{topic.moving} moving")
        yield (
            f"topic {topic.topic.name} ({topic.shards} shards): replication {config.replication}, "
            f"min_insync {min_insync_of(config)}: {', '.join(counted) or 'all in sync'}"
        )
        for problem in topic.problems[:_SHOWN]:
            yield f"  {topic.topic.name}/{problem.shard.partition}: {_problem(problem)}"
        if len(topic.problems) > _SHOWN:
            yield f"  and {len(topic.problems) - _SHOWN} more"


def _problem(problem: ReplicaProblem) -> str:
    shard = problem.shard
    said = f"{problem.word}, {_sets(shard)}"
    if problem.is_offline and not shard.eligible and not shard.in_sync:
        said += "; no replica has all records: `penstock cluster elect` gives some up"
    return said


def _sets(shard: Shard) -> str:
    parts = [f"replicas {_listed(shard.replicas)}", f"in sync {_listed(shard.in_sync) or 'none'}"]
    if shard.eligible:
        parts.append(f"eligible {_listed(shard.eligible)}")
    parts.append("no leader" if shard.leader is None else f"leader {shard.leader}")
    return ", ".join(parts)


def _listed(nodes: Sequence[int]) -> str:
    return ",".join(str(node) for node in nodes)


def elect(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic with shards offline.")],
    unclean: Annotated[
        bool,
        typer.Option("--unclean", help="Let a replica lead that may lack committed records."),
    ] = False,
    node: Annotated[
        int | None,
        typer.Option(
            "--node",
            metavar="NODE",
            help="Replica that leads; default: the one with the newest record.",
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="One partition; default: all offline.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")
    ] = False,
    server: Server = None,
    namespace: Namespace = "default",
) -> None:
    """Elect leaders for shards that have none, although no replica has all of their records.

    Records that only other replicas have are lost. Start the missing nodes first, if they can be.
    """
    if not unclean:
        raise BadRequestError(
            "shards elect a leader by themselves as soon as a replica with all records is there; "
            "add --unclean to give up the records that only missing replicas have"
        )
    addresses = check_addresses(server or DEFAULT_ADDRESS)
    with closing(RemoteMetaClient(addresses, node_id=1, deadline_s=_DEADLINE_S)) as client:
        existing = client.get_topic(topic, namespace=namespace)
        if existing is None:
            raise UnknownTopicError(topic)
        nodes = {node.node_id: node for node in client.list_nodes()}
        online = {node_id for node_id, node in nodes.items() if node.status != "offline"}
        offline = [
            shard
            for shard in client.list_shards(existing.topic_id)
            if shard.leader is None and partition in {None, shard.partition}
        ]
        if not offline:
            raise BadRequestError(f"no shard of topic {topic!r} is without a leader")
        positions = _ask_all(nodes, existing.topic_id, offline)
        ends, unread = known_ends(client, offline)
        if unread:
            print_line(f"records that are on no replica may not be counted: {unread}")
        for shard in offline:
            chosen = _choose(shard, node, online, positions)
            name = f"{topic}/{shard.partition}"
            if chosen is None:
                print_line(f"{name}: {_sets(shard)}; no replica is online, nothing is done")
                continue
            print_line(f"{name}: {_sets(shard)}, last leader {shard.last_leader or 'unknown'}")
            for line in _position_lines(shard, positions):
                print_line(f"  {line}")
            for line in _risk(shard, chosen, positions, ends.get(shard.name)):
                print_line(f"  {line}")
            if not dry_run:
                client.elect_unclean(shard.id, chosen, shard.partition_epoch)
            print_line(f"{name}: node {chosen} {'would lead' if dry_run else 'leads'}")


Positions = dict[int, dict[int, ReplicaPosition] | StoreError]
"""What each node answered, by node and partition."""


def _ask_all(nodes: Mapping[int, Node], topic_id: str, shards: Sequence[Shard]) -> Positions:
    """Ask every node with a replica how far it is."""
    answers: Positions = {}
    for node_id in sorted({replica for shard in shards for replica in shard.replicas}):
        partitions = [shard.partition for shard in shards if node_id in shard.replicas]
        node = nodes.get(node_id)
        address = "" if node is None else node.listeners.get(STORAGE_LISTENER, "")
        if node is None or not address or node.status == "offline":
            state = "removed from the cluster" if node is None else node.status
            answers[node_id] = DeadlineError(f"it is {state}")
            continue
        try:
            answers[node_id] = ask_positions(address, topic_id, partitions)
        except StoreError as error:
            answers[node_id] = error
    return answers


def _position(shard: Shard, node: int, positions: Positions) -> ReplicaPosition | None:
    answer = positions.get(node)
    return answer.get(shard.partition) if isinstance(answer, dict) else None


def _position_lines(shard: Shard, positions: Positions) -> Iterator[str]:
    for node in shard.replicas:
        answer, position = positions.get(node), _position(shard, node, positions)
        if position is not None:
            yield (
                f"node {node}: end offset {position.end}, epoch {position.epoch}, "
                f"commit offset {position.commit}"
            )
        elif isinstance(answer, StoreError):
            yield f"node {node}: not reached: {answer}"
        else:
            yield f"node {node}: has no replica open"


def _risk(
    shard: Shard, chosen: int, positions: Positions, known_end: KnownEnd | None
) -> Iterator[str]:
    """Say how many records are given up when a node leads, and how many with any leader."""
    mine = _position(shard, chosen, positions)
    if mine is None:
        yield f"how many records are given up is not known: node {chosen} did not say what it has"
    else:
        yield _given_up(shard, chosen, mine, positions)
    answers = {node: _position(shard, node, positions) for node in shard.replicas}
    answered = [position for position in answers.values() if position is not None]
    newest = max((position.end for position in answered), default=0)
    commit = KnownEnd(
        max((position.commit for position in answered), default=0), "the commit offset of a replica"
    )
    known = max((commit, known_end or commit), key=lambda end: end.offset)
    missing = known.offset - newest
    if answered and missing > 0:
        yield (
            f"{missing} committed records from offset {newest} on are on no replica that answered: "
            f"{known.source} is {known.offset}"
        )


def _given_up(shard: Shard, chosen: int, mine: ReplicaPosition, positions: Positions) -> str:
    others = {node: _position(shard, node, positions) for node in shard.replicas if node != chosen}
    ends = [known.end for known in others.values() if known is not None]
    silent = [node for node, known in others.items() if known is None]
    lost = max(0, max(ends, default=0) - mine.end)
    said = f"with node {chosen}, {lost} records of the replicas that answered are given up"
    if silent:
        said += f", and all that only node {_listed(silent)} has, which is not known"
    return said


def _choose(shard: Shard, node: int | None, online: set[int], positions: Positions) -> int | None:
    """Return the replica that leads: the one whose last record has the greatest epoch and offset.
    Of equal ones, and of those that did not answer, the last leader comes first."""
    able = [replica for replica in shard.replicas if replica in online]
    if node is not None:
        if node not in able:
            raise BadRequestError(
                f"node {node} has no replica of {shard.name}, or is not online; online replicas: "
                f"{_listed(able) or 'none'}"
            )
        return node

    def rank(replica: int) -> tuple[int, int, bool]:
        known = _position(shard, replica, positions)
        is_last = replica == shard.last_leader
        return (-1, -1, is_last) if known is None else (known.epoch, known.end, is_last)

    return max(able, key=rank, default=None)


def quarantine(
    data: Annotated[
        str, typer.Option("--data", "-d", metavar="DIR", help="Data directory of the node.")
    ],
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the shards at the next start of the node.")
    ] = False,
    shards: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SHARD]…", help="Shards to delete; default: all.", show_default=False
        ),
    ] = None,
) -> None:
    """List the shards of a node that the metadata of its cluster do not name, or delete them."""
    listing = Quarantine(LocalDisk(), check_path(data))
    listed = listing.read()
    if not listed:
        print_line("no shard is in quarantine")
        return
    if delete:
        count = listing.doom(shards or [])
        print_line(f"{count} shards are deleted at the next start of the node")
        return
    for shard in listed:
        state = ", deleted at the next start" if shard.is_doomed else ""
        print_line(f"{shard.shard}  {shard.storage_type}{state}")
