"""Which nodes can have one of several replicas, with and without the role `meta`."""

from __future__ import annotations

import pytest

from penstock.errors import SettingsError
from penstock.meta.controller.decisions import replica_nodes, storage_nodes
from penstock.meta.remote.data_port import DataListen
from penstock.meta.state.constants import DATA_PEERS_ROLE, INTERNAL_LISTENER
from penstock.meta.state.model import Node

SECRETS = ("the secret of all nodes",)


def node(number: int, *, address: str = "", internal: str = "", is_old: bool = False) -> Node:
    listeners = {"storage": f"s:{number}"}
    if internal:
        listeners[INTERNAL_LISTENER] = internal
    return Node(
        node_id=number,
        address=address,
        listeners=listeners,
        roles=() if is_old else (DATA_PEERS_ROLE,),
        boot_id="b",
        epoch=number,
        status="online",
        registered_at_ms=0,
    )


def test_a_node_without_raft_has_replicas_when_it_has_an_internal_port() -> None:
    nodes = [node(1, address="a:1"), node(2, internal="a:2"), node(3)]
    assert replica_nodes(nodes) == {1, 2}
    assert storage_nodes(nodes, 1, 2) == {1, 2}
    assert storage_nodes(nodes, 1, 1) == {1, 2, 3}


def test_a_node_of_an_older_release_keeps_replicas_off_nodes_without_raft() -> None:
    nodes = [node(1, address="a:1"), node(2, internal="a:2"), node(3, address="a:3", is_old=True)]
    assert replica_nodes(nodes) == {1, 3}


@pytest.mark.parametrize(
    ("listen", "secrets", "reason"),
    [
        ("9095", SECRETS, "node.meta_listen is '9095'; write HOST:PORT"),
        ("host:http", SECRETS, "write HOST:PORT"),
        ("host:9095", (), "neither the role `meta` nor the secret of its cluster"),
    ],
)
def test_an_internal_port_that_could_not_serve_is_refused_at_start(
    listen: str, secrets: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        DataListen.parse(listen, "host", secrets)
