"""How a cluster begins and how nodes come to it.

A fresh node draws an incarnation and writes it down. Then it asks its peers where they stand:

  * some belong to a cluster: it asks the members to take it in, as a node does whose disk was
    wiped; see `admission` for what it must prove
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
from penstock.meta.raft.load import founding_rows, is_founded
from penstock.meta.raft.network.credentials import Credentials, Stored, load_stored, put_stored
from penstock.meta.raft.network.handshake import Opener
from penstock.meta.raft.network.messages import PROTOCOL, Ask, Join, Refusal, Standing, Welcome
from penstock.meta.raft.network.transport import ask_node
from penstock.meta.standalone.group import GroupName
from penstock.meta.standalone.log import METADATA, offset_group_name
from penstock.meta.state.metadata.rows import MEMBERS
from penstock.meta.state.model import Member
from penstock.meta.state.view import MemoryView, Reader
from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.database import Batch, Database
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)

_ASK_SECONDS: Final = 1.0
_JOIN_SECONDS: Final = 15.0
_MEMBERS_MAX: Final = 64


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
    database: Database,
    *,
    node_id: int,
    draw: Callable[[], tuple[str, bytes]],
    offset_groups: int,
) -> tuple[fmt.Identity, Stored]:
    """Return whose directory this is, and its secrets; a new one gets an incarnation, and no
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
        # An earlier release drew it and never entered a cluster.
        incarnation, seed = draw()
        identity = replace(identity, incarnation=incarnation)
        return _write_identity(database, identity, Batch(), Stored(seed=seed))
    return identity, stored


def found_cluster(
    database: Database, identity: fmt.Identity, stored: Stored, *, cluster_id: str, address: str
) -> tuple[fmt.Identity, Stored]:
    """Begin a cluster with this node as its only voter; `stored` has its generated key."""
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
    _log.info("cluster_founded", cluster=cluster_id, node=identity.node_id)
    return _write_identity(database, founded, batch, stored)


def begin_joined(
    database: Database,
    identity: fmt.Identity,
    stored: Stored,
    *,
    cluster_id: str,
    offset_groups: int,
) -> tuple[fmt.Identity, Stored]:
    """Write down that this node was taken in; its state is still to come."""
    joined = replace(identity, cluster_id=cluster_id, offset_groups=offset_groups)
    batch = Batch()
    for name in group_names(offset_groups):
        if not is_founded(database, name):
            batch.operations += founding_rows(name, ()).operations
    _log.info("cluster_joined", cluster=cluster_id, node=identity.node_id)
    return _write_identity(database, joined, batch, stored)


class Entrance:
    """The way of a fresh node into a cluster: founds it, or joins it."""

    def __init__(
        self,
        database: Database,
        credentials: Credentials,
        peers: Sequence[Peer],
        *,
        draw: Callable[[], tuple[str, bytes]],
        report: Callable[[str], None],
    ) -> None:
        """`report` is told after each try what the node waits for."""
        identity = credentials.identity
        self._report = report
        self._database = database
        self._identity = identity
        self._credentials = credentials
        self._peers = peers
        self._address = next(one.address for one in peers if one.node_id == identity.node_id)
        self._draw = draw
        self._reasons: list[str] = []

    def enter(self, pause: Callable[[], bool]) -> tuple[fmt.Identity, Stored]:
        """Return when the cluster is entered. `pause` waits between two tries and returns True
        when the node is to stop: `DeadlineError`."""
        mine = tuple(f"{peer.node_id}@{peer.address}" for peer in self._peers)
        others = [peer for peer in self._peers if peer.node_id != self._identity.node_id]
        while True:
            standings = {peer.node_id: self._ask(peer) for peer in others}
            known = [one for one in standings.values() if one is not None]
            entered = self._join(known) if any(one.is_founded for one in known) else None
            if entered is not None:
                return entered
            is_first = all(self._identity.node_id < peer.node_id for peer in others)
            is_complete = len(known) == len(others) and not any(one.is_founded for one in known)
            if is_complete and any(one.peers != mine for one in known):
                self._reasons.append(f"other nodes have other node.peers than {','.join(mine)}")
            elif is_complete and is_first:
                return self._found()
            elif not any(one.is_founded for one in known):
                away = [str(peer.node_id) for peer in others if standings[peer.node_id] is None]
                self._reasons.append(f"waiting for nodes {', '.join(away) or others[0].node_id}")
            self._report("; ".join(self._reasons))
            self._reasons.clear()
            if pause():
                raise DeadlineError("stopped before a cluster was found")

    def _found(self) -> tuple[fmt.Identity, Stored]:
        cluster_id, _ = self._draw()
        _, key = self._draw()
        return found_cluster(
            self._database,
            self._identity,
            replace(self._credentials.stored, key=key),
            cluster_id=cluster_id,
            address=self._address,
        )

    def _ask(self, peer: Peer) -> Standing | None:
        return ask_standing(peer, self._identity.node_id, self._credentials, self._reasons)

    def _join(self, standings: Sequence[Standing]) -> tuple[fmt.Identity, Stored] | None:
        """Ask all members that are known, for only one of them leads."""
        addresses = {peer.node_id: peer.address for peer in self._peers}
        for standing in standings:
            for member in standing.members if standing.is_founded else ():
                number, _, address = member.partition("@")
                addresses.setdefault(int(number) if number.isdigit() else 0, address)
        for node_id, address in list(addresses.items())[:_MEMBERS_MAX]:
            if node_id != self._identity.node_id:
                entered = self._join_through(address)
                if entered is not None:
                    return entered
        return None

    def _join_through(self, through: str) -> tuple[fmt.Identity, Stored] | None:
        mine, credentials = self._identity, self._credentials
        token, seed, key = credentials.join_with()
        nonce = credentials.draw_nonce()
        join = Join(PROTOCOL, mine.node_id, self._address, mine.incarnation, nonce, token, seed)
        opener = Opener(join, key)
        try:
            answer = ask_node(through, opener, seconds=_JOIN_SECONDS)
        except StoreError as error:
            self._reasons.append(str(error))
            return None
        if isinstance(answer, Welcome):
            return begin_joined(
                self._database,
                mine,
                replace(credentials.stored, key=opener.unwrap(answer.key)),
                cluster_id=answer.cluster_id,
                offset_groups=answer.offset_groups,
            )
        if isinstance(answer, Refusal):
            self._reasons.append(f"{through} refuses this node: {answer.reason}")
        return None


def ask_standing(
    peer: Peer, node_id: int, credentials: Credentials, reasons: list[str]
) -> Standing | None:
    """Return where a peer stands; None when it does not answer, or as another node: `reasons` gets
    why, if it is worth a word."""
    opener = Opener(Ask(PROTOCOL, node_id, credentials.draw_nonce()), credentials.ask_key)
    try:
        answer = ask_node(peer.address, opener, seconds=_ASK_SECONDS)
    except StoreError:
        return None
    if isinstance(answer, Standing) and answer.node_id == peer.node_id:
        return answer
    reason = answer.reason if isinstance(answer, Refusal) else f"it is not node {peer.node_id}"
    reasons.append(f"{peer.address} refuses this node: {reason}")
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
