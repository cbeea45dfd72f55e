"""The transport by itself: what is sent while a connection stands arrives, whoever sends it."""

from __future__ import annotations

import gc
import os
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.meta.raft.cluster_in_process import wait_until

from penstock.meta.raft.network.handshake import Opener
from penstock.meta.raft.network.messages import (
    NONCE_SIZE,
    PROTOCOL,
    ConnectRequest,
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
    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.received: list[tuple[int, bytes]] = []
        self.lost = 0

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
        self.lost += 1

    def open_to(self, member: Member) -> Opener:
        nonce = self.draw_nonce()
        hello = ConnectRequest(
            PROTOCOL, "c", self.node_id, "y", member.node_id, member.incarnation, nonce
        )
        return Opener(hello, KEY)


@pytest.fixture
def pair() -> Iterator[tuple[Transport, Host, Host]]:
    hosts = Host(1), Host(2)
    transports = [Transport(host, ("127.0.0.1", 0)) for host in hosts]
    for transport in transports:
        transport.start()
    address = f"127.0.0.1:{transports[1].port}"
    transports[0].set_members([Member(node_id=2, address=address, incarnation="x")])
    yield transports[0], hosts[0], hosts[1]
    for transport in transports:
        transport.close()


def test_frames_of_many_threads_all_arrive_in_their_order(
    pair: tuple[Transport, Host, Host],
) -> None:
    transport, _, receiver = pair

    def is_connected() -> bool:
        transport.send(2, b"hello")
        return bool(receiver.received)

    wait_until(is_connected, "the connection stands")
    wait_until(lambda: receiver.received[-1] == (1, b"hello"), "greetings are through")
    del receiver.received[:]

    def send(thread: int) -> None:
        for number in range(5_000):
            transport.send(2, b"%d-%d" % (thread, number))

    threads = [threading.Thread(target=send, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(
        lambda: len([one for one in receiver.received if one[1] != b"hello"]) == 20_000,
        "all frames arrive",
    )
    for thread_number in range(4):
        prefix = b"%d-" % thread_number
        own = [data for _, data in receiver.received if data.startswith(prefix)]
        assert own == [b"%d-%d" % (thread_number, number) for number in range(5_000)]


def test_a_peer_that_is_not_there_is_reported(pair: tuple[Transport, Host, Host]) -> None:
    transport, sender, _ = pair
    transport.send(9, b"nobody")
    wait_until(lambda: sender.lost > 0, "the loss is reported")


def test_a_connection_that_comes_while_the_node_closes_is_closed_too() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(30):
            transport = Transport(Host(1), ("127.0.0.1", 0))
            transport.start()
            with ExitStack() as clients:
                for _ in range(4):
                    clients.enter_context(socket.create_connection(("127.0.0.1", transport.port)))
                transport.close()
            del transport
        gc.collect()
    assert [str(one.message) for one in told if one.category is ResourceWarning] == []
