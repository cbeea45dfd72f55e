"""Packets that break a rule raise the reason code that the standard gives."""

from __future__ import annotations

import pytest

from penstock.brokers.mqtt.wire.codec import DecodeLimits, Decoder, encode
from penstock.brokers.mqtt.wire.errors import ProtocolError
from penstock.brokers.mqtt.wire.packets import PINGREQ, Publish
from penstock.brokers.mqtt.wire.properties import Properties
from penstock.brokers.mqtt.wire.pure.decode import Decoder as Reference
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode

MALFORMED = ReasonCode.MALFORMED_PACKET
PROTOCOL = ReasonCode.PROTOCOL_ERROR
DECODERS = [Decoder, Reference]

IN_MQTT_5 = {
    "packet type 0": ("00 00", PROTOCOL),
    "a second CONNECT": ("10 0d 0004 4d515454 05 02 0000 00 0000", PROTOCOL),
    "a packet of servers": ("90 04 0001 00 00", PROTOCOL),
    "QoS 3": ("36 06 0001 61 0001 00", MALFORMED),
    "DUP with QoS 0": ("38 04 0001 61 00", MALFORMED),
    "an empty topic without an alias": ("30 03 0000 00", MALFORMED),
    "topic alias 0": ("30 07 0001 61 03 23 0000", ReasonCode.TOPIC_ALIAS_INVALID),
    "a wildcard in a topic": ("30 04 0001 23 00", MALFORMED),
    "packet id 0": ("32 06 0001 61 0000 00", PROTOCOL),
    "a topic that ends after the packet": ("30 03 0005 61", MALFORMED),
    "a topic with a surrogate": ("30 06 0003 eda080 00", MALFORMED),
    "a topic with U+0000": ("30 04 0001 00 00", MALFORMED),
    "a topic with a control character": ("30 05 0002 c280 00", MALFORMED),
    "an unknown property": ("30 06 0001 61 02 0401", MALFORMED),
    "a property of another packet": ("30 06 0001 61 02 2401", PROTOCOL),
    "a property twice": ("30 08 0001 61 04 0101 0101", PROTOCOL),
    "a value out of bounds": ("30 06 0001 61 02 0102", PROTOCOL),
    "a property that ends early": ("30 05 0001 61 01 02", MALFORMED),
    "properties that end after the packet": ("30 04 0001 61 7f", MALFORMED),
    "a subscription identifier of a client": ("30 06 0001 61 02 0b01", PROTOCOL),
    "a response topic with a wildcard": ("30 08 0001 61 04 08 0001 2b", PROTOCOL),
    "flags of PUBREL": ("60 02 0001", PROTOCOL),
    "flags of PUBACK": ("41 02 0001", MALFORMED),
    "flags of SUBSCRIBE": ("80 07 0001 00 0001 61 00", MALFORMED),
    "flags of DISCONNECT": ("e1 00", PROTOCOL),
    "an unknown reason code": ("40 03 0001 42", PROTOCOL),
    "bytes after PUBACK": ("40 05 0001 00 00 00", MALFORMED),
    "no filter": ("82 03 0001 00", MALFORMED),
    "a bad filter": ("82 08 0001 00 0002 612b 00", MALFORMED),
    "a filter after #": ("82 09 0001 00 0003 232f61 00", MALFORMED),
    "reserved options": ("82 07 0001 00 0001 61 40", MALFORMED),
    "retain handling 3": ("82 07 0001 00 0001 61 30", MALFORMED),
    "No Local of a group": ("82 10 0001 00 000a 24736861 72652f672f61 04", PROTOCOL),
    "a group without a filter": ("82 0e 0001 00 0008 2473686172652f67 00", MALFORMED),
    "two subscription identifiers": ("82 0b 0001 04 0b01 0b02 0001 61 00", PROTOCOL),
    "a subscription identifier of five bytes": ("82 0d 0001 06 0b8080808001 0001 61 00", MALFORMED),
    "unsubscribe from nothing": ("a2 03 0001 00", MALFORMED),
    "AUTH with an unknown reason": ("f0 01 42", PROTOCOL),
}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("name", IN_MQTT_5)
def test_a_broken_packet_has_the_reason_code_of_the_standard(
    decoder: type[Reference], name: str
) -> None:
    text, reason = IN_MQTT_5[name]
    with pytest.raises(ProtocolError, match=r".") as caught:
        decoder().decode(encode(PINGREQ, 5) + bytes.fromhex(text), 5)
    assert caught.value.reason_code == reason
    assert caught.value.packets == [PINGREQ]
    assert caught.value.answered


