"""A publish as a record, so that every reader of the topic understands it, and back.

    key, tag                the MQTT topic
    value                   the payload
    expires_at_ms           from the message expiry interval
    mqtt.qos                `1` or `2`; QoS 0 has no such header
    mqtt.retain             `1`
    mqtt.payload-format     `1`: the payload is UTF-8
    content-type            as in MQTT 5
    mqtt.response-topic     as in MQTT 5
    mqtt.correlation-data   the bytes of the client
    NAME                    a user property; one whose name is one of these, or begins with `mqtt.`,
                            becomes `mqtt.user.NAME`
    mqtt.publisher          number of the publishing session, if it asked for No Local
    mqtt.receipt            SESSION:PACKET_ID of a QoS 2 publish: it is stored once

A record whose tag is not its key was not published over MQTT. Subscribers get it with QoS 1, and
its headers as user properties.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.brokers.mqtt.deliver.message import Message
from penstock.brokers.mqtt.wire.packets import Publish
from penstock.brokers.mqtt.wire.properties import Properties
from penstock.record import Header, Record, StoredRecord

QOS: Final = "mqtt.qos"
RETAIN: Final = "mqtt.retain"
PAYLOAD_FORMAT: Final = "mqtt.payload-format"
CONTENT_TYPE: Final = "content-type"
RESPONSE_TOPIC: Final = "mqtt.response-topic"
CORRELATION_DATA: Final = "mqtt.correlation-data"
PUBLISHER: Final = "mqtt.publisher"
RECEIPT: Final = "mqtt.receipt"
USER_PREFIX: Final = "mqtt.user."
_RESERVED_PREFIX: Final = "mqtt."

FOREIGN_QOS: Final = 1
"""Of records that were not published over MQTT: a subscriber that acknowledges gets them safely."""

_PLAIN: Final[dict[tuple[int, bool], tuple[Header, ...]]] = {
    (0, False): (),
    (1, False): ((QOS, b"1"),),
    (2, False): ((QOS, b"2"),),
    (0, True): ((RETAIN, b"1"),),
    (1, True): ((QOS, b"1"), (RETAIN, b"1")),
    (2, True): ((QOS, b"2"), (RETAIN, b"1")),
}
"""The headers of a publish without properties."""


class Receipt(NamedTuple):
    """What makes a QoS 2 publish recognisable: its session and its packet id."""

    session: int
    packet_id: int

    def encode(self) -> bytes:
        return b"%d:%d" % self


def parse_receipt(value: bytes | None) -> Receipt | None:
    """Return the receipt of a record; None: the header is none of this front end's."""
    session, _, packet_id = (value or b"").partition(b":")
    if not session.isdigit() or not packet_id.isdigit():
        return None
    return Receipt(int(session), int(packet_id))


class RecordCodec:
    """Both directions; the moment of a publish is passed in."""

    def encode(
        self,
        publish: Publish,
        key: bytes,
        *,
        expires_at_ms: int | None = None,
        publisher: int = 0,
        receipt: Receipt | None = None,
    ) -> Record:
        """Return the record of a publish whose topic, as bytes, is `key`."""
        headers = _PLAIN[publish.qos, publish.retain]
        properties = publish.properties
        if properties is not None:
            headers += tuple(_headers(properties))
        if publisher:
            headers = (*headers, (PUBLISHER, b"%d" % publisher))
        if receipt is not None:
            headers = (*headers, (RECEIPT, receipt.encode()))
        return Record(publish.payload, key, (publish.topic,), headers, None, expires_at_ms)

    def message(
        self, publish: Publish, *, expires_at_ms: int | None = None, publisher: int = 0
    ) -> Message:
        """Return a publish as subscribers get it."""
        properties = publish.properties
        if properties is not None:
            properties = delivered_properties(properties)
        return Message(
            publish.topic,
            publish.payload,
            publish.qos,
            publish.retain,
            properties,
            expires_at_ms,
            publisher,
        )

    def decode(self, record: StoredRecord, topic: str) -> Message:
        """Return a stored record as subscribers get it; `topic` is its MQTT topic."""
        is_ours = is_published(record)
        message = Message(
            topic,
            record.value or b"",
            0 if is_ours else FOREIGN_QOS,
            expires_at_ms=record.expires_at_ms,
            offset=record.offset,
        )
        if record.headers:
            (_read_headers if is_ours else _read_foreign)(message, record.headers)
        return message


