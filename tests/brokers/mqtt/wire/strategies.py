"""Random packets of every type and version."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from penstock.brokers.mqtt.wire.packets import (
    MQTT_5,
    PINGREQ,
    PINGRESP,
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from penstock.brokers.mqtt.wire.properties import FORMS, WILL, Form, Properties
from penstock.brokers.mqtt.wire.validation import UNWANTED

VERSIONS = st.sampled_from([3, 4, 5])

_NAME_CHARACTERS = st.characters(codec="utf-8").filter(
    lambda character: not UNWANTED.match(character) and character not in "+#"
)
TOPICS = st.text(_NAME_CHARACTERS, min_size=1, max_size=30).filter(lambda name: name != "")
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
_LEVEL = st.one_of(st.just("+"), st.sampled_from(["a", "b", "ß", ""]))
FILTERS = (
    st.lists(_LEVEL, min_size=1, max_size=5)
    .map("/".join)
    .flatmap(lambda text: st.sampled_from([text, f"{text}/#"]))
    .filter(bool)
)
PACKET_IDS = st.integers(1, 65_535)
PAYLOADS = st.binary(max_size=200)


def _value(form: Form, least: int, most: int, name: str) -> st.SearchStrategy[object]:
    match form:
        case Form.BYTE:
            return st.integers(least, min(most, 255))
        case Form.UINT16:
            return st.integers(max(least, name == "topic_alias"), 65_535)
        case Form.UINT32:
            return st.integers(least, 0xFFFFFFFF)
        case Form.VARINT:
            return st.lists(st.integers(1, 268_435_455), min_size=1, max_size=3)
        case Form.TEXT:
            return TOPICS if name == "response_topic" else TEXTS
        case Form.BINARY:
            return st.binary(max_size=20)
    return st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3)


@st.composite
def properties(draw: st.DrawFn, packet: int, without: tuple[str, ...] = ()) -> Properties | None:
    found = Properties()
    for form in FORMS:
        if packet in form.packets and form.name not in without and draw(st.booleans()):
            value = draw(_value(form.form, form.least, form.most, form.name))
            setattr(found, form.name, value)
    if found.authentication_method is None:
        found.authentication_data = None
    return None if found.is_empty() else found


def _properties(
    version: int, packet: int, without: tuple[str, ...] = ()
) -> st.SearchStrategy[Properties | None]:
    return properties(packet, without) if version == MQTT_5 else st.none()


def publishes(version: int, *, from_client: bool = True) -> st.SearchStrategy[Publish]:
    without = ("subscription_identifiers",) if from_client else ()
    made = st.builds(
        Publish,
        TOPICS,
        PAYLOADS,
        st.integers(0, 2),
        st.booleans(),
        st.booleans(),
        PACKET_IDS,
        _properties(version, PacketType.PUBLISH, without),
    )
    return made.map(lambda publish: publish if publish.qos else _of_qos_0(publish))


def _of_qos_0(publish: Publish) -> Publish:
    return replace(publish, packet_id=0, dup=False)


def acks(version: int) -> st.SearchStrategy[Ack]:
    def of_kind(kind: PacketType) -> st.SearchStrategy[Ack]:
        is_receipt = kind in {PacketType.PUBACK, PacketType.PUBREC}
        codes = [0, 0x10, 0x80, 0x97] if is_receipt else [0, 0x92]
        if version != MQTT_5:
            codes = [0]
        return st.builds(
            Ack, st.just(kind), PACKET_IDS, st.sampled_from(codes), _properties(version, kind)
        )

    kinds = [PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP]
    return st.sampled_from(kinds).flatmap(of_kind)


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    will = None
    if draw(st.booleans()):
        will = Will(
            draw(TOPICS),
            draw(PAYLOADS),
            draw(st.integers(0, 2)),
            draw(st.booleans()),
            draw(_properties(version, WILL)),
        )
    username = draw(st.none() | TOPICS)
    password = draw(st.none() | st.binary(max_size=10))
    if version != MQTT_5 and username is None:
        password = None
    return Connect(
        version,
        draw(TOPICS),
        draw(st.booleans()),
        draw(st.integers(0, 65_535)),
        username,
        password,
        will,
        draw(_properties(version, PacketType.CONNECT)),
    )


def requests(version: int) -> st.SearchStrategy[Subscribe | Unsubscribe]:
    flag = st.booleans() if version == MQTT_5 else st.just(False)
    handling = st.integers(0, 2) if version == MQTT_5 else st.just(0)
    request = st.builds(SubscriptionRequest, FILTERS, st.integers(0, 2), flag, flag, handling)
    subscribe = st.builds(
        Subscribe,
        PACKET_IDS,
        st.lists(request, min_size=1, max_size=4),
        _properties(version, PacketType.SUBSCRIBE).map(_with_one_identifier),
    )
    unsubscribe = st.builds(
        Unsubscribe,
        PACKET_IDS,
        st.lists(FILTERS, min_size=1, max_size=4),
        _properties(version, PacketType.UNSUBSCRIBE),
    )
    return st.one_of(subscribe, unsubscribe)


def _with_one_identifier(found: Properties | None) -> Properties | None:
    if found is not None and found.subscription_identifiers is not None:
        found.subscription_identifiers = found.subscription_identifiers[:1]
    return found


def from_clients(version: int) -> st.SearchStrategy[Packet]:
    """Everything that a client sends after CONNECT."""
    choices: list[st.SearchStrategy[Packet]] = [
        publishes(version),
        acks(version),
        requests(version),
        st.just(PINGREQ),
    ]
    if version == MQTT_5:
        reasons = st.sampled_from([0, 4, 0x82])
        choices.append(st.builds(Disconnect, reasons, properties(PacketType.DISCONNECT)))
        steps = st.sampled_from([0, 0x18, 0x19])
        choices.append(st.builds(Auth, steps, properties(PacketType.AUTH)))
    else:
        choices.append(st.just(Disconnect()))
    return st.one_of(choices)


def from_servers(version: int) -> st.SearchStrategy[Packet]:
    """Answers of a server."""
    is_5 = version == MQTT_5
    connack_codes = [0, 0x84, 0x85, 0x88, 0x86, 0x87]
    codes = st.lists(st.sampled_from([0, 1, 2, 0x80]), max_size=4)
    none: st.SearchStrategy[list[int]] = st.just([])
    return st.one_of(
        st.builds(
            Connack,
            st.booleans(),
            st.sampled_from(connack_codes),
            _properties(version, PacketType.CONNACK),
        ),
        st.builds(Suback, PACKET_IDS, codes, _properties(version, PacketType.SUBACK)),
        st.builds(
            Unsuback,
            PACKET_IDS,
            codes if is_5 else none,
            _properties(version, PacketType.UNSUBACK),
        ),
        publishes(version, from_client=False),
        st.just(PINGRESP),
    )
