"""`penstock cluster`: the replicas of shards, elections that give records up, quarantine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Annotated, Final

import typer

from penstock.cli.output import print_line
from penstock.cli.target import DEFAULT_ADDRESS, Namespace, Server
from penstock.engine.routing.quarantine import Quarantine
from penstock.errors import BadRequestError, UnknownTopicError
from penstock.meta import RemoteMetaClient, Shard, min_insync_of
from penstock.meta.admin import ReplicaProblem, TopicReplicas
from penstock.node.connect_store import check_addresses
from penstock.platform.data_directory import check_path
from penstock.platform.local_disk import LocalDisk

_SHOWN: Final = 10
_DEADLINE_S: Final = 20.0


def replica_lines(topics: Sequence[TopicReplicas]) -> Iterator[str]:
    """Yield what `status` shows of topics with several replicas."""
    for one in topics:
        config = one.topic.config
        words = [problem.word for problem in one.problems]
        counted = [
            f"{words.count(word)} {word}"
            for word in ("offline", "at risk", "under-replicated")
            if word in words
        ]
        if one.moving:
            counted.append(f"{one.moving} moving")
        yield (
            f"topic {one.topic.name} ({one.shards} shards): replication {config.replication}, "
            f"min_insync {min_insync_of(config)}: {', '.join(counted) or 'all in sync'}"
        )
        for problem in one.problems[:_SHOWN]:
            yield f"  {one.topic.name}/{problem.shard.partition}: {_problem(problem)}"
        if len(one.problems) > _SHOWN:
            yield f"  and {len(one.problems) - _SHOWN} more"


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
            help="Replica that leads; default: the last leader if it is online.",
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
        online = {one.node_id for one in client.list_nodes() if one.status != "offline"}
        offline = [
            shard
            for shard in client.list_shards(existing.topic_id)
            if shard.leader is None and partition in {None, shard.partition}
        ]
        if not offline:
            raise BadRequestError(f"no shard of topic {topic!r} is without a leader")
        for shard in offline:
            chosen = _choose(shard, node, online)
            name = f"{topic}/{shard.partition}"
            if chosen is None:
                print_line(f"{name}: {_sets(shard)}; no replica is online, nothing is done")
                continue
            print_line(f"{name}: {_sets(shard)}, last leader {shard.last_leader or 'unknown'}")
            if not dry_run:
                client.elect_unclean(shard.id, chosen, shard.partition_epoch)
            print_line(f"{name}: node {chosen} {'would lead' if dry_run else 'leads'}")


def _choose(shard: Shard, node: int | None, online: set[int]) -> int | None:
    able = [replica for replica in shard.replicas if replica in online]
    if node is not None:
        if node not in able:
            raise BadRequestError(
                f"node {node} has no replica of {shard.name}, or is not online; online replicas: "
                f"{_listed(able) or 'none'}"
            )
        return node
    if shard.last_leader in able:
        return shard.last_leader
    return able[0] if able else None


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
    found = listing.read()
    if not found:
        print_line("no shard is in quarantine")
        return
    if delete:
        count = listing.doom(shards or [])
        print_line(f"{count} shards are deleted at the next start of the node")
        return
    for one in found:
        state = ", deleted at the next start" if one.is_doomed else ""
        print_line(f"{one.shard}  {one.storage_type}{state}")