def is_published(record: StoredRecord | Record) -> bool:
    """Say whether a record was published over MQTT."""
    tags = record.tags
    return len(tags) == 1 and record.key == tags[0].encode("utf-8", "surrogateescape")


def receipt_of(record: StoredRecord) -> Receipt | None:
    """Return the receipt of a record; None: it has none."""
    if record.headers and is_published(record):
        for name, value in record.headers:
            if name == RECEIPT:
                return parse_receipt(value)
    return None


def expiry_of(publish: Publish, now_ms: int) -> int | None:
    """Return when a message expires; None: never."""
    properties = publish.properties
    if properties is None or properties.message_expiry_interval is None:
        return None
    return now_ms + properties.message_expiry_interval * 1000


def delivered_properties(given: Properties) -> Properties | None:
    """Return the properties that subscribers get, of those of a publish."""
    kept = Properties(
        payload_format_indicator=given.payload_format_indicator,
        content_type=given.content_type,
        response_topic=given.response_topic,
        correlation_data=given.correlation_data,
        user_properties=given.user_properties,
    )
    return None if kept.is_empty() else kept


def _headers(properties: Properties) -> list[Header]:
    headers: list[Header] = []
    if properties.payload_format_indicator:
        headers.append((PAYLOAD_FORMAT, b"1"))
    if properties.content_type is not None:
        headers.append((CONTENT_TYPE, properties.content_type.encode()))
    if properties.response_topic is not None:
        headers.append((RESPONSE_TOPIC, properties.response_topic.encode()))
    if properties.correlation_data is not None:
        headers.append((CORRELATION_DATA, bytes(properties.correlation_data)))
    for name, value in properties.user_properties or ():
        is_reserved = name == CONTENT_TYPE or name.startswith(_RESERVED_PREFIX)
        headers.append((USER_PREFIX + name if is_reserved else name, value.encode()))
    return headers


def _read_headers(message: Message, headers: tuple[Header, ...]) -> None:
    """Set what the headers of a publish say."""
    properties = Properties()
    user: list[tuple[str, str]] = []
    for name, value in headers:
        if not _read_known(message, properties, name, value or b""):
            user.append((name.removeprefix(USER_PREFIX), (value or b"").decode("utf-8", "replace")))
    properties.user_properties = user or None
    if not properties.is_empty():
        message.properties = properties


def _read_known(message: Message, properties: Properties, name: str, value: bytes) -> bool:
    """Read a header of this front end; return False for that of a user property."""
    match name:
        case "mqtt.qos":
            message.qos = 2 if value == b"2" else 1
        case "mqtt.retain":
            message.retain = True
        case "mqtt.publisher":
            message.publisher = int(value) if value.isdigit() else 0
        case "mqtt.receipt":
            pass
        case "mqtt.payload-format":
            properties.payload_format_indicator = 1
        case "content-type":
            properties.content_type = value.decode("utf-8", "replace")
        case "mqtt.response-topic":
            properties.response_topic = value.decode("utf-8", "replace")
        case "mqtt.correlation-data":
            properties.correlation_data = value
        case _:
            return False
    return True


def _read_foreign(message: Message, headers: tuple[Header, ...]) -> None:
    """Pass on the headers of another writer, as text that MQTT allows."""
    properties = Properties()
    user: list[tuple[str, str]] = []
    for name, value in headers:
        text = _clean((value or b"").decode("utf-8", "replace"))
        if name == CONTENT_TYPE and properties.content_type is None:
            properties.content_type = text
        else:
            user.append((_clean(name), text))
    properties.user_properties = user or None
    message.properties = properties


def _clean(text: str) -> str:
    """Replace what MQTT strings must not have: the null character and lone surrogates."""
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
