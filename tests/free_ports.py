"""Ports that a node can be started on again and again.

They lie below those that the system gives to outgoing connections and to servers on port 0, and
each test process has a block of its own: no other test claims a port while its node is away.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from itertools import cycle

FIRST = 10_000
BLOCK = 400
BLOCKS = 25
"""`penstock cluster up` chooses its ports from 20,000 on."""

_locks: list[int] = []


@cache
def _block() -> Iterator[int]:
    """Return the ports of a block, again and again; it is locked until this process ends."""
    for number in range(BLOCKS):
        path = os.path.join(tempfile.gettempdir(), f"penstock-test-ports-{number}")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        _locks.append(descriptor)
        first = FIRST + number * BLOCK
        return cycle(range(first, first + BLOCK))
    raise AssertionError(f"all {BLOCKS} blocks of ports are in use by other test processes")


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as trial:
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Return ports of this process's block; one comes again when all others were given away."""
    ports: list[int] = []
    for _ in range(2 * BLOCK):
        if len(ports) == count:
            return ports
        port = next(_block())
        if port not in ports and _is_free(port):
            ports.append(port)
    raise AssertionError(f"fewer than {count} ports of the block are free")


def free_port_base(nodes: int) -> int:
    """Return the first of ten successive ports per node, for `--port-base`."""
    width = 10 * nodes
    ports = free_ports(width)
    while ports != list(range(ports[0], ports[0] + width)):
        ports = [*ports[1:], *free_ports(1)]
    return ports[0]
