"""Transports of nodes without Raft, which know each other and share a key."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from tests.free_ports import free_ports
from tests.meta.raft.cluster_in_process import wait_until

from penstock.meta.raft.network.data_network import DataChannel
from penstock.meta.raft.network.handshake import Opener
from penstock.meta.raft.network.messages import (
    FRAME_VERSION,
    NONCE_SIZE,
    PROTOCOL,
    RAFT,
    ChannelName,
    ConnectRequest,
    DataChannelName,
    HandshakeAccepted,
    HandshakeRejected,
    JoinRequest,
    Opening,
    PeerStatus,
)
from penstock.meta.raft.network.transport import Transport
from penstock.meta.state.model import Member

KEY = b"the key of both"


class Host:
    """What a node answers at its internal port; `frame_version` 1 is that of earlier releases."""

    def __init__(self, node_id: int, *, frame_version: int = FRAME_VERSION) -> None:
        self.node_id = node_id
        self.frame_version = frame_version
        self.received: list[tuple[int, bytes]] = []
        self.unreached = 0
        self.lost: list[tuple[int, float]] = []

    def keys_for(self, _opening: Opening) -> tuple[bytes, ...]:
        return (KEY,)

    def draw_nonce(self) -> bytes:
        return os.urandom(NONCE_SIZE)

    def check_hello(self, _hello: ConnectRequest) -> str | None:
        return None

    def peer_status(self) -> PeerStatus:
        return PeerStatus(self.node_id, "x", is_bootstrapped=False)

    def join(self, _join: JoinRequest) -> tuple[HandshakeAccepted | HandshakeRejected, bytes]:
        return HandshakeRejected("not here"), b""

    def receive(self, sender: int, data: bytes) -> None:
        self.received.append((sender, data))

    def unreachable(self, _node: int) -> None:
        self.unreached += 1

    def lost_connection(self, node: int) -> None:
        self.lost.append((node, time.monotonic()))

    def open_to(self, member: Member, channel: ChannelName = RAFT) -> Opener:
        hello = ConnectRequest(
            PROTOCOL,
            "c",
            self.node_id,
            "x",
            member.node_id,
            member.incarnation,
            self.draw_nonce(),
            channel,
            1,
            self.frame_version,
        )
        return Opener(hello, KEY)


class Inbox:
    """The user of a data channel: keeps what it is told."""

    def __init__(self, channel: DataChannel) -> None:
        self.channel = channel
        self.received: list[tuple[int, bytes]] = []
        self.connected: list[int] = []
        self.lost: list[tuple[int, float]] = []
        channel.on_connected = self.connected.append
        channel.on_connection_lost = lambda node: self.lost.append((node, time.monotonic()))
        channel.on_receive = lambda node, data: self.received.append((node, data))

    def connect(self, node: int) -> None:
        """Send until the connection stands."""
        wait_until(lambda: self.channel.send(node, b"hello"), f"node {node} is connected", 30)


class TwoNodes:
    """Nodes 1 and 2; either can be restarted."""

    def __init__(self) -> None:
        self.hosts = {1: Host(1), 2: Host(2)}
        self.transports: dict[int, Transport] = {}
        for node in (1, 2):
            self.start(node)
        self.introduce()

    def start(self, node: int, port: int | None = None) -> Transport:
        if port is None:
            [port] = free_ports(1)
        transport = self.transports[node] = Transport(self.hosts[node], ("127.0.0.1", port))
        transport.start()
        return transport

    def introduce(self) -> None:
        for node, other in ((1, 2), (2, 1)):
            self.transports[node].set_members([self.member(other)])

    def member(self, node: int) -> Member:
        address = f"127.0.0.1:{self.transports[node].port}"
        return Member(node_id=node, address=address, incarnation="x")

    def restart(self, node: int) -> Transport:
        port = self.transports[node].port
        self.transports[node].close()
        transport = self.start(node, port)
        transport.set_members([self.member(3 - node)])
        return transport

    def inbox(self, node: int, name: DataChannelName = "replicate") -> Inbox:
        return Inbox(self.transports[node].data.channel(name))

    def connect_raft(self) -> None:
        """Return when frames of Raft pass from node 1 to node 2."""
        receiver = self.hosts[2]

        def passes() -> bool:
            self.transports[1].send(2, b"hello")
            return bool(receiver.received)

        wait_until(passes, "the connection stands")
        time.sleep(0.05)
        wait_until(lambda: receiver.received[-1] == (1, b"hello"), "greetings are through")
        receiver.received.clear()

    def close(self) -> None:
        for transport in self.transports.values():
            transport.close()


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
