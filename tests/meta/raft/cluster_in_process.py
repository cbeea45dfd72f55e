"""Three nodes of the meta service in this process, with real sockets and real databases."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests.free_ports import free_ports

from penstock.meta.raft.client import RaftMetaClient
from penstock.meta.raft.group.load import RaftTiming
from penstock.meta.raft.members.bootstrap import Place
from penstock.meta.raft.node import NodeTiming
from penstock.meta.storage.groups import LogLimits

TIMING = NodeTiming(
    tick_seconds=0.02,
    pause_seconds=0.02,
    raft=RaftTiming(election_ticks=15, heartbeat_ticks=3, deadline_ticks=1_500),
)
DEADLINE_S = 120.0
SECRET = "the secret of all tests"


def wait_until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE_S) -> None:
    """Ask again and again, less often the longer it takes: some conditions run a whole command."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, f"waited in vain: {what}"
        time.sleep(min(0.02 + waited / 10, 0.25))


class ClusterInProcess:
    def __init__(
        self,
        directory: Path,
        nodes: int = 3,
        limits: LogLimits | None = None,
        secrets: tuple[str, ...] = (SECRET,),
    ) -> None:
        self.directory = directory
        self.limits = limits
        self.secrets = secrets
        numbers = range(1, nodes + 1)
        self.addresses = {
            node: f"127.0.0.1:{port}" for node, port in zip(numbers, free_ports(nodes), strict=True)
        }
        self.clients: dict[int, RaftMetaClient] = {}

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(f"{node}@{address}" for node, address in self.addresses.items())

    def start(
        self, node: int, peers: tuple[str, ...] | None = None, token: str = ""
    ) -> RaftMetaClient:
        place = Place(
            node_id=node, peers=peers or self.peers, secrets=self.secrets, join_token=token
        )
        path = str(self.directory / f"node-{node}")
        client = RaftMetaClient.open(path, place, timing=TIMING, limits=self.limits)
        self.clients[node] = client
        return client

    def start_all(self) -> None:
        threads = [
            threading.Thread(target=self.start, args=(node,), daemon=True)
            for node in self.addresses
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        self.wait_for_voters(set(self.addresses))

    def wait_for_voters(self, voters: set[int]) -> None:
        def all_vote() -> bool:
            return all(
                set(status.configuration.voters) == voters
                for client in self.clients.values()
                for status in client.raft_status
            )

        wait_until(all_vote, f"{voters} vote in all groups")

    def stop(self, node: int) -> None:
        self.clients.pop(node).close()

    def leader(self, group: str = "metadata") -> int:
        found: list[int] = []

        def is_known() -> bool:
            found[:] = [
                node
                for node, client in self.clients.items()
                for status in client.raft_status
                if status.name == group and status.role == "leader"
            ]
            return bool(found)

        wait_until(is_known, f"{group} has a leader")
        return found[0]

    def close(self) -> None:
        for node in list(self.clients):
            self.stop(node)

    def __enter__(self) -> ClusterInProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def send_to(address: str, data: bytes) -> bytes:
    """Send bytes to a node and return what it answers until it hangs up."""
    host, _, port = address.rpartition(":")
    with closing(socket.create_connection((host, int(port)), timeout=60)) as connection:
        connection.sendall(data)
        connection.settimeout(10)
        try:
            return connection.recv(65_536)
        except ConnectionError:
            return b""
