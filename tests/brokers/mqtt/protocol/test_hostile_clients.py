"""Clients that send too much, too deep or too slowly: bounded memory, and clear reason codes."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers.mqtt.raw_client import RawClient
from tests.brokers.mqtt.serving import PATIENCE_S, node_settings, port_of, serve
from tests.engine.quick_directory import quick_directory

from penstock.brokers.mqtt.wire.codec import encode
from penstock.brokers.mqtt.wire.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.brokers.network import Connection
from penstock.remote.server.node_server import Server

SUBSCRIPTIONS_MAX = 200


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    settings = node_settings(
        packet_size_max=1 << 20,
        connect_timeout_ms=3_000,
        sweep_interval_ms=100,
        slow_timeout_ms=3_000,
        subscriptions_per_session_max=SUBSCRIPTIONS_MAX,
        connections_per_address_max=0,
    )
    with quick_directory() as directory, serve(Path(directory) / "data", settings) as started:
        yield started


@pytest.fixture
def port(server: Server) -> int:
    return port_of(server)


def check_alive(port: int) -> None:
    with RawClient(port) as client:
        client.connect(client_id=f"alive{random.random()}")
        client.send(Pingreq())
        client.receive(Pingresp)


def open_connections(server: Server) -> int:
    assert server.mqtt is not None
    count: int = server.mqtt.connection_count
    return count


def wait_for_connections(server: Server, most: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while open_connections(server) > most:
        assert time.monotonic() < deadline, "connections stay open"
        time.sleep(0.02)


def memory_mb() -> float:
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024


def requests(count: int, start: int = 0) -> list[SubscriptionRequest]:
    return [SubscriptionRequest(f"bomb/{number}/+/#", 1) for number in range(start, start + count)]


def test_subscriptions_beyond_the_limit_are_refused_one_by_one(port: int) -> None:
    with RawClient(port) as client:
        client.connect(client_id="bomb")
        client.send(Subscribe(1, requests(SUBSCRIPTIONS_MAX + 50)))
        codes = client.receive(Suback).reason_codes
        assert codes == [1] * SUBSCRIPTIONS_MAX + [ReasonCode.QUOTA_EXCEEDED] * 50
        client.send(Subscribe(2, requests(2)))
        assert client.receive(Suback).reason_codes == [1, 1], "replacing one is no new one"
    check_alive(port)


def test_many_wildcards_do_not_stop_the_node(port: int) -> None:
    """Each filter of `+` alone doubles the nodes that a match visits."""
    deep = ["/".join(random.Random(n).choices(["+", "a"], k=14)) for n in range(SUBSCRIPTIONS_MAX)]
    with RawClient(port) as client, RawClient(port) as publisher:
        client.connect(client_id="deep")
        client.send(Subscribe(1, [SubscriptionRequest(text, 0) for text in sorted(set(deep))]))
        client.receive(Suback)
        publisher.connect(client_id="deep-publisher")
        for number in range(200):
            publisher.send(Publish("/".join(["a"] * 13 + [str(number)]), b"x"))
        publisher.send(Pingreq())
        publisher.receive(Pingresp)
    check_alive(port)


@pytest.mark.parametrize(
    ("version", "reason"), [(MQTT_5, ReasonCode.MALFORMED_PACKET), (MQTT_3_1_1, None)]
)
@pytest.mark.parametrize("text", ["a/#/b", "a+", "#a", "", "$share/g", "$share/+/a"])
def test_a_malformed_filter_ends_the_connection(
    port: int, text: str, version: int, reason: int | None
) -> None:
    with RawClient(port, version) as client:
        client.connect(client_id="malformed")
        client.send(Subscribe(1, [SubscriptionRequest(text, 0)]))
        client.expect_end(reason)


@pytest.mark.parametrize("kind", ["levels", "bytes"])
def test_a_topic_beyond_the_limits_is_refused(port: int, kind: str) -> None:
    text = "/" * 5_000 if kind == "levels" else "x" * 5_000
    with RawClient(port) as client:
        client.connect(client_id="long")
        client.send(Publish(text, b"x", 1, packet_id=1))
        assert isinstance(client.next(), Disconnect)
        client.expect_end()
    check_alive(port)


@pytest.mark.parametrize(
    "packet",
    [
        b"\x30\xff\xff\xff\x7f",  # a publish of 256 MiB
        b"\x82\xff\xff\xff\x7f",
        b"\x10\xff\xff\xff\x7f",
        b"\x30\xff\xff\xff\xff\x7f",  # a size of five bytes
        b"\x30\x05\xff\xff",  # a topic that is longer than its packet
        b"\x00\x00",
        b"\xf0\x00",
        b"\xc0\x01x",
        b"\x36\x03\x00\x01a",  # QoS 3
    ],
)
def test_a_length_bomb_ends_the_connection_without_taking_memory(
    server: Server, port: int, packet: bytes
) -> None:
    for _ in range(3):
        with RawClient(port) as client:
            client.connect(client_id="length")
            client.send_bytes(packet + b"\0" * 8)
            found = client.next()
            assert found is None or isinstance(found, Disconnect)
            if found is not None:
                assert found.reason_code in {
                    ReasonCode.MALFORMED_PACKET,
                    ReasonCode.PROTOCOL_ERROR,
                    ReasonCode.PACKET_TOO_LARGE,
                }
    wait_for_connections(server, 0)
    check_alive(port)


def test_announced_sizes_take_no_memory(server: Server, port: int) -> None:
    """A buffer grows with what arrives; 200 clients announce a MiB each."""
    before = memory_mb()
    with contextlib.ExitStack() as clients:
        for number in range(200):
            client = clients.enter_context(RawClient(port))
            client.connect(client_id=f"announce{number}")
            client.send_bytes(b"\x30\xf0\xff\x3f\x00\x01a")
        check_alive(port)
        assert memory_mb() - before < 60
    wait_for_connections(server, 0)


def test_a_packet_that_arrives_too_slowly_ends_the_connection(server: Server, port: int) -> None:
    with RawClient(port) as client:
        client.connect(client_id="trickle")
        client.send_bytes(b"\x30\xf0\xff\x3f\x00\x01a")
        deadline = time.monotonic() + PATIENCE_S
        while client.is_silent(0.05):
            assert time.monotonic() < deadline
            try:
                client.send_bytes(b"x")
            except OSError:
                break
    wait_for_connections(server, 0)


def test_connections_that_say_nothing_are_ended(server: Server, port: int) -> None:
    flood = [socket.create_connection(("127.0.0.1", port), PATIENCE_S) for _ in range(300)]
    try:
        check_alive(port)
        for client in flood:
            assert client.recv(1) == b""
    finally:
        for client in flood:
            client.close()
    wait_for_connections(server, 0)


def test_a_flood_of_connects_leaves_nothing_open(server: Server, port: int) -> None:
    connect = encode(Connect(MQTT_3_1_1, "flood"), MQTT_3_1_1)
    for _ in range(200):
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
            client.sendall(connect)
    check_alive(port)
    wait_for_connections(server, 0)


def test_random_bytes_harm_no_other_client(server: Server, port: int) -> None:
    rng = random.Random(20261120)
    valid = [
        encode(Connect(MQTT_5, "fuzz"), MQTT_5),
        encode(Publish("a/b", b"x" * 50, 1, packet_id=1), MQTT_5),
        encode(Subscribe(1, [SubscriptionRequest("a/+", 1)]), MQTT_5),
    ]
    with RawClient(port) as other:
        other.connect(client_id="other")
        for _ in range(150):
            data = bytearray(valid[0] + b"".join(rng.choices(valid[1:], k=3)))
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(len(valid[0]) * rng.randint(0, 1), len(data))] = rng.randrange(
                    256
                )
            with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
                client.sendall(data)
        other.send(Pingreq())
        other.receive(Pingresp)
    wait_for_connections(server, 0)


def test_a_subscriber_that_reads_nothing_is_bounded_and_then_ended(
    server: Server, port: int
) -> None:
    """It is sent at most about a MiB more than it reads; the rest stays in the log."""
    with RawClient(port) as slow, RawClient(port) as publisher:
        slow.connect(Connect(MQTT_5, "slow", properties=Properties(session_expiry_interval=60)))
        slow.send(Subscribe(1, [SubscriptionRequest("slow/#", 1)]))
        slow.receive(Suback)
        publisher.connect(client_id="slow-publisher")
        for number in range(300):
            publisher.send(Publish("slow/x", bytes(100_000), 1, packet_id=number + 1))
            publisher.next()
        assert server.mqtt is not None
        most = max(connection.unsent for connection in server.mqtt.network.connections)
        assert most < 4 << 20
        wait_for_connections(server, 1)
        publisher.send(Pingreq())
        publisher.receive(Pingresp)


def test_retained_messages_for_a_client_that_reads_nothing_stay_where_they_are(
    server: Server, port: int
) -> None:
    with RawClient(port) as publisher, RawClient(port) as slow:
        publisher.connect(client_id="retain")
        for number in range(60):
            topic = f"retained/{number}"
            publisher.send(Publish(topic, bytes(500_000), 1, retain=True, packet_id=number + 1))
            publisher.next()
        slow.connect(client_id="retained-slow")
        slow.send(Subscribe(1, [SubscriptionRequest("retained/#", 1)]))
        slow.receive(Suback)
        deadline = time.monotonic() + 1.0
        assert server.mqtt is not None
        while time.monotonic() < deadline:
            assert max(c.unsent for c in server.mqtt.network.connections) < 4 << 20
            time.sleep(0.01)
        for number in range(60):
            publisher.send(Publish(f"retained/{number}", b"", 1, retain=True, packet_id=1))
            publisher.next()


def test_pings_without_reading_are_not_answered_without_end(server: Server, port: int) -> None:
    with RawClient(port) as client:
        client.connect(client_id="pings")
        connection = next(iter(open_sockets(server)))
        client._socket.settimeout(0.5)
        try:
            for _ in range(400):
                client.send_bytes(b"\xc0\0" * 50_000)
        except (TimeoutError, ConnectionError):
            pass
        assert connection.unsent < 4 << 20
    wait_for_connections(server, 0)
    check_alive(port)


def open_sockets(server: Server) -> list[Connection]:
    assert server.mqtt is not None
    connections: list[Connection] = server.mqtt.network.connections
    return connections


def test_connections_of_one_address_are_limited(tmp_path: Path) -> None:
    with serve(tmp_path / "data", node_settings(connections_per_address_max=3)) as limited:
        held = [RawClient(port_of(limited)) for _ in range(3)]
        for number, client in enumerate(held):
            client.connect(client_id=f"held{number}")
        with RawClient(port_of(limited)) as refused:
            refused.expect_end()
        for client in held:
            client.close()


def test_a_lack_of_descriptors_is_survived(server: Server, port: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first.fileno() + 8, hard))
    held = [first]
    try:
        with contextlib.suppress(OSError):
            while len(held) < 20:
                held += [socket.create_connection(("127.0.0.1", port), PATIENCE_S)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for client in held:
            client.close()
    check_alive(port)
    wait_for_connections(server, 0)


def connect_bytes(client_id: str) -> bytes:
    return encode(Connect(MQTT_3_1_1, client_id), MQTT_3_1_1)


def test_proxy_headers_name_the_client(tmp_path: Path) -> None:
    with serve(tmp_path / "data", node_settings(proxy_protocol=True)) as proxied:
        port = port_of(proxied)
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as plain:
            plain.sendall(connect_bytes("plain"))
            assert plain.recv(1) == b""
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
            header = struct.pack("!12sBBH", b"\r\n\r\n\0\r\nQUIT\n", 0x21, 0x11, 12)
            header += socket.inet_aton("192.0.2.9") + socket.inet_aton("192.0.2.1")
            client.sendall(header + struct.pack("!HH", 4711, 1883) + connect_bytes("proxied"))
            assert client.recv(4) == b"\x20\x02\0\0"
            assert proxied.mqtt is not None
            clients = {each.client.host for each in proxied.mqtt.broker.clients}
            assert clients == {"192.0.2.9"}
