"""Opens the meta service as the settings say: alone, as a member of a cluster, or at a distance."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from penstock.engine.segment import opening_errors
from penstock.meta import StandaloneMetaClient, StartProof
from penstock.node.directory import NodeDirectory
from penstock.node.start_proof import StartFiles
from penstock.platform.addresses import ALL_ADDRESSES, bare_host
from penstock.platform.clock import Clock
from penstock.settings import NodeSettings, Settings, read_secrets

if TYPE_CHECKING:
    from penstock.meta import DataListen, RemoteMetaClient
    from penstock.meta.raft import RaftMetaClient


def open_meta(
    directory: NodeDirectory, settings: Settings, clock: Clock, stopping: threading.Event
) -> StandaloneMetaClient | RaftMetaClient | RemoteMetaClient:
    """Return the client of this node, when a leader is known; `stopping` ends the wait for it."""
    node = settings.node
    if not node.peers:
        with opening_errors(directory.path):
            StartFiles(directory, clock).void()  # alone, the node may write what others never see
        return StandaloneMetaClient.open(directory.join("meta"), node_id=node.id, clock=clock)
    if "meta" not in node.roles:
        return _open_remote(directory, settings, clock)
    return _open_raft(directory, node, clock, stopping)


def _open_remote(directory: NodeDirectory, settings: Settings, clock: Clock) -> RemoteMetaClient:
    from penstock.meta import DataListen, DataNodeMetaClient, RemoteMetaClient
    from penstock.meta.raft import parse_peers

    node = settings.node
    peers = {peer.node_id: peer.address for peer in parse_peers(node.peers)}
    listen: DataListen | None = None
    if node.meta_listen:
        listen = DataListen.parse(node.meta_listen, _advertised(settings), read_secrets(node))
    store_id = directory.choose_store_id(clock)
    proof = _consume_proof(directory, store_id, clock)
    meta: RemoteMetaClient
    if listen is None:
        meta = RemoteMetaClient(
            list(peers.values()),
            node_id=node.id,
            clock=clock,
            store_id=store_id,
            proof=proof,
            rack=node.rack,
        )
    else:
        meta = DataNodeMetaClient(
            peers,
            listen,
            node_id=node.id,
            clock=clock,
            store_id=store_id,
            proof=proof,
            rack=node.rack,
        )
    with ExitStack() as undo:
        undo.callback(meta.close)
        meta.start_heartbeats()
        directory.write_store_id(store_id)
        undo.pop_all()
    return meta


def _advertised(settings: Settings) -> str:
    """Return the host at which other nodes reach the internal port of a node without Raft."""
    host = settings.node.meta_listen.rpartition(":")[0]
    host = bare_host(settings.server.advertised_host or host)
    return socket.gethostname() if host in ALL_ADDRESSES else host


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
