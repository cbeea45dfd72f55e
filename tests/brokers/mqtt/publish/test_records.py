"""Publishes as records, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.brokers.mqtt.publish.records import (
    FOREIGN_QOS,
    Receipt,
    RecordCodec,
    parse_receipt,
    receipt_of,
)
from penstock.brokers.mqtt.wire.packets import Publish
from penstock.brokers.mqtt.wire.properties import Properties
from penstock.record import Offset, Record, StoredRecord

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
NAMES = st.one_of(
    TEXT, st.sampled_from(["mqtt.qos", "mqtt.receipt", "mqtt.user.x", "content-type", "mqtt."])
)
PROPERTIES = st.builds(
    Properties,
    payload_format_indicator=st.sampled_from([None, 1]),
    content_type=st.none() | TEXT,
    response_topic=st.none() | TEXT,
    correlation_data=st.none() | st.binary(max_size=10),
    user_properties=st.none() | st.lists(st.tuples(NAMES, TEXT), min_size=1, max_size=4),
)
PUBLISHES = st.builds(
    Publish,
    topic=TEXT.filter(bool),
    payload=st.binary(max_size=20),
    qos=st.sampled_from([0, 1, 2]),
    retain=st.booleans(),
    properties=st.none() | PROPERTIES,
)


def stored(record: Record, offset: int = 7) -> StoredRecord:
    return StoredRecord(
        Offset(offset),
        record.value,
        record.key,
        record.tags,
        record.headers,
        1,
        record.expires_at_ms,
        1,
        0,
    )


@given(PUBLISHES, st.integers(0, 1 << 62), st.none() | st.integers(1, 65_535))
def test_a_publish_comes_back_as_subscribers_get_it(
    publish: Publish, publisher: int, packet_id: int | None
) -> None:
    codec = RecordCodec()
    receipt = None if packet_id is None else Receipt(publisher, packet_id)
    record = codec.encode(
        publish, publish.topic.encode(), expires_at_ms=9, publisher=publisher, receipt=receipt
    )
    live = codec.message(publish, expires_at_ms=9, publisher=publisher)
    read = codec.decode(stored(record), publish.topic)
    for name in ("topic", "payload", "qos", "retain", "properties", "expires_at_ms", "publisher"):
        assert getattr(read, name) == getattr(live, name), name
    assert receipt_of(stored(record)) == receipt


def test_a_plain_publish_has_no_headers() -> None:
    record = RecordCodec().encode(Publish("a/b", b"x"), b"a/b")
    assert record == Record(b"x", b"a/b", ("a/b",))


@pytest.mark.parametrize(
    "record",
    [
        Record(b"x", b"a"),
        Record(b"x", b"a", ("b",)),
        Record(b"x", None, ("a",)),
        Record(b"x", b"a", ("a", "a")),
    ],
)
def test_a_record_of_another_writer_is_acknowledged(record: Record) -> None:
    message = RecordCodec().decode(stored(record), "topic")
    assert (message.topic, message.payload, message.qos) == ("topic", b"x", FOREIGN_QOS)


def test_headers_of_another_writer_become_user_properties() -> None:
    headers = (("h", b"1"), ("mqtt.qos", b"2"), ("n", None), ("content-type", b"t"), ("z", b"\0"))
    message = RecordCodec().decode(stored(Record(None, b"k", (), headers)), "topic")
    assert message.payload == b""
    assert message.qos == FOREIGN_QOS
    assert message.properties == Properties(
        content_type="t",
        user_properties=[("h", "1"), ("mqtt.qos", "2"), ("n", ""), ("z", "\ufffd")],
    )


@pytest.mark.parametrize("value", [None, b"", b"7", b":", b"a:1", b"1:", b"-1:2"])
def test_what_is_no_receipt_is_none(value: bytes | None) -> None:
    assert parse_receipt(value) is None
