"""`MqttCluster`: the parts of the front end that make several nodes one.

Entrance ─▶ Placement ─▶ SessionPartitions (sessions here) or Relays (sessions elsewhere)
Following, RetainedFollower      what other nodes store
Links                            the channel `mqtt` of the internal port
"""

from __future__ import annotations

import asyncio
from socket import socket
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.brokers.mqtt.cluster import frames
from penstock.brokers.mqtt.cluster.entrance import HERE, Entrance
from penstock.brokers.mqtt.cluster.following import Following
from penstock.brokers.mqtt.cluster.links import Links
from penstock.brokers.mqtt.cluster.partitions import SessionPartitions
from penstock.brokers.mqtt.cluster.placement import Placement
from penstock.brokers.mqtt.cluster.relays import Relays
from penstock.brokers.mqtt.cluster.retained import RetainedFollower
from penstock.brokers.mqtt.cluster.writer import ClusterShardWriter
from penstock.brokers.mqtt.deliver.log_reader import LogReader
from penstock.brokers.mqtt.protocol.client_connection import ClientConnection
from penstock.brokers.mqtt.protocol.connect import make_client_id
from penstock.brokers.network import Connection, NetworkServer, PeerAddress, Protocol
from penstock.brokers.network.limits import Transport
from penstock.errors import StoreError
from penstock.meta import MetadataClient, PeerNetwork
from penstock.platform.log import get_logger

if TYPE_CHECKING:
    from penstock.brokers.mqtt.broker import MqttBroker

SESSION_PARTITIONS: Final = 12
"""With how many the first client of a cluster creates the topic of sessions."""
UPDATE_S: Final = 0.05
"""How often this node looks who leads what."""
FIND_S: Final = 5.0
"""How long a CONNECT waits for the node of its session."""
CLAIM_S: Final = 3.0
"""How long the other nodes have to release a partition: longer than a lease."""
IDLE_S: Final = 2.0
READERS: Final = 4
IDS_TRIED: Final = 1_000

_log: Final = get_logger(__name__)


class Peers(NamedTuple):
    """The way to the other nodes of a cluster."""

    network: PeerNetwork
    meta: MetadataClient


