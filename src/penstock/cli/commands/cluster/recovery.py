"""`penstock cluster recover`: start a new cluster from the data directory of one survivor."""

from __future__ import annotations

import os
from contextlib import closing
from typing import Annotated

import typer

from penstock.cli.output import print_line
from penstock.errors import BadRequestError, NotAStoreError
from penstock.meta.admin import listed
from penstock.meta.raft import Outlook, draw_incarnation, look_ahead
from penstock.meta.raft import recover as recover_directory
from penstock.meta.storage import FAMILIES, RocksDatabase
from penstock.platform.clock import SystemClock
from penstock.platform.data_directory import LOCK, check_path
from penstock.platform.local_disk import LocalDisk


def recover(
    data: Annotated[
        str,
        typer.Option("--data", "-d", metavar="DIR", help="Data directory of the surviving node."),
    ],
    force_new_cluster: Annotated[
        bool,
        typer.Option("--force-new-cluster", help="Confirm that a majority is lost for good."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")] = False,
) -> None:
    """Make a stopped node the only member of a new cluster after a majority is lost for good."""
    if not force_new_cluster:
        raise BadRequestError(
            "this drops the other members, and data that only they have is lost: add "
            "--force-new-cluster if a majority of them is gone for good"
        )
    path = check_path(data)
    if not os.path.isdir(f"{path}/meta"):
        raise NotAStoreError(f"{path} is not the data directory of a node: {path}/meta is missing")
    lock = LocalDisk().lock(f"{path}/{LOCK}")
    clock = SystemClock()
    try:
        with closing(RocksDatabase.open(f"{path}/meta", FAMILIES, clock=clock)) as database:
            outlook = look_ahead(database)
            _print(outlook)
            if not yes:
                typer.confirm("Start a new cluster with this node as its only member?", abort=True)
            cluster_id = recover_directory(
                database,
                draw=lambda: draw_incarnation(clock.now_ms(), os.urandom),
                now_ms=clock.now_ms(),
            )
    finally:
        lock.release()
    node_id = outlook.identity.node_id
    print_line(f"node {node_id} is the only member of the new cluster {cluster_id}: start it")
    print_line(
        "topics with several copies have no leader, because the dropped nodes may have further "
        "records: `penstock cluster elect TOPIC --unclean` continues with those of this node"
    )
    print_line(
        "to add another node: delete its DATA/meta, run `penstock cluster add`, and start it"
    )


def _print(outlook: Outlook) -> None:
    identity = outlook.identity
    print_line(f"node {identity.node_id} of cluster {identity.cluster_id}")
    for group in outlook.groups:
        print_line(
            f"{group.name}: applied up to {group.applied}, committed up to {group.commit}, log up "
            f"to {group.last}; keeps {group.unconfirmed} entries without a known commit; drops "
            f"nodes {', '.join(map(str, group.dropped)) or 'none'}"
        )
    for member in outlook.members:
        print_line(f"member {member.node_id} at {member.address} is dropped")
    if outlook.shards:
        print_line(
            f"only dropped nodes have the records of {len(outlook.shards)} shards: "
            f"{listed(list(outlook.shards))}; these shards have no leader until those nodes rejoin "
            "with their records"
        )
    print_line(
        "lost: acknowledged changes of metadata and offsets after these entries that reached only "
        "the dropped nodes"
    )
