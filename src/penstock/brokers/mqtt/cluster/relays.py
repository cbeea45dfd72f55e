"""`Relays`: all relayed connections of this node, at both ends."""

from __future__ import annotations

import socket
from collections.abc import Callable
from time import time_ns
from typing import Final, cast

from penstock.brokers.mqtt.cluster import frames
from penstock.brokers.mqtt.cluster.links import Links
from penstock.brokers.mqtt.cluster.relay import RelayedClient, RelayedSession
from penstock.brokers.network import Connection, PeerAddress
from penstock.brokers.network.limits import Transport

Adopt = Callable[[socket.socket, PeerAddress, Transport], Connection | None]
"""Serves a connection that another node has accepted."""


class Relays:
    def __init__(self, adopt: Adopt) -> None:
        self._adopt: Final = adopt
        self._links: Links | None = None
        self._next_number = time_ns()
        """Numbers of earlier processes of this node are lower."""
        self._clients: Final[dict[int, RelayedClient]] = {}
        """By number."""
        self._sessions: Final[dict[tuple[int, int], RelayedSession]] = {}
        """By node and number."""

    def start(self, links: Links) -> None:
        self._links = links

    @property
    def clients(self) -> int:
        """How many clients of this node have their session on another one."""
        return len(self._clients)

    @property
    def sessions(self) -> int:
        """How many clients of other nodes have their session here."""
        return len(self._sessions)

    def relay(self, connection: Connection, node: int) -> RelayedClient:
        """Pass the bytes of a connection on to the node of its session."""
        assert self._links is not None, "the relays were started"
        self._next_number += 1
        client = RelayedClient(connection, self._links, node, self._next_number, self._client_ended)
        self._clients[client.number] = client
        return client

    def _client_ended(self, client: RelayedClient) -> None:
        self._clients.pop(client.number, None)

    def _session_ended(self, session: RelayedSession) -> None:
        self._sessions.pop((session.node, session.number), None)

    def received(self, node: int, kind: int, number: int, content: bytes) -> None:
        """Handle a frame of another node."""
        if kind & frames.BACK:
            client = self._clients.get(number)
            if client is not None and client.node == node:
                _pass_back(client, kind & ~frames.BACK, content)
            return
        if kind == frames.OPEN:
            self._open(node, number, frames.read_opened(content))
            return
        session = self._sessions.get((node, number))
        if session is None:
            if kind == frames.DATA:
                self._refuse(node, number, "the connection is not known")
        elif kind == frames.DATA:
            session.data(content)
        elif kind == frames.CREDIT:
            session.credit(frames.read_credit(content))
        elif kind == frames.END:
            session.end()

    def _open(self, node: int, number: int, opened: frames.Opened) -> None:
        assert self._links is not None, "the relays were started"
        here, there = socket.socketpair()
        peer = PeerAddress(opened.host, opened.port)
        if self._adopt(there, peer, cast("Transport", opened.transport)) is None:
            here.close()
            self._refuse(node, number, "the node of the session has too many connections")
            return
        session = RelayedSession(here, self._links, node, number, self._session_ended)
        self._sessions[node, number] = session

    def _refuse(self, node: int, number: int, reason: str) -> None:
        assert self._links is not None, "the relays were started"
        self._links.post(node, frames.END | frames.BACK, number, reason.encode())

    def lost(self, node: int) -> None:
        """A node is gone, or bytes on the way to it are."""
        for client in list(self._clients.values()):
            if client.node == node:
                client.end(f"node {node}, which runs the session, is not connected any more")
        for session in list(self._sessions.values()):
            if session.node == node:
                session.end()


def _pass_back(client: RelayedClient, kind: int, content: bytes) -> None:
    if kind == frames.DATA:
        client.data(content)
    elif kind == frames.CREDIT:
        client.credit(frames.read_credit(content))
    elif kind == frames.END:
        client.end(content.decode("utf-8", "replace"))
