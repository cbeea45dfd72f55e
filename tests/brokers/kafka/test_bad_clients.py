"""Clients that lie, stall or vanish: an error or a closed connection, and nobody else notices."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers.kafka.running import Running, WireClient, running

from penstock.brokers.kafka.wire.schema import request_layout
from penstock.record import Record

ROUNDS = 400


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("bad"), {"request_size_max": 1 << 20}) as one:
        yield one


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server.port), timeout=60)


def answer_or_end(client: socket.socket) -> bytes:
    """Return what comes; empty when the connection was closed."""
    try:
        return client.recv(65536)
    except ConnectionError:
        return b""


def check_alive(server: Running) -> None:
    with WireClient(server.server.port) as client:
        assert client.ask(18, 3).number("error_code") == 0


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(server: Running) -> None:
    with connect(server) as client:
        client.sendall(struct.pack(">ihhih", 10, 18, 99, 7, -1))
        data = answer_or_end(client)
        size, number, code, count = struct.unpack_from(">iihi", data)
    assert (size, number, code) == (len(data) - 4, 7, 35)
    assert count >= 9


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", (1 << 20) + 1),
        struct.pack(">i", 0x7FFFFFFF),
        struct.pack(">ih", 2, 3),
        struct.pack(">ihhih", 10, 9999, 0, 1, -1),
        struct.pack(">ihhih", 10, 3, 99, 1, -1),
        struct.pack(">ihhih", 10, 3, 1, 1, 500),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_a_frame_that_makes_no_sense_ends_the_connection(server: Running, frame: bytes) -> None:
    with connect(server) as client:
        client.sendall(frame)
        assert answer_or_end(client) == b""
    check_alive(server)


def test_a_request_may_come_byte_by_byte_and_several_at_once(server: Running) -> None:
    request = struct.pack(">ihhih", 10, 18, 0, 1, -1)
    with connect(server) as client:
        for byte in request:
            client.sendall(bytes([byte]))
            time.sleep(0.001)
        assert answer_or_end(client)
        client.sendall(request * 50)
        seen = b""
        while seen.count(struct.pack(">ih", 1, 0)) < 50:
            part = answer_or_end(client)
            assert part
            seen += part


def mutations(seed: bytes, rng: random.Random) -> bytes:
    data = bytearray(seed)
    for _ in range(rng.randint(1, 6)):
        match rng.randrange(4):
            case 0:
                data[rng.randrange(len(data))] = rng.randrange(256)
            case 1:
                del data[rng.randrange(len(data)) :]
            case 2:
                at = rng.randrange(len(data))
                data[at : at + rng.randint(0, 8)] = rng.randbytes(rng.randint(0, 8))
            case _:
                at = rng.randrange(len(data))
                data[at : at + 4] = rng.choice(
                    [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0" * 4]
                )
        if not data:
            return b"\0"
    return bytes(data)


def seeds(server: Running) -> list[tuple[bytes, bytes]]:
    """A real request of every API and version that is served: header and message."""
    topic = {
        "name": "fuzz",
        "topic": "fuzz",
        "partitions": [{"partition_index": 0, "partition": 0, "fetch_offset": 0}],
        "partition_data": [{"index": 0, "records": b"\0" * 70}],
    }
    filled: dict[str, object] = {
        "topics": [topic],
        "topic_data": [topic],
        "groups": [{"group_id": "g"}],
        "resources": [{"resource_type": 2, "resource_name": "fuzz"}],
        "group_id": "g",
        "acks": 1,
        "max_wait": 1,
    }
    found = []
    with WireClient(server.server.port) as client:
        served = client.ask(18, 3).items_of("api_keys")
    for api in served:
        key = api.number("api_key")
        for version in {api.number("min_version"), api.number("max_version")}:
            layout = request_layout(key, version)
            message = bytearray()
            try:
                layout.write(message, filled)
            except (AssertionError, struct.error):
                message = bytearray()
                layout.write(message, {})
            header = struct.pack(">hhih", key, version, 1, -1) + b"\0" * layout.flexible
            found.append((header, bytes(message)))
    return found


def test_mutated_requests_of_every_api_harm_nobody(server: Running) -> None:
    rng = random.Random(20260611)
    known = seeds(server)
    for _ in range(ROUNDS):
        header, message = rng.choice(known)
        body = header + mutations(message or b"\0", rng)
        with connect(server) as client:
            client.settimeout(0.05)
            client.sendall(struct.pack(">i", len(body)) + body)
            with contextlib.suppress(TimeoutError):  # it may wait: a fetch, a group
                answer_or_end(client)
    check_alive(server)
    deadline = time.monotonic() + 90
    while server.server.connection_count > 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert server.server.connection_count <= 5


def test_a_client_that_takes_nothing_holds_up_only_itself(server: Running) -> None:
    request = struct.pack(">ihhih", 10, 18, 0, 1, -1)
    with connect(server) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(0.5)
        sent = 0
        try:
            for _ in range(200_000):
                client.sendall(request * 10)
                sent += 10
        except TimeoutError:
            pass
        # The server stopped reading before it had answered all of them into memory.
        assert sent < 2_000_000
        check_alive(server)


def test_idle_connections_are_closed(tmp_path: Path) -> None:
    quick = {"idle_timeout_ms": 200, "sweep_interval_ms": 50}
    with running(tmp_path, quick) as one, connect(one) as idle:
        assert answer_or_end(idle) == b""


def fetch_all(topic: str) -> bytes:
    """A request for all records of a partition."""
    message = bytearray()
    request_layout(1, 11).write(
        message,
        {
            "max_wait": 0,
            "max_bytes": 1 << 30,
            "session_epoch": -1,
            "topics": [
                {
                    "topic": topic,
                    "partitions": [{"current_leader_epoch": -1, "partition_max_bytes": 1 << 30}],
                }
            ],
        },
    )
    body = struct.pack(">hhih", 1, 11, 1, -1) + bytes(message)
    return struct.pack(">i", len(body)) + body


SLOW = {"slow_timeout_ms": 300, "sweep_interval_ms": 50}


def test_a_request_that_comes_too_slowly_ends_the_connection(tmp_path: Path) -> None:
    with running(tmp_path, SLOW) as one, connect(one) as slow, connect(one) as empty_response:
        slow.settimeout(0.05)
        deadline = time.monotonic() + 60
        closed = False
        slow.sendall(struct.pack(">ihhih", 1_000, 18, 0, 1, -1))
        while not closed and time.monotonic() < deadline:
            try:
                slow.sendall(b"\0")  # never silent
                closed = slow.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                closed = True
        assert closed
        empty_response.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        assert answer_or_end(empty_response) != b"", "who only says nothing has more time"


def test_an_answer_that_is_taken_too_slowly_ends_the_connection(tmp_path: Path) -> None:
    with running(tmp_path, SLOW) as one, connect(one) as slow:
        one.node.admin.create_topic_full("large", 1, {"storage": "memory"})
        for _ in range(16):
            one.node.driver_manager.write("large", Record(bytes(1 << 20)))
        slow.settimeout(0.05)
        slow.sendall(fetch_all("large") * 8)
        deadline = time.monotonic() + 60
        while one.server.connection_count and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError, ConnectionError):
                slow.recv(1)  # it does take something
            time.sleep(0.02)
        assert one.server.connection_count == 0
        check_alive(one)


def test_more_connections_than_allowed_are_refused(tmp_path: Path) -> None:
    with running(tmp_path, {"connections_max": 3}) as one:
        held = [connect(one) for _ in range(3)]
        with connect(one) as fourth:
            assert answer_or_end(fourth) == b""
        for client in held:
            client.close()


def test_five_hundred_idle_connections_hold_up_nobody(server: Running) -> None:
    held = [connect(server) for _ in range(500)]
    try:
        check_alive(server)
        assert server.server.connection_count >= 500
    finally:
        for client in held:
            client.close()
