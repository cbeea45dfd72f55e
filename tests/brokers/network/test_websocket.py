"""WebSocket clients: the request, frames in every shape, and frames that are not allowed."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.brokers.network.serving import (
    LIMITS,
    LISTENER,
    Serving,
    read_all,
    read_exactly,
    serving,
    wait_until,
)
from tests.brokers.network.websocket_client import (
    ACCEPT,
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    WebSocketClient,
    close_payload,
    frame,
    raw,
    request,
)

from penstock.brokers.network.websocket_frames import unmask

WEBSOCKET = replace(LISTENER, transport="websocket")


@pytest.fixture(scope="module")
def one() -> Iterator[Serving]:
    with serving(replace(LIMITS, frame_size_max=2 << 20), WEBSOCKET) as started:
        yield started


def test_a_request_is_answered_as_the_standard_says(one: Serving) -> None:
    with WebSocketClient(one) as client:
        assert client.status == 101
        assert f"Sec-WebSocket-Accept: {ACCEPT}\r\n" in client.head
        assert "Sec-WebSocket-Protocol: mqtt\r\n" in client.head
        client.send(b"line\n")
        assert client.receive() == (BINARY, b"line\n")
        assert one.protocols[-1].connection.transport == "websocket"


def test_header_names_and_values_are_compared_without_case(one: Serving) -> None:
    hello = request().replace(b"Upgrade: websocket", b"uPgRaDe:WebSocket")
    with WebSocketClient(one, hello) as client:
        assert client.status == 101


def test_the_older_subprotocol_is_accepted(one: Serving) -> None:
    with WebSocketClient(one, request(Sec_WebSocket_Protocol="x, mqttv3.1")) as client:
        assert "Sec-WebSocket-Protocol: mqttv3.1\r\n" in client.head


@pytest.mark.parametrize(
    ("hello", "status"),
    [
        (request(path="/other"), 404),
        (request(remove="Host"), 400),
        (request(remove="Upgrade"), 426),
        (request(remove="Connection"), 426),
        (request(remove="Sec-WebSocket-Key"), 400),
        (request(remove="Sec-WebSocket-Version"), 426),
        (request(remove="Sec-WebSocket-Protocol"), 400),
        (request(Sec_WebSocket_Version="8"), 426),
        (request(Sec_WebSocket_Key="c2hvcnQ="), 400),
        (request(Sec_WebSocket_Key="?" * 24), 400),
        (request(Sec_WebSocket_Protocol="chat"), 400),
        (request().replace(b"GET", b"PUT"), 400),
        (request().replace(b"HTTP/1.1", b"HTTP/1.0"), 505),
        (request().replace(b"HTTP/1.1", b""), 400),
        (request().replace(b"Host:", b"Ho st:"), 400),
        (request().replace(b"Host:", b":"), 400),
        (request(X="y" * 9_000), 431),
        (request(**{f"X_{number}": "y" for number in range(120)}), 431),
        (b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00", 400),
    ],
)
def test_a_request_that_is_not_served_gets_its_status(
    one: Serving, hello: bytes, status: int
) -> None:
    before = len(one.protocols)
    with WebSocketClient(one, hello) as client:
        assert client.status == status
        assert "Connection: close\r\n" in client.head
        assert read_all(client.socket).endswith(b"\n")
    assert len(one.protocols) == before


def test_only_configured_origins_are_accepted() -> None:
    with serving(listener=replace(WEBSOCKET, origins=("https://example.com",))) as strict:
        for origin, status in (("https://example.com", 101), ("https://example.org", 403)):
            with WebSocketClient(strict, request(Origin=origin)) as client:
                assert client.status == status
        with WebSocketClient(strict) as client:
            assert client.status == 101, "programs that are not browsers send no origin"


def test_the_last_forwarded_address_is_the_clients_where_it_is_trusted(one: Serving) -> None:
    hello = request(X_Forwarded_For="198.51.100.9, 192.0.2.7")
    with serving(listener=replace(WEBSOCKET, trusts_forwarded_for=True)) as trusting:
        for started, host in ((trusting, "192.0.2.7"), (one, "127.0.0.1")):
            with WebSocketClient(started, hello):
                assert started.protocols[-1].connection.peer.host == host
        with WebSocketClient(trusting, request(X_Forwarded_For="unknown")):
            assert trusting.protocols[-1].connection.peer.host == "127.0.0.1"


def test_a_request_that_does_not_end_is_closed_in_time() -> None:
    limits = replace(LIMITS, first_message_timeout_s=0.3)
    with serving(limits, WEBSOCKET) as late, raw(late, b"GET /mqtt HTTP/1.1\r\n") as client:
        assert read_all(client) == b""


def test_a_request_may_come_byte_by_byte_with_frames_after_it(one: Serving) -> None:
    with one.connect() as client:
        for byte in request() + frame(b"a\n"):
            client.sendall(bytes([byte]))
        head = b""
        while not head.endswith(b"\r\n\r\n\x82\x02a\n"):
            head += read_exactly(client, 1)
        client.sendall(frame(b"bye\n"))
        assert read_all(client) == b"\x82\x04bye\n\x88\x02" + struct.pack("!H", 1000)


@pytest.mark.parametrize("seed", range(4))
def test_messages_are_independent_of_frames_and_packets(one: Serving, seed: int) -> None:
    rng = random.Random(seed)
    lines = [rng.randbytes(rng.choice([0, 1, 100, 5_000, 200_000])) for _ in range(25)]
    data = b"".join(line.replace(b"\n", b"") + b"\n" for line in lines)
    stream, position, is_first = b"", 0, True
    while position < len(data):
        end = min(len(data), position + rng.choice([0, 1, 125, 126, 65_535, 65_536, 300_000]))
        is_final = rng.random() < 0.5 or end == len(data)
        stream += frame(data[position:end], BINARY if is_first else CONTINUATION, is_final=is_final)
        is_first = is_final
        if rng.random() < 0.3:
            stream += frame(b"", PONG)
        position = end
    with WebSocketClient(one) as client:
        position = 0
        while position < len(stream):
            end = position + rng.choice([1, 3, 1_000, 100_000])
            client.socket.sendall(stream[position:end])
            position = end
        assert client.receive_data(len(data)) == data


def test_a_ping_is_answered_between_fragments(one: Serving) -> None:
    with WebSocketClient(one) as client:
        client.socket.sendall(frame(b"li", is_final=False))
        client.send(b"payload", PING)
        assert client.receive() == (PONG, b"payload")
        client.socket.sendall(frame(b"ne\n", CONTINUATION))
        assert client.receive() == (BINARY, b"line\n")


def test_pings_of_a_client_that_reads_nothing_take_no_memory(one: Serving) -> None:
    with WebSocketClient(one) as client:
        client.socket.settimeout(0.5)
        pings = frame(b"p" * 125, PING) * 4_000
        for _ in range(100):
            try:
                client.socket.sendall(pings)
            except TimeoutError:
                break
        assert one.protocols[-1].connection.unsent < 1 << 20


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (frame(b"x", is_masked=False), 1002),
        (frame(b"x", reserved=4), 1002),
        (frame(b"x", opcode=3), 1002),
        (frame(b"x", opcode=11), 1002),
        (frame(b"x", TEXT), 1003),
        (frame(b"x", CONTINUATION), 1002),
        (frame(b"x", is_final=False) + frame(b"x"), 1002),
        (frame(b"x", PING, is_final=False), 1002),
        (frame(b"x" * 126, PING), 1002),
        (frame(b"x", size_kind=126), 1002),
        (frame(b"x" * 200, size_kind=127), 1002),
        (bytes([0x82, 0xFF]) + struct.pack("!Q", 1 << 63) + b"mask", 1009),
        (bytes([0x82, 0xFF]) + struct.pack("!Q", (2 << 20) + 1) + b"mask", 1009),
        (frame(b"x" * (1 << 20), is_final=False) + frame(b"x", CONTINUATION), 1009),
        (frame(b"\x03", CLOSE), 1002),
        (frame(close_payload(1005), CLOSE), 1002),
        (frame(close_payload(999), CLOSE), 1002),
        (frame(close_payload(1000, b"\xff"), CLOSE), 1007),
        (frame(close_payload(1000, b"done"), CLOSE), 1000),
        (frame(close_payload(4001), CLOSE), 4001),
        (frame(b"", CLOSE), 1000),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",  # masks are random
)
def test_frames_that_end_the_connection_are_answered_with_a_code(
    one: Serving, frames: bytes, code: int
) -> None:
    with WebSocketClient(one) as client:
        client.socket.sendall(frames)
        assert client.close_code() == code
        assert client.is_at_end()
    wait_until(lambda: len(one.protocols[-1].reasons) == 1)


def test_a_paused_protocol_gets_the_rest_of_a_frame_later(one: Serving) -> None:
    with WebSocketClient(one) as client:
        client.send(b"pause 0.1\nnext\n")
        assert client.receive_data(15) == b"pause 0.1\nnext\n"


def test_a_message_in_slow_frames_ends_the_connection() -> None:
    with serving(replace(LIMITS, slow_timeout_s=0.3), WEBSOCKET) as strict:
        with WebSocketClient(strict) as client:
            client.socket.settimeout(0.02)
            closed = False
            while not closed:
                try:
                    client.send(b"z")
                    closed = client.is_at_end()
                except TimeoutError:
                    continue
                except ConnectionError:
                    closed = True
        assert strict.server.counters.closed_by_server["too slow"] == 1


def test_random_bytes_after_the_request_leave_nothing_open(one: Serving) -> None:
    rng = random.Random(7)
    for _ in range(60):
        with WebSocketClient(one) as client:
            try:
                for _ in range(rng.randint(1, 4)):
                    client.socket.sendall(
                        rng.randbytes(rng.choice([1, 30, 4_000]))
                        if rng.random() < 0.6
                        else frame(rng.randbytes(rng.choice([0, 9, 3_000])), rng.randrange(16))
                    )
            except ConnectionError:
                pass
    wait_until(lambda: one.server.connection_count == 0)
    assert all(len(each.reasons) == 1 for each in one.protocols)


@given(st.binary(max_size=300), st.binary(min_size=4, max_size=4), st.integers(0, 9))
def test_unmasking_is_an_exclusive_or_from_any_offset(
    data: bytes, mask: bytes, offset: int
) -> None:
    expected = bytes(byte ^ mask[(offset + n) & 3] for n, byte in enumerate(data))
    assert unmask(memoryview(data), mask, offset) == expected


def test_large_payloads_are_unmasked_in_parts() -> None:
    data, mask = random.Random(3).randbytes(200_003), b"\x01\x02\x03\x04"
    expected = bytes(byte ^ mask[(5 + n) & 3] for n, byte in enumerate(data))
    assert unmask(memoryview(data), mask, 5) == expected
