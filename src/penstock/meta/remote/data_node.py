"""`DataNodeMetaClient`: a node without Raft that has an internal port, and so has replicas.

Its heartbeats travel over the channel `heartbeat` to all members of the Raft groups; the one that
leads the metadata answers, and grants the lease, as for members. While a member runs a release that
does not know this channel, the node also sends logged heartbeats, which grant no lease: it has no
replicas then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final

from penstock.errors import BadRequestError
from penstock.meta.client import StartProof
from penstock.meta.client_api.local_reads import STALENESS_MS
from penstock.meta.raft.members.heartbeats import Heartbeats
from penstock.meta.raft.network.credentials import Credentials
from penstock.meta.raft.network.data_network import DataChannel
from penstock.meta.raft.network.frames import Beat, BeatAnswer, decode_incoming, encode_frame
from penstock.meta.raft.network.messages import HEARTBEAT, DataChannelName
from penstock.meta.raft.network.traffic import ChannelTraffic
from penstock.meta.raft.network.transport import Probe
from penstock.meta.remote.client import RemoteMetaClient
from penstock.meta.remote.data_port import META_ROLE, DataListen, DataPort
from penstock.meta.remote.groups import RemoteRows
from penstock.meta.remote.registration_pause import RegistrationPause
from penstock.meta.service import MetaService
from penstock.meta.state.constants import (
    DATA_PEERS_ROLE,
    INTERNAL_LISTENER,
    OFFLINE,
)
from penstock.meta.state.metadata.rows import MEMBERS, NODES
from penstock.meta.storage import log_format as fmt
from penstock.platform.addresses import with_port
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)


class DataNodeMetaClient(RemoteMetaClient):
    """`start_heartbeats` when the node may be known to the others; `close` when done."""

    def __init__(
        self,
        peers: Mapping[int, str],
        listen: DataListen,
        *,
        node_id: int,
        clock: Clock,
        entropy: Callable[[int], bytes] = os.urandom,
        store_id: str,
        proof: StartProof,
        rack: str = "",
    ) -> None:
        """`peers` are storage API addresses of members of the Raft groups, by node."""
        super().__init__(
            list(peers.values()),
            node_id=node_id,
            clock=clock,
            entropy=entropy,
            store_id=store_id,
            proof=proof,
            rack=rack,
        )
        self._peer_addresses: Final = dict(peers)
        identity = fmt.Identity(
            fmt.VERSION, self._cluster_id, node_id, len(self._offset_groups), self._nonce
        )
        credentials = Credentials(
            identity, listen.secrets, now_s=lambda: clock.now_ms() // 1_000, entropy=entropy
        )
        self._port: Final = DataPort(credentials, listen, lambda: self._broker_epoch or 0)
        self._beats: Final = Heartbeats(node_id, self, self._lease, clock=clock)
        self._pause: Final = RegistrationPause(clock)
        self._is_paused = False
        try:
            self._port.transport.start()
        except BaseException:
            super().close()
            raise
        self._listeners[INTERNAL_LISTENER] = with_port(listen.advertised, self.port)
        self._heartbeat_channel: Final = self.channel(HEARTBEAT)
        self._heartbeat_channel.on_receive = self._receive_beat
        self.on_registered(lambda _epoch: self._beats.beat_now())

    def start_heartbeats(self) -> None:
        self._beats.start()
        super().start_heartbeats()

    def close(self) -> None:
        self._closing.set()
        self._beats.close()
        self._port.transport.close()
        super().close()

    @property
    def port(self) -> int:
        return self._port.transport.port

    def service(self) -> MetaService:
        service = super().service()
        service.problems = self._port.transport.problems.current
        return service

    # -- the internal port ------------------------------------------------------------------------

    def channel(self, name: DataChannelName) -> DataChannel:
        return self._port.transport.data.channel(name)

    def channel_traffic(self) -> dict[str, ChannelTraffic]:
        return self._port.transport.channel_traffic()

    def report_problem(self, kind: str, node_id: int, text: str) -> None:
        self._port.transport.problems.record(kind, node_id, text)

    def probe(self, node_id: int) -> Probe:
        return self._port.transport.probe(node_id)

    def watch_connections(self, on_lost: Callable[[int], None]) -> None:
        self._port.on_lost.append(on_lost)

    def broker_epoch_of(self, node_id: int) -> int:
        if node_id == self._node_id:
            return self._broker_epoch or 0
        return self._port.epoch_of(node_id)

    # -- heartbeats -------------------------------------------------------------------------------

    def beat_targets(self) -> tuple[int, ...]:
        return self._port.beat_targets

    def leader_contact(self) -> tuple[int, int]:
        """A node without Raft confirms no leader."""
        return 0, 0

    def epoch_of(self, _node_id: int) -> int | None:
        """Only the leader of the metadata asks."""
        return None

    def confirm_lead(self, done: Callable[[bool], None]) -> None:
        done(False)

    def send_beat(self, to: int, frame: Beat | BeatAnswer) -> None:
        self._heartbeat_channel.send(to, encode_frame(frame))

    def register_again(self) -> None:
        """Register with the next round, which begins now: this node was fenced."""
        self._is_registered = False
        self._wake.set()

    def _receive_beat(self, sender: int, data: bytes) -> None:
        try:
            frame = decode_incoming(data)
        except BadRequestError as error:
            _log.warning("heartbeat_refused", node=sender, reason=str(error))
            return
        if isinstance(frame, BeatAnswer):
            self._beats.receive(sender, frame)

    def _maintain(self) -> None:
        """Follow the other nodes; register again when the metadata do not show this node as it
        is."""
        rows = RemoteRows(self._heart, 0, STALENESS_MS)
        nodes, members = list(NODES.scan(rows)), list(MEMBERS.scan(rows))
        self._port.set_nodes(nodes, members)
        self._end_streams_of(
            [self._peer_addresses.get(node.node_id) for node in nodes if node.status == OFFLINE]
        )
        if any(META_ROLE in node.roles and DATA_PEERS_ROLE not in node.roles for node in nodes):
            self._send_logged_beat()
        if self.lease_left_s() > 0:
            self._last_beat = self._clock.monotonic()
            self._pause.answered()
        mine = next((node for node in nodes if node.node_id == self._node_id), None)
        is_known = mine is not None and mine.status != OFFLINE
        is_known = is_known and mine is not None and mine.listeners == self._listeners
        if (is_known and self._is_registered) or self._is_leaving:
            return
        if mine is not None and mine.status == OFFLINE and self._pauses():
            return
        self._register()
        self._pause.registered()

    def _pauses(self) -> bool:
        """Return whether this node, which was fenced, is not to register yet."""
        seconds = self._pause.fenced()
        if seconds > 0 and not self._is_paused:
            address = self._listeners[INTERNAL_LISTENER]
            reason = (
                f"no answer to a heartbeat has come to {address}, the internal port of this node: "
                "the other nodes cannot reach it"
            )
            _log.warning("registration_waits", reason=reason, seconds=round(seconds))
            self.report_problem("unreachable", self._node_id, reason)
        self._is_paused = seconds > 0
        return self._is_paused
