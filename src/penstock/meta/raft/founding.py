"""How a cluster begins and how nodes come to it.

A fresh node draws an incarnation and writes it down. Then it asks its peers where they stand:

  * some belong to a cluster: it asks to join that one, as anybody does whose disk was wiped
  * all have answered, none belongs to a cluster, all list the same peers: the one with the lowest
    number founds the cluster, as the only voter; the others find it and join

Only one node can found, and only after it has seen that nobody else has: several fresh nodes form
one cluster, never two. A node that is taken in gets the state as a snapshot, and votes once it has
caught up. A wiped node is first removed from every group: what it had promised is forgotten before
it may promise again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import DeadlineError, NotAStoreError, SettingsError, StoreError
from penstock.log import get_logger
from penstock.meta import log_format as fmt
from penstock.meta.database import Batch, Database
from penstock.meta.raft.loading import founding_rows, is_founded
from penstock.meta.raft.transport import ask_node
from penstock.meta.raft.wire import PROTOCOL, Ask, Join, Refusal, Standing, Welcome
from penstock.meta.solo_group import GroupName
from penstock.meta.solo_log import METADATA, offset_group_name
from penstock.meta.state.metadata_rows import MEMBERS
from penstock.meta.state.model import Member
from penstock.meta.state.view import MemoryView, Reader

_log: Final = get_logger(__name__)

_ASK_SECONDS: Final = 1.0
_JOIN_SECONDS: Final = 15.0


class Peer(Struct, frozen=True):
    node_id: int
    address: str


def parse_peers(texts: Sequence[str]) -> list[Peer]:
    """Read `1@host:port` texts; raise `SettingsError` for what is none."""
    peers: list[Peer] = []
    for text in texts:
        number, separator, address = text.partition("@")
        host, _, port = address.rpartition(":")
        if not separator or not number.isdigit() or not host or not port.isdigit():
            raise SettingsError(f"node.peers: {text!r} is no peer; write NODE@HOST:PORT")
        peers.append(Peer(int(number), address))
    if len({peer.node_id for peer in peers}) != len(peers):
        raise SettingsError("node.peers: two peers have the same number")
    return sorted(peers, key=lambda peer: peer.node_id)


def group_names(offset_groups: int) -> list[GroupName]:
    return [METADATA, *[offset_group_name(number) for number in range(offset_groups)]]


def load_identity(
    database: Database, *, node_id: int, incarnation: str, offset_groups: int
) -> fmt.Identity:
    """Return whose directory this is; a new one gets an incarnation, and no cluster yet."""
    row = database.get(fmt.META_LOG, fmt.IDENTITY_KEY)
    if row is None:
        identity = fmt.Identity(fmt.VERSION, "", node_id, offset_groups, incarnation)
        _write_identity(database, identity, Batch())
        return identity
    identity = fmt.decode_identity(row)
    if identity.version != fmt.VERSION:
        raise NotAStoreError(
            f"{database.path} has version {identity.version} of the log; this release reads "
            f"{fmt.VERSION}"
        )
    if identity.node_id != node_id:
        raise NotAStoreError(
            f"{database.path} belongs to node {identity.node_id}; this is node {node_id}"
        )
    if not identity.incarnation:
        # A single node wrote it: it becomes the first of a cluster.
        identity = replace(identity, incarnation=incarnation)
        _write_identity(database, identity, Batch())
    return identity


def found_cluster(
    database: Database, identity: fmt.Identity, *, cluster_id: str, address: str
) -> fmt.Identity:
    """Begin a cluster with this node as its only voter."""
    founded = replace(identity, cluster_id=cluster_id)
    batch = Batch()
    for name in group_names(identity.offset_groups):
        batch.operations += founding_rows(name, (identity.node_id,)).operations
    rows = MemoryView()
    member = Member(node_id=identity.node_id, address=address, incarnation=identity.incarnation)
    MEMBERS.put(rows, member, member.node_id)
    prefix = fmt.state_prefix(METADATA.number, fmt.FIRST_GENERATION)
    for key, value in rows.scan(b"", b"\xff"):
        batch.put(METADATA.state_family, prefix + key, value)
    _write_identity(database, founded, batch)
    _log.info("cluster_founded", cluster=cluster_id, node=identity.node_id)
    return founded


def begin_joined(
    database: Database, identity: fmt.Identity, *, cluster_id: str, offset_groups: int
) -> fmt.Identity:
    """Write down that this node was taken in; its state is still to come."""
    joined = replace(identity, cluster_id=cluster_id, offset_groups=offset_groups)
    batch = Batch()
    for name in group_names(offset_groups):
        if not is_founded(database, name):
            batch.operations += founding_rows(name, ()).operations
    _write_identity(database, joined, batch)
    _log.info("cluster_joined", cluster=cluster_id, node=identity.node_id)
    return joined


def enter_cluster(
    database: Database,
    identity: fmt.Identity,
    peers: Sequence[Peer],
    *,
    address: str,
    make_cluster_id: Callable[[], str],
    pause: Callable[[], bool],
) -> fmt.Identity:
    """Found or join a cluster; returns when one of both is done. `pause` waits between two tries
    and returns True when the node is to stop."""
    others = [peer for peer in peers if peer.node_id != identity.node_id]
    mine = tuple(f"{peer.node_id}@{peer.address}" for peer in peers)
    while True:
        standings = [_ask(peer, identity.node_id) for peer in others]
        known = [one for one in standings if one is not None]
        for standing, peer in zip(standings, others, strict=True):
            if standing is not None and standing.cluster_id:
                joined = _join(database, identity, standing, peer.address, address)
                if joined is not None:
                    return joined
        is_first = all(identity.node_id < peer.node_id for peer in others)
        if is_first and len(known) == len(others) and not any(one.cluster_id for one in known):
            if all(one.peers == mine for one in known):
                return found_cluster(
                    database, identity, cluster_id=make_cluster_id(), address=address
                )
            _log.warning("peers_differ", mine=",".join(mine))
        if pause():
            raise DeadlineError("stopped before a cluster was found")


def _ask(peer: Peer, node_id: int) -> Standing | None:
    try:
        answer = ask_node(peer.address, Ask(PROTOCOL, node_id), seconds=_ASK_SECONDS)
    except StoreError:
        return None
    if not isinstance(answer, Standing) or answer.node_id != peer.node_id:
        _log.warning("peer_is_another", peer=peer.node_id, address=peer.address)
        return None
    return answer


def _join(
    database: Database, identity: fmt.Identity, standing: Standing, through: str, address: str
) -> fmt.Identity | None:
    join = Join(PROTOCOL, standing.cluster_id, identity.node_id, address, identity.incarnation)
    try:
        answer = ask_node(through, join, seconds=_JOIN_SECONDS)
    except StoreError as error:
        _log.info("join_not_answered", through=through, reason=str(error))
        return None
    if isinstance(answer, Welcome):
        return begin_joined(
            database, identity, cluster_id=answer.cluster_id, offset_groups=answer.offset_groups
        )
    if isinstance(answer, Refusal):
        _log.warning("join_refused", through=through, reason=answer.reason)
    return None


def read_members(reader: Reader) -> list[Member]:
    return list(MEMBERS.scan(reader))


def _write_identity(database: Database, identity: fmt.Identity, batch: Batch) -> None:
    batch.put(fmt.META_LOG, fmt.IDENTITY_KEY, fmt.encode_identity(identity))
    database.write(batch)
    database.sync()
