"""Sockets of clients, the same for every protocol front end: threads, listeners, connections.

    listener ──▶ connection ──▶ [PROXY header] ──▶ [WebSocket] ──▶ protocol of the front end
                     │
                     └ receive buffer, send queue, limits, counters

A front end builds a `NetworkServer` with a function that makes the protocol of a connection. The
server owns one thread with one event loop; everything of a connection happens on that loop.
"""

from penstock.brokers.network.connection import Connection
from penstock.brokers.network.counters import NetworkCounters
from penstock.brokers.network.interface import PeerAddress, Protocol, TimedProtocol
from penstock.brokers.network.limits import ListenerSettings, NetworkLimits
from penstock.brokers.network.send_queue import Part
from penstock.brokers.network.server import NetworkServer

__all__ = [
    "Connection",
    "ListenerSettings",
    "NetworkCounters",
    "NetworkLimits",
    "NetworkServer",
    "Part",
    "PeerAddress",
    "Protocol",
    "TimedProtocol",
]
