"""The native decoder accepts, refuses and answers what the reference does."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.brokers.mqtt.wire.strategies import VERSIONS, from_clients

from penstock.brokers.mqtt.wire.codec import DecodeLimits, Decoder, encode
from penstock.brokers.mqtt.wire.errors import ProtocolError
from penstock.brokers.mqtt.wire.packets import Packet
from penstock.brokers.mqtt.wire.pure.decode import Decoder as Reference

LIMITS = DecodeLimits(
    packet_size_max=300,
    topic_bytes_max=40,
    topic_levels_max=5,
    user_properties_max=4,
    filters_max=3,
)
Outcome = tuple[list[Packet], int | None, tuple[int, str, bool, int | None] | None]


def outcome(decoder: Reference | Decoder, data: bytes, version: int | None) -> Outcome:
    """Return packets, consumed bytes, and what is known of the error."""
    try:
        packets, consumed = decoder.decode(data, version)
    except ProtocolError as error:
        known = int(error.reason_code), error.text, error.answered, error.version
        return error.packets, None, known
    return packets, consumed, None


def check_equal(data: bytes, version: int | None, limits: DecodeLimits = LIMITS) -> None:
    assert outcome(Decoder(limits), data, version) == outcome(Reference(limits), data, version)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[int, bytes]:
    """Packets of which some bytes are changed, inserted or removed."""
    version = draw(VERSIONS)
    packets = draw(st.lists(from_clients(version), min_size=1, max_size=4))
    data = bytearray(b"".join(encode(packet, version) for packet in packets))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 2)):
            case 0 if at < len(data):
                data[at] = draw(st.integers(0, 255))
            case 1:
                data[at:at] = draw(st.binary(min_size=1, max_size=3))
            case _:
                del data[at : at + draw(st.integers(1, 3))]
    return version, bytes(data)


@given(damaged())
@example((4, bytes.fromhex("30070005612f622f63ff")))
@example((5, bytes.fromhex("3206000161000100")))
@example((5, bytes.fromhex("820800010001612f2300")))
def test_damaged_packets_have_the_same_outcome(sample: tuple[int, bytes]) -> None:
    version, data = sample
    check_equal(data, version)


@given(st.sampled_from([None, 3, 4, 5]), st.binary(max_size=60))
def test_random_bytes_have_the_same_outcome(version: int | None, data: bytes) -> None:
    check_equal(data, version)


FIRST_BYTES = bytes.fromhex("303132343a364050627082a2c0")
TEXTS = [b"a/b", b"+", b"a/#", b"$share/g/a", b"\xc3\x9f", b"\xff", b"\x01"]
PROPERTIES = [b"\1\1", b"\2\0\0\0\5", b"\x23\0\1", b"\x0b\1", b"\3\0\0", b"\x08\0\1a"]


def _random_packet(rng: random.Random) -> bytes:
    """Return a body of plausible fields after a plausible first byte."""
    first = rng.choice(
        [0x30, 0x31, 0x32, 0x34, 0x3A, 0x36, 0x40, 0x50, 0x62, 0x70, 0x82, 0xA2, 0xC0]
    )
    first = rng.randrange(256) if rng.random() < 0.1 else first
    body = b""
    for _ in range(rng.randrange(5)):
        match rng.randrange(6):
            case 0:
                body += rng.randbytes(rng.randrange(4))
            case 1:
                body += (rng.randrange(3)).to_bytes(2)
            case 2:
                text = rng.choice(
                    [b"a/b", b"+", b"a/#", b"$share/g/a", b"\xc3\x9f", b"\xff", b"\x01"]
                )
                body += len(text).to_bytes(2) + text
            case 3:
                body += bytes((rng.choice([0, 1, 2, 3, 4, 8, 16]),))
            case 4:
                found = b"".join(rng.choices(PROPERTIES, k=rng.randrange(3)))
                body += bytes((len(found),)) + found
            case _:
                body += b"\x26\0\x01a\0\x01b"
    size = len(body) + rng.choice([0, 0, 0, 0, 1, -1])
    return bytes((first, max(size, 0))) + body


def _fuzz(seed: int, count: int) -> None:
    rng = random.Random(seed)
    native, reference = Decoder(LIMITS), Reference(LIMITS)
    for _ in range(count):
        data = b"".join(_random_packet(rng) for _ in range(rng.randrange(1, 4)))
        version = rng.choice([3, 4, 5])
        assert outcome(native, data, version) == outcome(reference, data, version), data.hex()


def test_plausible_packets_have_the_same_outcome() -> None:
    _fuzz(random.randrange(1 << 30), 10_000)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_ten_million_plausible_packets_have_the_same_outcome() -> None:
    for round_ in range(50):
        _fuzz(random.randrange(1 << 30) + round_, 100_000)
