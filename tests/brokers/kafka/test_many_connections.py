"""Ten thousand clients that say nothing, and one that works beside them."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

import pytest
from tests.brokers.kafka.transactions.test_exactly_once import ServerProcess, serving
from tests.kafka_clients import Producer

IDLE_CONNECTIONS = 10_000
KB_PER_CONNECTION_MAX = 16
WAIT_S = 60.0


def memory_kb(server: ServerProcess) -> int:
    with Path(f"/proc/{server.pid}/status").open() as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))


def work_beside(server: ServerProcess) -> None:
    producer = Producer({"bootstrap.servers": server.address})
    producer.produce("beside", b"value")
    assert producer.flush(WAIT_S) == 0


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_ten_thousand_idle_connections_hold_up_nobody(data_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = IDLE_CONNECTIONS + 1_000
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"{needed} open files are needed, {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    held: list[socket.socket] = []
    try:
        with serving(data_path) as server:
            work_beside(server)
            before = memory_kb(server)
            for number in range(IDLE_CONNECTIONS):
                # One address has fewer ports than there may be clients of other tests.
                source = (f"127.0.0.{1 + number % 4}", 0)
                held.append(socket.create_connection(("127.0.0.1", server.port), WAIT_S, source))
            work_beside(server)
            used = (memory_kb(server) - before) / IDLE_CONNECTIONS
            assert used < KB_PER_CONNECTION_MAX
            for client in held:
                client.setblocking(False)
                with pytest.raises(BlockingIOError):
                    client.recv(1)  # still there, and nothing to say
    finally:
        for client in held:
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
