"""How much memory idle connections take, and what a lack of descriptors does."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.brokers.network.serving import WAIT_S, read_exactly

CONNECTIONS = 2_000
KB_PER_CONNECTION_MAX = 16

PROCESS = """
import json, sys
from tests.brokers.network.serving import LIMITS, serving
with serving(LIMITS) as one:
    status = open("/proc/self/status")
    def memory_kb():
        status.seek(0)
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
    print(json.dumps(one.port), flush=True)
    for line in sys.stdin:
        counts = [one.server.connection_count, one.server.counters.accept_failures, memory_kb()]
        print(json.dumps(counts), flush=True)
"""


class Process:
    """A server with a limit on descriptors."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.port = int(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def look(self) -> tuple[int, int, int]:
        """Return open connections, failed accepts, and KB of memory."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        connections, failures, memory = json.loads(self._answer())
        return connections, failures, memory


@contextmanager
def server_process(descriptors: int) -> Iterator[Process]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])},
        preexec_fn=lambda: resource.setrlimit(  # noqa: PLW1509 - no threads are started yet
            resource.RLIMIT_NOFILE, (descriptors, descriptors)
        ),
    )
    try:
        yield Process(process)
    finally:
        process.kill()
        process.communicate()


@contextmanager
def many_descriptors(needed: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"{needed} open files are needed, {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect(server: Process) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), WAIT_S)


def use(client: socket.socket) -> None:
    client.sendall(b"line\n")
    assert read_exactly(client, 5) == b"line\n"


def test_idle_connections_take_little_memory(capsys: pytest.CaptureFixture[str]) -> None:
    held: list[socket.socket] = []
    with many_descriptors(CONNECTIONS + 500), server_process(CONNECTIONS + 500) as server:
        with connect(server) as first:
            use(first)
        _, _, before = server.look()
        try:
            for _ in range(CONNECTIONS):
                client = connect(server)
                held.append(client)
                use(client)
            count, _, after = server.look()
            assert count >= CONNECTIONS
        finally:
            for client in held:
                client.close()
    used = (after - before) / CONNECTIONS
    with capsys.disabled():
        print(f"\n{used:.1f} KB for each of {CONNECTIONS} idle connections")  # noqa: T201 - a figure for people
    assert used < KB_PER_CONNECTION_MAX


def test_clients_wait_while_there_are_no_descriptors() -> None:
    held: list[socket.socket] = []
    with server_process(64) as server:
        try:
            held += [connect(server) for _ in range(100)]
            failures = 0
            while not failures:
                _, failures, _ = server.look()
            use(held[0])
            for client in held[:80]:
                client.close()
            use(held[99])
        finally:
            for client in held:
                client.close()
