"""How a cluster is bootstrapped and how nodes join it.

A fresh node draws an incarnation and stores it. Then it requests the status of its peers:

  * some belong to a cluster: it asks the members to join, as a node with a wiped disk does; see
    `admission` for what it must prove
  * all have answered, none belongs to a cluster, all list the same peers: the one with the lowest
    id bootstraps the cluster, as the only voter; the others find it and join

Only one node can bootstrap, and only after all peers have answered that they have no cluster:
several fresh nodes form one cluster, never two. A node that joins gets the state as a snapshot, and
votes once it has caught up. A wiped node is first removed from every group, so that its old votes
cannot count beside its new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import (
    BadRequestError,
    DeadlineError,
    NotAStoreError,
    SettingsError,
    StoreError,
)
from penstock.meta.client import StartProof
from penstock.meta.raft.group.load import initial_rows, is_bootstrapped
from penstock.meta.raft.network.credentials import Credentials, Stored, load_stored, put_stored
from penstock.meta.raft.network.handshake import Opener
from penstock.meta.raft.network.messages import (
    PROTOCOL,
    RAFT,
    ChannelName,
    ConnectRequest,
    HandshakeAccepted,
    HandshakeRejected,
    JoinRequest,
    Opening,
    PeerStatus,
    StatusRequest,
)
from penstock.meta.raft.network.transport import call_node
from penstock.meta.standalone.log import METADATA, offset_group_name
from penstock.meta.state.metadata.rows import MEMBERS
from penstock.meta.state.model import Member
from penstock.meta.state.view import MemoryView, Reader
from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.database import Batch, Database
from penstock.meta.storage.groups import GroupName
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)

_ASK_SECONDS: Final = 1.0
_JOIN_SECONDS: Final = 15.0
_MEMBERS_MAX: Final = 64


class Peer(Struct, frozen=True):
    node_id: int
    address: str


def parse_peers(texts: Sequence[str]) -> list[Peer]:
    """Parse `1@host:port` texts; raise `SettingsError` for any other."""
    peers: list[Peer] = []
    for text in texts:
        number, separator, address = text.partition("@")
        host, _, port = address.rpartition(":")
        if not separator or not number.isdigit() or not host or not port.isdigit():
            raise SettingsError(f"node.peers: {text!r} is not a peer; write NODE@HOST:PORT")
        peers.append(Peer(int(number), address))
    if len({peer.node_id for peer in peers}) != len(peers):
        raise SettingsError("node.peers: two peers have the same number")
    return sorted(peers, key=lambda peer: peer.node_id)


def group_names(offset_groups: int) -> list[GroupName]:
    return [METADATA, *[offset_group_name(number) for number in range(offset_groups)]]


def load_identity(
    database: Database,
    *,
    node_id: int,
    draw: Callable[[], tuple[str, bytes]],
    offset_groups: int,
) -> tuple[fmt.Identity, Stored]:
    """Return the identity and the secrets of a directory; a new one gets an incarnation, and no
    cluster yet. `draw` makes an incarnation and its seed."""
    row = database.get(fmt.META_LOG, fmt.IDENTITY_KEY)
    stored = load_stored(database)
    if row is None:
        incarnation, seed = draw()
        identity = fmt.Identity(fmt.VERSION, "", node_id, offset_groups, incarnation)
        return _write_identity(database, identity, Batch(), Stored(seed=seed))
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
        incarnation, seed = draw()
        identity = replace(identity, incarnation=incarnation)
        return _write_identity(database, identity, Batch(), Stored(seed=seed, key=draw()[1]))
    if not identity.cluster_id and not stored.seed:
        # An earlier release drew it and never joined a cluster.
        incarnation, seed = draw()
        identity = replace(identity, incarnation=incarnation)
        return _write_identity(database, identity, Batch(), Stored(seed=seed))
    return identity, stored


def bootstrap_cluster(
    database: Database, identity: fmt.Identity, stored: Stored, *, cluster_id: str, address: str
) -> tuple[fmt.Identity, Stored]:
    """Create a cluster with this node as its only voter; `stored` has its generated key."""
    bootstrapped = replace(identity, cluster_id=cluster_id)
    batch = Batch()
    for name in group_names(identity.offset_groups):
        batch.operations += initial_rows(name, (identity.node_id,)).operations
    rows = MemoryView()
    member = Member(node_id=identity.node_id, address=address, incarnation=identity.incarnation)
    MEMBERS.put(rows, member, member.node_id)
    prefix = fmt.state_prefix(METADATA.number, fmt.FIRST_GENERATION)
    for key, value in rows.scan(b"", b"\xff"):
        batch.put(METADATA.state_family, prefix + key, value)
    _log.info("cluster_founded", cluster=cluster_id, node=identity.node_id)
    return _write_identity(database, bootstrapped, batch, stored)


def record_join(
    database: Database,
    identity: fmt.Identity,
    stored: Stored,
    *,
    cluster_id: str,
    offset_groups: int,
) -> tuple[fmt.Identity, Stored]:
    """Store that this node has joined; a snapshot brings its state later."""
    joined = replace(identity, cluster_id=cluster_id, offset_groups=offset_groups)
    batch = Batch()
    for name in group_names(offset_groups):
        if not is_bootstrapped(database, name):
            batch.operations += initial_rows(name, ()).operations
    _log.info("cluster_joined", cluster=cluster_id, node=identity.node_id)
    return _write_identity(database, joined, batch, stored)


class Bootstrap:
    """Has a fresh node bootstrap a cluster or join one."""

    def __init__(
        self,
        database: Database,
        credentials: Credentials,
        peers: Sequence[Peer],
        *,
        draw: Callable[[], tuple[str, bytes]],
        report: Callable[[str], None],
    ) -> None:
        """`report` is called after each attempt with the reason for the wait."""
        identity = credentials.identity
        self._report = report
        self._database = database
        self._identity = identity
        self._credentials = credentials
        self._peers = peers
        self._address = next(
            candidate.address for candidate in peers if candidate.node_id == identity.node_id
        )
        self._draw = draw
        self._reasons: list[str] = []

    def run(self, pause: Callable[[], bool]) -> tuple[fmt.Identity, Stored]:
        """Return when the node belongs to a cluster. `pause` waits between two attempts and returns
        True when the node is to stop: `DeadlineError`."""
        mine = tuple(f"{peer.node_id}@{peer.address}" for peer in self._peers)
        others = [peer for peer in self._peers if peer.node_id != self._identity.node_id]
        while True:
            statuses = {peer.node_id: self._ask(peer) for peer in others}
            known = [status for status in statuses.values() if status is not None]
            joined = self._join(known) if any(status.is_bootstrapped for status in known) else None
            if joined is not None:
                return joined
            is_first = all(self._identity.node_id < peer.node_id for peer in others)
            is_complete = len(known) == len(others) and not any(
                status.is_bootstrapped for status in known
            )
            if is_complete and any(status.peers != mine for status in known):
                self._reasons.append(f"other nodes have other node.peers than {','.join(mine)}")
            elif is_complete and is_first:
                return self._found()
            elif not any(status.is_bootstrapped for status in known):
                away = [str(peer.node_id) for peer in others if statuses[peer.node_id] is None]
                self._reasons.append(f"waiting for nodes {', '.join(away) or others[0].node_id}")
            self._report("; ".join(self._reasons))
            self._reasons.clear()
            if pause():
                raise DeadlineError("stopped before this node joined or bootstrapped a cluster")

    def _found(self) -> tuple[fmt.Identity, Stored]:
        cluster_id, _ = self._draw()
        _, key = self._draw()
        return bootstrap_cluster(
            self._database,
            self._identity,
            replace(self._credentials.stored, key=key),
            cluster_id=cluster_id,
            address=self._address,
        )

    def _ask(self, peer: Peer) -> PeerStatus | None:
        return request_peer_status(peer, self._identity.node_id, self._credentials, self._reasons)

    def _join(self, statuses: Sequence[PeerStatus]) -> tuple[fmt.Identity, Stored] | None:
        """Send the join to all known members, for only one of them leads."""
        addresses = {peer.node_id: peer.address for peer in self._peers}
        for status in statuses:
            for member in status.members if status.is_bootstrapped else ():
                number, _, address = member.partition("@")
                addresses.setdefault(int(number) if number.isdigit() else 0, address)
        for node_id, address in list(addresses.items())[:_MEMBERS_MAX]:
            if node_id != self._identity.node_id:
                joined = self._join_through(address)
                if joined is not None:
                    return joined
        return None

    def _join_through(self, through: str) -> tuple[fmt.Identity, Stored] | None:
        mine, credentials = self._identity, self._credentials
        token, seed, key = credentials.join_with()
        nonce = credentials.draw_nonce()
        join = JoinRequest(
            PROTOCOL, mine.node_id, self._address, mine.incarnation, nonce, token, seed
        )
        opener = Opener(join, key)
        try:
            answer = call_node(through, opener, seconds=_JOIN_SECONDS)
        except StoreError as error:
            self._reasons.append(str(error))
            return None
        if isinstance(answer, HandshakeAccepted):
            return record_join(
                self._database,
                mine,
                replace(credentials.stored, key=opener.unwrap(answer.key)),
                cluster_id=answer.cluster_id,
                offset_groups=answer.offset_groups,
            )
        if isinstance(answer, HandshakeRejected):
            self._reasons.append(f"{through} rejects this node: {answer.reason}")
        return None


def request_peer_status(
    peer: Peer, node_id: int, credentials: Credentials, reasons: list[str]
) -> PeerStatus | None:
    """Return the status of a peer; None when it does not answer, or answers as another node, with
    the reason of a rejection appended to `reasons`."""
    opener = Opener(StatusRequest(PROTOCOL, node_id, credentials.draw_nonce()), credentials.ask_key)
    try:
        answer = call_node(peer.address, opener, seconds=_ASK_SECONDS)
    except StoreError:
        return None
    if isinstance(answer, PeerStatus) and answer.node_id == peer.node_id:
        return answer
    reason = (
        answer.reason if isinstance(answer, HandshakeRejected) else f"it is not node {peer.node_id}"
    )
    reasons.append(f"{peer.address} rejects this node: {reason}")
    return None


def read_members(reader: Reader) -> list[Member]:
    return list(MEMBERS.scan(reader))


def _write_identity(
    database: Database, identity: fmt.Identity, batch: Batch, stored: Stored
) -> tuple[fmt.Identity, Stored]:
    batch.put(fmt.META_LOG, fmt.IDENTITY_KEY, fmt.encode_identity(identity))
    put_stored(batch, stored)
    database.write(batch)
    database.sync()
    return identity, stored


class Place(Struct, frozen=True, kw_only=True):
    """Which node of which cluster this is."""

    node_id: int
    peers: tuple[str, ...]
    """All nodes of the first hour, `NODE@HOST:PORT`, this node among them."""
    listen: str = ""
    """`HOST:PORT` to listen on; empty: as the peers know it."""
    offset_groups: int = 1
    store_id: str = ""
    """Which records the node has; empty: it keeps none."""
    secrets: tuple[str, ...] = ()
    """What the nodes of the cluster share; see `credentials`."""
    join_token: str = ""
    proof: StartProof = StartProof()
    """Whether the node's logs have what they had at its last end."""
    rack: str = ""
    """Where the node is; empty: not known."""