HEAD_4 = "0004 4d515454 04"
HEAD_5 = "0004 4d515454 05"
CONNECTS = {
    "another protocol": ("10 0d 0004 4d515455 04 02 0000 0001 61", MALFORMED, None),
    "version 6": ("10 0d 0004 4d515454 06 02 0000 0001 61", 0x84, 5),
    "3.1's name with version 4": ("10 0f 0006 4d5149736470 04 02 0000 0001 61", 0x84, 4),
    "flags of the first byte": (f"11 0d {HEAD_4} 02 0000 0001 61", MALFORMED, None),
    "a reserved flag": (f"10 0d {HEAD_4} 03 0000 0001 61", MALFORMED, None),
    "a will's QoS without a will": (f"10 0d {HEAD_4} 0a 0000 0001 61", MALFORMED, None),
    "a password without a name": (f"10 10 {HEAD_4} 42 0000 0001 61 0001 61", MALFORMED, None),
    "an empty client id of 3.1.1": (f"10 0c {HEAD_4} 00 0000 0000", 0x85, 4),
    "a bad client id of 3.1.1": (f"10 0d {HEAD_4} 02 0000 0001 01", 0x85, None),
    "a bad client id of 5.0": (f"10 0e {HEAD_5} 02 0000 00 0001 01", 0x85, 5),
    "bytes after the last field": (f"10 0f {HEAD_5} 02 0000 00 0001 61 00", MALFORMED, 5),
    "a property twice": (f"10 14 {HEAD_5} 02 0000 06 21 0001 21 0001 0001 61", PROTOCOL, 5),
    "receive maximum 0": (f"10 11 {HEAD_5} 02 0000 03 21 0000 0001 61", PROTOCOL, 5),
    "data without a method": (f"10 12 {HEAD_5} 02 0000 04 16 0001 61 0001 61", PROTOCOL, 5),
    "another packet": ("c0 00", PROTOCOL, None),
}


@pytest.mark.parametrize("name", CONNECTS)
def test_a_broken_connect_is_answered_as_its_version_has_it(name: str) -> None:
    text, reason, version = CONNECTS[name]
    with pytest.raises(ProtocolError, match=r".") as caught:
        Decoder().decode(bytes.fromhex(text), None)
    assert caught.value.reason_code == reason
    assert caught.value.version == version
    assert caught.value.answered == (version is not None)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("size", ["ffffff7f", "fd887a"])
def test_a_packet_over_the_limit_is_refused_by_its_header(
    decoder: type[Reference], size: str
) -> None:
    with pytest.raises(ProtocolError, match="at most") as caught:
        decoder().decode(bytes.fromhex("30" + size), 5)
    assert caught.value.reason_code == ReasonCode.PACKET_TOO_LARGE


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_packet_within_the_limit_is_waited_for(decoder: type[Reference]) -> None:
    assert decoder().decode(bytes.fromhex("30 fc887a") + b"\0" * 100, 5) == ([], 0)


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_remaining_length_of_five_bytes_is_not_answered(decoder: type[Reference]) -> None:
    with pytest.raises(ProtocolError, match="five bytes") as caught:
        decoder().decode(bytes.fromhex("30 8080808001"), 5)
    assert not caught.value.answered


@pytest.mark.parametrize("decoder", DECODERS)
def test_too_many_user_properties_exceed_a_quota(decoder: type[Reference]) -> None:
    limits = DecodeLimits(user_properties_max=2)
    good = Publish("t", b"", properties=Properties(user_properties=[("a", "b")] * 2))
    bad = Publish("t", b"", properties=Properties(user_properties=[("a", "b")] * 3))
    assert decoder(limits).decode(encode(good, 5), 5)[0] == [good]
    with pytest.raises(ProtocolError, match="user properties") as caught:
        decoder(limits).decode(encode(bad, 5), 5)
    assert caught.value.reason_code == ReasonCode.QUOTA_EXCEEDED


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("topic", ["a" * 41, "a/b/c/d/e/f"])
def test_a_topic_over_the_limits_is_invalid(decoder: type[Reference], topic: str) -> None:
    limits = DecodeLimits(topic_bytes_max=40, topic_levels_max=5)
    with pytest.raises(ProtocolError, match="at most") as caught:
        decoder(limits).decode(encode(Publish(topic, b""), 5), 5)
    assert caught.value.reason_code == ReasonCode.TOPIC_NAME_INVALID
