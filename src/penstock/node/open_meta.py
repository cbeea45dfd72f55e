"""Opens the meta service as the settings say: alone, as a member of a cluster, or at a distance."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from penstock.engine.segment import opening_errors
from penstock.meta import StandaloneMetaClient, StartProof
from penstock.node.directory import NodeDirectory
from penstock.node.start_proof import StartFiles
from penstock.platform.clock import Clock
from penstock.settings import NodeSettings
from penstock.settings.secret_file import read_secrets

if TYPE_CHECKING:
    from penstock.meta import RemoteMetaClient
    from penstock.meta.raft import RaftMetaClient


def open_meta(
    directory: NodeDirectory, node: NodeSettings, clock: Clock, stopping: threading.Event
) -> StandaloneMetaClient | RaftMetaClient | RemoteMetaClient:
    """Return the client of this node, when a leader is known; `stopping` ends the wait for it."""
    if not node.peers:
        with opening_errors(directory.path):
            StartFiles(directory, clock).void()  # alone, the node may write what others never see
        return StandaloneMetaClient.open(directory.join("meta"), node_id=node.id, clock=clock)
    if "meta" not in node.roles:
        return _open_remote(directory, node, clock)
    return _open_raft(directory, node, clock, stopping)


def _open_remote(directory: NodeDirectory, node: NodeSettings, clock: Clock) -> RemoteMetaClient:
    from penstock.meta import RemoteMetaClient
    from penstock.meta.raft import parse_peers

    addresses = [peer.address for peer in parse_peers(node.peers)]
    store_id = directory.choose_store_id(clock)
    meta = RemoteMetaClient(
        addresses,
        node_id=node.id,
        clock=clock,
        store_id=store_id,
        proof=_consume_proof(directory, store_id, clock),
        rack=node.rack,
    )
    meta.start_heartbeats()
    directory.write_store_id(store_id)
    return meta


def _open_raft(
    directory: NodeDirectory, node: NodeSettings, clock: Clock, stopping: threading.Event
) -> RaftMetaClient:
    from penstock.meta.raft import require_core

    require_core()  # before the client, whose module needs the extension
    from penstock.meta.raft import Place, RaftMetaClient

    store_id = directory.choose_store_id(clock)
    place = Place(
        node_id=node.id,
        peers=node.peers,
        listen=node.meta_listen,
        offset_groups=node.offset_groups,
        store_id=store_id,
        secrets=read_secrets(node),
        join_token=node.join_token,
        proof=_consume_proof(directory, store_id, clock),
        rack=node.rack,
    )
    meta = RaftMetaClient.open(directory.join("meta"), place, clock=clock, stopping=stopping)
    with ExitStack() as undo:
        undo.callback(meta.close)
        meta.await_leaders(stopping)
        if not directory.store_id:
            # Before anything is served: if this node had shards, they are lost, and an empty
            # one must never be taken for what was there.
            meta.register_store(stopping)
            directory.write_store_id(place.store_id)
        undo.pop_all()
    return meta


def _consume_proof(directory: NodeDirectory, store_id: str, clock: Clock) -> StartProof:
    with opening_errors(directory.path):
        return StartFiles(directory, clock).consume(store_id)
