"""Messages to bytes and back, in every version that is served, against kio's own codec."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from tests.brokers.kafka.running import WireClient, running

from penstock.brokers.kafka.metadata.topic_ids import uuid_of
from penstock.brokers.kafka.metadata.topic_names import is_legal
from penstock.brokers.kafka.wire.cursor import ITEMS_MAX, Cursor, MalformedRequestError
from penstock.brokers.kafka.wire.flexible_versions import FIRST_FLEXIBLE
from penstock.brokers.kafka.wire.schema import read_message, request_layout, response_layout
from penstock.meta.identifiers import make_topic_id


def test_the_table_of_flexible_versions_is_kios(tmp_path: Path) -> None:
    with running(tmp_path) as one, WireClient(one.server.port) as client:
        served = client.ask(18, 3).items_of("api_keys")
    assert len(served) >= 9
    for api in served:
        key = api.number("api_key")
        low, high = api.number("min_version"), api.number("max_version")
        first = FIRST_FLEXIBLE[key]
        # Kafka's definitions name one version from which on it holds: its neighbours tell all.
        for version in {low, high} | ({first - 1, first} & set(range(low, high + 1))):
            is_flexible = load_request_schema(key, version).__flexible__
            assert is_flexible == (version >= first), (key, version)


@pytest.mark.parametrize("version", range(14))
def test_a_request_reads_as_kio_wrote_it(version: int) -> None:
    request = load_request_schema(3, version)
    module = __import__(request.__module__, fromlist=["MetadataRequestTopic"])
    topic_class = module.MetadataRequestTopic
    names = set(topic_class.__dataclass_fields__)
    topic = topic_class(**{"name": "orders", **({"topic_id": None} if "topic_id" in names else {})})
    values: dict[str, object] = {
        "topics": (topic,),
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }
    known = set(request.__dataclass_fields__)
    out = io.BytesIO()
    entity = request(**{name: value for name, value in values.items() if name in known})
    entity_writer(request)(out, entity)
    found = read_message(request_layout(3, version), Cursor(out.getvalue()))
    assert [one.text("name") for one in found.items_of("topics")] == ["orders"]
    if version >= 4:
        assert not found.flag("allow_auto_topic_creation", True)


@pytest.mark.parametrize("version", range(14))
def test_an_answer_reads_back_as_it_was_written(version: int) -> None:
    layout = response_layout(3, version)
    response = {
        "brokers": [{"node_id": 1, "host": "h", "port": 9092}],
        "cluster_id": "c",
        "topics": [
            {
                "error_code": ErrorCode.none,
                "name": "orders",
                "partitions": [{"partition_index": 0, "leader_id": 1, "isr_nodes": (1,)}],
            }
        ],
    }
    out = bytearray()
    layout.write(out, response)
    found = layout.read(Cursor(out))
    assert found.items_of("brokers")[0].text("host") == "h"
    partition = found.items_of("topics")[0].items_of("partitions")[0]
    assert (partition.number("leader_id"), partition.numbers("isr_nodes")) == (1, [1])


def test_unknown_tags_and_bytes_behind_a_message_are_passed_over() -> None:
    layout = request_layout(3, 12)
    out = bytearray()
    layout.write(out, {"topics": None})
    assert out[-1] == 0
    tagged = out[:-1] + b"\x02" + b"\x05\x02ab" + b"\x63\x00" + b"trailing"
    found = read_message(layout, Cursor(tagged))
    assert found.optional_items("topics") is None


def test_an_array_that_cannot_be_there_is_refused_before_anything_is_allocated() -> None:
    layout = request_layout(3, 12)
    with pytest.raises(MalformedRequestError, match="elements"):
        read_message(layout, Cursor(b"\xff\xff\xff\xff\x07" + b"\0" * 100))
    with pytest.raises(MalformedRequestError, match="more than"):
        read_message(
            request_layout(3, 0), Cursor((ITEMS_MAX + 1).to_bytes(4, "big") + b"\0" * (1 << 20))
        )


@settings(max_examples=300, deadline=None)
@given(
    data=st.binary(max_size=200),
    key=st.sampled_from([0, 1, 2, 3, 8, 9, 11, 13, 14, 18, 19, 22, 32, 44]),
)
def test_any_bytes_are_a_request_or_refused(data: bytes, key: int) -> None:
    layout = request_layout(key, FIRST_FLEXIBLE[key])
    with contextlib.suppress(MalformedRequestError):
        read_message(layout, Cursor(data))


def test_topics_have_uuids_of_their_own() -> None:
    first = uuid_of(make_topic_id("a", 5, b"0123456789"))
    second = uuid_of(make_topic_id("a", 5, b"0123456780"))
    assert first != second
    assert uuid_of("somebody-elses") == uuid_of("somebody-elses")


@pytest.mark.parametrize(
    ("name", "legal"),
    [
        ("a.b_c-1", True),
        ("", False),
        ("..", False),
        ("a b", False),
        ("x" * 250, False),
        ("ü", False),
    ],
)
def test_names_that_kafka_accepts(name: str, legal: bool) -> None:
    assert is_legal(name) == legal