class WaitingHost:
    """What a node answers before it belongs to a cluster."""

    def __init__(self, credentials: Credentials, peers: Sequence[Peer]) -> None:
        identity = credentials.identity
        self._credentials = credentials
        self._status = PeerStatus(
            identity.node_id,
            identity.incarnation,
            is_bootstrapped=False,
            peers=tuple(f"{peer.node_id}@{peer.address}" for peer in peers),
        )

    def keys_for(self, opening: Opening) -> tuple[bytes, ...]:
        if not isinstance(opening, StatusRequest):
            raise BadRequestError("this node does not belong to a cluster yet")
        return self._credentials.keys_for(opening)

    def draw_nonce(self) -> bytes:
        return self._credentials.draw_nonce()

    def check_hello(self, _hello: ConnectRequest) -> str | None:
        return "this node does not belong to a cluster yet"

    def peer_status(self) -> PeerStatus:
        return self._status

    def join(self, _join: JoinRequest) -> tuple[HandshakeAccepted | HandshakeRejected, bytes]:
        return HandshakeRejected("this node does not belong to a cluster yet"), b""

    def receive(self, sender: int, data: bytes) -> None:
        """No connection gets so far."""

    def unreachable(self, node: int) -> None:
        """Nothing is sent."""

    def lost_connection(self, node: int) -> None:
        """No connection gets so far."""

    def open_to(self, member: Member, channel: ChannelName = RAFT) -> Opener:
        raise AssertionError(f"nothing is sent to {member.node_id} on {channel}")
