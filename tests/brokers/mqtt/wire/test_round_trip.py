"""Packets that are encoded are decoded as they were, by the native decoder and the reference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.brokers.mqtt.wire.strategies import VERSIONS, connects, from_clients, from_servers

from penstock.brokers.mqtt.wire.codec import Decoder, encode
from penstock.brokers.mqtt.wire.packets import Connect, Packet, Publish
from penstock.brokers.mqtt.wire.pure.decode import Decoder as Reference

DECODERS = [Decoder, Reference]


@pytest.mark.parametrize("decoder", DECODERS)
@given(data=st.data(), version=VERSIONS)
def test_what_clients_send_is_decoded_as_it_was_encoded(
    decoder: type[Reference], data: st.DataObject, version: int
) -> None:
    packets = data.draw(st.lists(from_clients(version), max_size=8))
    encoded = b"".join(encode(packet, version) for packet in packets)
    assert decoder().decode(encoded, version) == (packets, len(encoded))


@given(data=st.data(), version=VERSIONS)
def test_what_servers_send_is_decoded_as_it_was_encoded(data: st.DataObject, version: int) -> None:
    packets = data.draw(st.lists(from_servers(version), max_size=8))
    encoded = b"".join(encode(packet, version) for packet in packets)
    decoder = Decoder(from_client=False)
    assert decoder.decode(encoded, version) == (packets, len(encoded))


@given(connect=VERSIONS.flatmap(connects))
def test_connect_is_decoded_as_it_was_encoded(connect: Connect) -> None:
    encoded = encode(connect, connect.version)
    assert Decoder().decode(encoded, None) == ([connect], len(encoded))


@pytest.mark.parametrize("decoder", DECODERS)
@given(data=st.data(), version=VERSIONS)
def test_packets_that_arrive_in_pieces_are_decoded_once_each(
    decoder: type[Reference], data: st.DataObject, version: int
) -> None:
    packets = data.draw(st.lists(from_clients(version), max_size=5))
    encoded = b"".join(encode(packet, version) for packet in packets)
    found: list[Packet] = []
    start = 0
    for end in range(len(encoded) + 1):
        decoded, consumed = decoder().decode(memoryview(encoded)[start:end], version)
        found += decoded
        start += consumed
    assert found == packets
    assert start == len(encoded)


def test_decoding_stops_after_connect_while_the_version_is_unknown() -> None:
    connect = Connect(5, "c")
    encoded = encode(connect, 5)
    after = encode(Publish("t", b""), 5)
    decoder = Decoder()
    assert decoder.decode(encoded + after, None) == ([connect], len(encoded))
    assert decoder.decode(after, 5) == ([Publish("t", b"")], len(after))
