"""The internal port of a node without Raft: it accepts the data channels and opens its own.

The members of the Raft groups know such a node by its registration: the listener `internal` is its
address, and the boot id identifies this run of it. It learns of the others by reading their
registrations and memberships, twice a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from penstock.errors import SettingsError
from penstock.meta.raft.network.credentials import Credentials
from penstock.meta.raft.network.handshake import Opener
from penstock.meta.raft.network.messages import (
    RAFT,
    ChannelName,
    ConnectRequest,
    HandshakeAccepted,
    HandshakeRejected,
    JoinRequest,
    Opening,
    PeerStatus,
)
from penstock.meta.raft.network.peer_checks import (
    check_addressee,
    check_data_channel,
    data_nodes,
    network_members,
    open_connection,
)
from penstock.meta.raft.network.transport import Transport
from penstock.meta.state.constants import DATA_PEERS_ROLE
from penstock.meta.state.model import Member, Node

META_ROLE: Final = "meta"


class DataListen(Struct, frozen=True):
    """Where a node without Raft listens for the others, and what it shares with them."""

    host: str
    port: int
    advertised: str
    """The host at which the other nodes reach it."""
    secrets: tuple[str, ...]

    @classmethod
    def parse(cls, listen: str, advertised: str, secrets: tuple[str, ...]) -> DataListen:
        """Read `node.meta_listen`; raises `SettingsError`."""
        host, _, port = listen.rpartition(":")
        if not host or not port.isdigit():
            raise SettingsError(f"node.meta_listen is {listen!r}; write HOST:PORT")
        if not secrets:
            raise SettingsError(
                "node.meta_listen is set, and this node has neither the role `meta` nor the "
                "secret of its cluster: set node.secret_file as on the other nodes, or leave "
                "node.meta_listen out; without it the node has no replicas of other nodes' shards"
            )
        return cls(host, int(port), advertised, secrets)


class DataPort:
    """Implements `Host` for the transport. `start`, `set_nodes`; `close` at the end."""

    def __init__(
        self, credentials: Credentials, listen: DataListen, own_epoch: Callable[[], int]
    ) -> None:
        self._credentials: Final = credentials
        self._own_epoch: Final = own_epoch
        self.transport: Final = Transport(self, (listen.host, listen.port))
        self.on_lost: Final[list[Callable[[int], None]]] = []
        self._members: dict[int, Member] = {}
        self._epochs: dict[int, int] = {}
        self._targets: tuple[int, ...] = ()
        self._known: tuple[Sequence[Node], Sequence[Member]] = ((), ())

    def set_nodes(self, nodes: Sequence[Node], members: Sequence[Member]) -> None:
        """Take what the metadata say of the other nodes."""
        if (nodes, members) == self._known:
            return
        self._known = nodes, members
        voters = {member.node_id for member in members}
        self._epochs = {node.node_id: node.epoch for node in nodes}
        self._targets = tuple(
            node.node_id
            for node in nodes
            if node.node_id in voters and {META_ROLE, DATA_PEERS_ROLE} <= {*node.roles}
        )
        mine = self._credentials.identity.node_id
        others = network_members(members, data_nodes(nodes), mine)
        by_node = {member.node_id: member for member in others}
        if by_node != self._members:
            self._members = by_node
            self.transport.set_members([], others)

    @property
    def beat_targets(self) -> tuple[int, ...]:
        """The nodes of which one leads the metadata, and which know this port."""
        return self._targets

    def epoch_of(self, node: int) -> int:
        return self._epochs.get(node, 0)

    # -- what the transport asks ------------------------------------------------------------------

    def keys_for(self, opening: Opening) -> tuple[bytes, ...]:
        return self._credentials.keys_for(opening)

    def draw_nonce(self) -> bytes:
        return self._credentials.draw_nonce()

    def check_hello(self, hello: ConnectRequest) -> str | None:
        mine = self._credentials.identity
        reason = check_addressee(mine, hello)
        if reason is not None:
            return reason
        if hello.channel == RAFT:
            return f"node {mine.node_id} has no role `meta` and takes part in no Raft group"
        if hello.to_incarnation not in {"", mine.incarnation}:
            return f"node {hello.node_id} does not know this run of node {mine.node_id} yet"
        known = self._members.get(hello.node_id)
        return check_data_channel(mine, hello, known, self.epoch_of(hello.node_id))

    def peer_status(self) -> PeerStatus:
        mine = self._credentials.identity
        return PeerStatus(mine.node_id, mine.incarnation, is_bootstrapped=True)

    def join(self, _join: JoinRequest) -> tuple[HandshakeAccepted | HandshakeRejected, bytes]:
        mine = self._credentials.identity.node_id
        return HandshakeRejected(f"node {mine} has no role `meta`; ask a node that has it"), b""

    def receive(self, sender: int, data: bytes) -> None:
        """No connection carries Raft frames here."""

    def unreachable(self, node: int) -> None:
        """No Raft frame is sent."""

    def lost_connection(self, node: int) -> None:
        for on_lost in self.on_lost:
            on_lost(node)

    def open_to(self, member: Member, channel: ChannelName = RAFT) -> Opener:
        return open_connection(self._credentials, member, channel, self._own_epoch())
