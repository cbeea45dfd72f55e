"""Runs of deliveries are encoded as single packets would be, by both encoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.brokers.mqtt.wire.strategies import PAYLOADS, TOPICS, VERSIONS, properties

from penstock.brokers.mqtt.wire.codec import EncodedRun, encode, encode_acks
from penstock.brokers.mqtt.wire.packets import Ack, PacketType, Publish
from penstock.brokers.mqtt.wire.properties import Properties
from penstock.brokers.mqtt.wire.pure.encode import encode_acks as reference_acks
from penstock.brokers.mqtt.wire.pure.runs import EncodedRun as Reference

NOW_MS = 1_000_000
ENCODERS = [EncodedRun, Reference]


@dataclass(slots=True)
class Stored:
    """A message as delivery has it."""

    topic: str
    payload: bytes
    retain: bool = False
    properties: Properties | None = None
    expires_at_ms: int | None = None


WITHOUT = ("topic_alias", "message_expiry_interval", "subscription_identifiers")
MESSAGES = st.builds(
    Stored,
    TOPICS,
    PAYLOADS,
    st.booleans(),
    properties(PacketType.PUBLISH, WITHOUT),
    st.none() | st.integers(NOW_MS - 5_000, NOW_MS + 100_000),
)


def expected(
    message: Stored, version: int, qos: int, retain: bool, identifiers: list[int], packet_id: int
) -> bytes:
    """Return the packet of one delivery, or nothing where the message has expired."""
    expires = message.expires_at_ms
    if expires is not None and expires <= NOW_MS:
        return b""
    found = replace(message.properties) if message.properties else Properties()
    found.subscription_identifiers = identifiers or None
    if expires is not None:
        found.message_expiry_interval = -(-(expires - NOW_MS) // 1000)
    publish = Publish(
        message.topic,
        message.payload,
        qos,
        retain and message.retain,
        packet_id=packet_id if qos else 0,
        properties=found,
    )
    return encode(publish, version)


@pytest.mark.parametrize("encoder", ENCODERS)
@given(
    messages=st.lists(MESSAGES, max_size=5),
    version=VERSIONS,
    qos=st.integers(0, 2),
    retain=st.booleans(),
    identifiers=st.lists(st.integers(1, 268_435_455), max_size=2, unique=True),
    sequence=st.integers(0, 200_000),
)
def test_a_run_is_the_packets_of_its_messages(
    encoder: type[Reference],
    messages: list[Stored],
    version: int,
    qos: int,
    retain: bool,
    identifiers: list[int],
    sequence: int,
) -> None:
    run = encoder(messages, version == 5, qos, retain, identifiers, NOW_MS)
    packets = [
        expected(message, version, qos, retain, identifiers, (sequence + index) % 65_535 + 1)
        for index, message in enumerate(messages)
    ]
    assert len(run) == len(messages)
    assert run.stamped(0, len(messages), sequence) == b"".join(packets)
    for start in range(len(messages) + 1):
        assert run.stamped(start, len(messages), sequence + start) == b"".join(packets[start:])
    for index, packet in enumerate(packets):
        packet_id = (sequence + index) % 65_535 + 1
        assert run.packet(index, packet_id) == packet
        again = run.packet(index, packet_id, True)
        assert again == (bytes((packet[0] | 8,)) + packet[1:] if packet else b"")
        assert run.is_expired(index) == (not packet)
    assert run.largest == max((len(packet) for packet in packets), default=0)
    assert run.has_expired == (b"" in packets)
    if qos == 0:
        assert run.joined == b"".join(packets)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_packet_ids_begin_again_at_one(encoder: type[Reference]) -> None:
    run = encoder([Stored("t", b"")] * 3, False, 1, False, [], NOW_MS)
    ids = [int.from_bytes(run.stamped(0, 3, 65_533)[at + 5 : at + 7]) for at in (0, 7, 14)]
    assert ids == [65_534, 65_535, 1]


@pytest.mark.parametrize("encoder", ENCODERS)
def test_messages_outside_the_run_are_refused(encoder: type[Reference]) -> None:
    run = encoder([Stored("t", b"")], False, 1, False, [], NOW_MS)
    for start, stop in [(0, 2), (2, 2), (1, 0)]:
        with pytest.raises(IndexError, match="fewer messages"):
            run.stamped(start, stop, 0)
    with pytest.raises(IndexError, match="fewer messages"):
        run.packet(1, 1)


@pytest.mark.parametrize("encoder", [encode_acks, reference_acks])
@pytest.mark.parametrize(
    "kind", [PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP]
)
def test_many_acknowledgements_are_those_of_single_packets(
    encoder: Callable[[PacketType, Sequence[int]], bytes], kind: PacketType
) -> None:
    ids = [1, 2, 255, 256, 65_535]
    single = b"".join(encode(Ack(kind, packet_id), 5) for packet_id in ids)
    assert encoder(kind, ids) == single