class MqttCluster:
    """Made with the broker; used on the event loop from `start` on."""

    def __init__(self, broker: MqttBroker, peers: Peers) -> None:
        drivers, service = broker.drivers, broker.session_service
        self._broker: Final = broker
        self._server: NetworkServer | None = None
        self.placement: Final = Placement(drivers)
        self.retained: Final = RetainedFollower(drivers, broker.retained, self._retained_grown)
        self.following: Final = Following(
            drivers,
            self.placement,
            broker.delivery,
            broker.mapping,
            self.retained.ends,
            self.retained.advertised,
        )
        self.partitions: Final = SessionPartitions(
            drivers,
            self.placement,
            service.registry,
            broker.mapping,
            lambda: LogReader(drivers, broker.mapping, broker.codec, READERS),
            self.following.until_followed,
            self._claim,
            self._until_idle,
        )
        self.relays: Final = Relays(self._adopt)
        self.links: Final = Links(peers.network.channel("mqtt"), self)
        self._writer: Final = service.store.writer
        self._writer.partitions = SESSION_PARTITIONS
        self._updated: asyncio.Future[None] | None = None
        self._creating: asyncio.Task[None] | None = None
        broker.make_client_id = self._make_client_id
        broker.publish_path.fast = None
        self._claims: Final[dict[int, tuple[set[int], asyncio.Event]]] = {}
        """By number, the nodes that have not answered a claim yet."""
        self._next_claim = 0
        if isinstance(broker.writer, ClusterShardWriter):
            broker.writer.check = self.partitions.check

    def serve_with(self, server: NetworkServer) -> None:
        """Serve connections that other nodes relay by this server."""
        self._server = server

    async def start(self) -> None:
        self.following.start(self.links)
        self.relays.start(self.links)
        self.links.start()
        self._broker.spawn(self._run(), "mqtt-cluster")
        _log.info("mqtt_serves_in_cluster", shared_subscriptions=False, delayed_messages=False)

    async def close(self) -> None:
        await self.partitions.close()
        await self.following.close()
        await self.retained.close()
        self.links.close()

    async def _run(self) -> None:
        """Look what has changed, until the server stops."""
        while True:
            try:
                self.following.update()
                self.partitions.update()
                self.retained.update()
            except (StoreError, RuntimeError) as error:
                # RuntimeError: the metadata have changed while they were looked through.
                _log.warning("mqtt_cluster_not_updated", reason=str(error))
            if self._updated is not None:
                self._updated.set_result(None)
                self._updated = None
            await asyncio.sleep(UPDATE_S)

    def _retained_grown(self, name: str, end: int) -> None:
        self.following.grown(name, end)

    # Connections

    def protocol_for(self, connection: Connection) -> Protocol:
        """Return the first protocol of a connection that this node has accepted."""
        return Entrance(
            connection,
            self._broker.decoder,
            self._find_now,
            self._find,
            self._make_client,
            self.relays.relay,
        )

    def _protocol_for_relayed(self, connection: Connection) -> Protocol:
        return Entrance(
            connection,
            self._broker.decoder,
            self._find_now,
            self._find,
            self._make_client,
            None,
        )

    def _make_client(self, connection: Connection) -> Protocol:
        return ClientConnection(connection, self._broker)

    def _adopt(
        self, connected: socket, peer: PeerAddress, transport: Transport
    ) -> Connection | None:
        assert self._server is not None, "a server that is connected was started"
        return self._server.adopt(connected, peer, transport, self._protocol_for_relayed)

    # Where sessions run

    def _find_now(self, client_id: str) -> int | None:
        """Return the node of a client's session, or `HERE`; None: it cannot be served now."""
        route = self.placement.route()
        if route is None:
            return None
        if not client_id:
            return self._find_any()
        partition = self.placement.partition_of(client_id, route)
        leader = self.placement.leader(route.shards[partition])
        if leader == self.placement.node_id:
            return HERE if self.partitions.is_loaded(partition) else None
        if leader is None:
            return None
        if not self.links.is_connected(leader):
            self.links.open(leader)
            return None
        return leader

    def _find_any(self) -> int | None:
        """Return a node for a client to which an id is assigned."""
        route = self.placement.route()
        if route is None:
            return None
        if self.partitions.loaded:
            return HERE
        for name in route.shards:
            leader = self.placement.leader(name)
            if leader is not None and self.links.is_connected(leader):
                return leader
        return None

    async def _find(self, client_id: str) -> int | None:
        """Return what `_find_now` does, when it is known; None: it was not in time."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + FIND_S
        while True:
            node = self._find_now(client_id)
            left_s = until_s - loop.time()
            if node is not None or left_s <= 0:
                return node
            if not self._writer.has_topic():
                self._create_topic()
            if self._updated is None:
                self._updated = loop.create_future()
            await asyncio.wait((self._updated,), timeout=left_s)

    def _create_topic(self) -> None:
        """Create the topic of sessions, for the first client of the cluster."""
        if self._creating is None or self._creating.done():
            self._creating = self._broker.spawn(self._create(), "mqtt-create-sessions")

    async def _create(self) -> None:
        try:
            await self._writer.create_topic()
        except StoreError as error:
            _log.warning("mqtt_sessions_not_created", reason=str(error))
            await asyncio.sleep(1.0)

    def _make_client_id(self) -> str:
        """Return an id whose session runs here."""
        route = self.placement.route()
        loaded = set(self.partitions.loaded)
        made = make_client_id()
        for _ in range(IDS_TRIED if route is not None and loaded else 0):
            if route is not None and self.placement.partition_of(made, route) in loaded:
                break
            made = make_client_id()
        return made

    # Frames

    def received(self, node: int, kind: int, number: int, content: bytes) -> None:
        """See `Receiver` of `links`."""
        if kind == frames.ENDS:
            self.following.ends_received(node, frames.read_ends(content))
        elif kind == frames.FOLLOW:
            self.following.follow(node)
        elif kind == frames.CLAIM:
            claim = frames.read_claim(content)
            self._broker.spawn(self._release(node, number, claim), "mqtt-release")
        elif kind == frames.RELEASED:
            self._answered(node, number)
        else:
            self.relays.received(node, kind, number, content)

    def connected(self, node: int) -> None:
        self.following.connected(node)

    def lost(self, node: int) -> None:
        self.following.lost(node)
        self.relays.lost(node)
        for number in list(self._claims):
            self._answered(node, number)

    # Claims

    async def _claim(self, shard: str, epoch: int) -> None:
        """Have the other nodes end what they do for the sessions of a partition. Nodes that are not
        connected are dead, or will find that their lease has ended."""
        nodes = {node for node in self.following.nodes() if self.links.is_connected(node)}
        if not nodes:
            return
        self._next_claim += 1
        number, answered = self._next_claim, asyncio.Event()
        self._claims[number] = (nodes, answered)
        for node in nodes:
            self.links.post(node, frames.CLAIM, number, frames.claim(shard, epoch))
        try:
            async with asyncio.timeout(CLAIM_S):
                await answered.wait()
        except TimeoutError:
            _log.warning(
                "mqtt_claim_not_answered", shard=shard, nodes=",".join(map(str, sorted(nodes)))
            )
        finally:
            del self._claims[number]

    def _answered(self, node: int, number: int) -> None:
        claim = self._claims.get(number)
        if claim is not None:
            claim[0].discard(node)
            if not claim[0]:
                claim[1].set()

    async def _release(self, node: int, number: int, claim: frames.Claim) -> None:
        await self.partitions.release(claim.shard, claim.epoch)
        self.links.post(node, frames.RELEASED, number)

    async def _until_idle(self, partition: int) -> None:
        writer = self._broker.writer
        if isinstance(writer, ClusterShardWriter):
            await writer.until_idle(partition, IDLE_S)
