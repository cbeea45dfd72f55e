"""The PROXY header: the client's address comes from it, and nothing else is accepted before it."""

from __future__ import annotations

import socket
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

from penstock.brokers.network.interface import PeerAddress
from penstock.brokers.network.proxy_protocol import (
    HEADER_SIZE_MAX,
    SIGNATURE,
    ProxyHeaderError,
    parse,
)

PROXIED = replace(LISTENER, expects_proxy_header=True)


def second(command: int, family: int, rest: bytes) -> bytes:
    return SIGNATURE + struct.pack("!BBH", command, family, len(rest)) + rest


IPV4 = socket.inet_aton("192.0.2.7") + socket.inet_aton("192.0.2.1") + struct.pack("!HH", 5, 1883)
IPV6 = (
    socket.inet_pton(socket.AF_INET6, "2001:db8::7")
    + socket.inet_pton(socket.AF_INET6, "2001:db8::1")
    + struct.pack("!HH", 5, 1883)
)

VALID = {
    b"PROXY TCP4 192.0.2.7 192.0.2.1 5 1883\r\n": PeerAddress("192.0.2.7", 5),
    b"PROXY TCP6 2001:db8::7 2001:db8::1 5 1883\r\n": PeerAddress("2001:db8::7", 5),
    b"PROXY UNKNOWN\r\n": None,
    b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n": None,
    second(0x21, 0x11, IPV4): PeerAddress("192.0.2.7", 5),
    second(0x21, 0x11, IPV4 + b"\x03\x00\x04abcd"): PeerAddress("192.0.2.7", 5),
    second(0x21, 0x21, IPV6): PeerAddress("2001:db8::7", 5),
    second(0x21, 0x31, bytes(216)): None,
    second(0x21, 0x00, b""): None,
    second(0x20, 0x00, b""): None,
    second(0x20, 0x11, IPV4): None,
}

INVALID = [
    b"GET / HTTP/1.1\r\n",
    b"\x10\x0c\x00\x04MQTT",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 5\r\n",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 5 1883 6\r\n",
    b"PROXY TCP4 192.0.2.777 192.0.2.1 5 1883\r\n",
    b"PROXY TCP4 2001:db8::7 2001:db8::1 5 1883\r\n",
    b"PROXY TCP6 192.0.2.7 192.0.2.1 5 1883\r\n",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 65536 1883\r\n",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 -5 1883\r\n",
    b"PROXY TCP4  192.0.2.7 192.0.2.1 5 1883\r\n",
    b"PROXY UDP4 192.0.2.7 192.0.2.1 5 1883\r\n",
    b"PROXY TCP4 " + b"1" * 120,
    second(0x31, 0x11, IPV4),
    second(0x22, 0x11, IPV4),
    second(0x21, 0x12, IPV4),
    second(0x21, 0x11, IPV4[:-1]),
    SIGNATURE + b"\x21\x11\xff\xff",
]


@pytest.mark.parametrize(("header", "address"), VALID.items())
def test_a_valid_header_gives_the_address_and_its_size(
    header: bytes, address: PeerAddress | None
) -> None:
    assert parse(header + b"rest") == (len(header), address)
    assert all(parse(header[:size]) is None for size in range(len(header)))


@pytest.mark.parametrize("header", INVALID)
def test_an_invalid_header_is_refused(header: bytes) -> None:
    with pytest.raises(ProxyHeaderError):
        parse(header)


@given(st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE]), st.binary(max_size=5_000))
def test_any_bytes_are_a_header_or_refused_within_the_limit(begin: bytes, rest: bytes) -> None:
    data = begin + rest
    try:
        parsed = parse(data)
    except ProxyHeaderError:
        return
    assert parsed is not None or len(data) < HEADER_SIZE_MAX
    assert parsed is None or parsed[0] <= len(data)


@pytest.fixture(scope="module")
def one() -> Iterator[Serving]:
    with serving(listener=PROXIED) as started:
        yield started


@pytest.mark.parametrize("header", VALID)
def test_the_protocol_begins_after_the_header(one: Serving, header: bytes) -> None:
    with one.connect() as client:
        for byte in header:
            client.sendall(bytes([byte]))
        client.sendall(b"line\n")
        assert read_exactly(client, 5) == b"line\n"
        peer = one.protocols[-1].connection.peer
        expected = VALID[header]
        assert peer == (expected if expected is not None else PeerAddress(*client.getsockname()))


@pytest.mark.parametrize("header", INVALID)
def test_a_connection_with_an_invalid_header_is_closed(one: Serving, header: bytes) -> None:
    before = len(one.protocols)
    with one.connect() as client:
        client.sendall(header)
        assert read_all(client) == b""
    assert len(one.protocols) == before


def test_an_unfinished_header_is_closed_in_time() -> None:
    limits = replace(LIMITS, first_message_timeout_s=0.3)
    with serving(limits, PROXIED) as late, late.connect() as client:
        client.sendall(b"PROXY TCP4 ")
        assert read_all(client) == b""
        assert late.server.counters.refused["no first message"] == 1


def test_connections_are_limited_by_the_address_in_the_header() -> None:
    limits = replace(LIMITS, connections_per_address_max=1)
    with serving(limits, PROXIED) as limited:
        with limited.connect() as first, limited.connect() as again, limited.connect() as other:
            first.sendall(b"PROXY TCP4 192.0.2.7 192.0.2.1 5 1883\r\na\n")
            assert read_exactly(first, 2) == b"a\n"
            again.sendall(b"PROXY TCP4 192.0.2.7 192.0.2.1 6 1883\r\na\n")
            assert read_all(again) == b""
            other.sendall(b"PROXY TCP4 192.0.2.8 192.0.2.1 5 1883\r\nb\n")
            assert read_exactly(other, 2) == b"b\n"
        wait_until(lambda: limited.server.connection_count == 0)
        with limited.connect() as later:
            later.sendall(b"PROXY TCP4 192.0.2.7 192.0.2.1 5 1883\r\nc\n")
            assert read_exactly(later, 2) == b"c\n"
