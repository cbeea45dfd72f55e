"""RocketMQ's configuration files: its own dialect, read and written byte for byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codec.golden_store import GoldenStore

from penstock.engine.segment.rocketmq.config_files import (
    ConsumerOffsets,
    DataVersion,
    TopicConfig,
    Topics,
    read_consumer_offsets,
    read_topics,
    write_consumer_offsets,
    write_topics,
)
from penstock.engine.segment.rocketmq.fastjson import Json, parse_json, write_json
from penstock.errors import CorruptionError
from penstock.record import QueueKind


def test_topics_are_read_and_written_byte_for_byte(golden: GoldenStore) -> None:
    data = (golden.root / "config" / "topics.json").read_bytes()
    topics = read_topics(data, "topics.json")
    assert write_topics(topics) == data
    kinds = {name: (config.queues, config.kind) for name, config in topics.configs.items()}
    assert kinds["TopicA"] == (2, QueueKind.SIMPLE)
    assert kinds["TopicBCQ"] == (1, QueueKind.BATCH)
    assert topics.version == DataVersion(3, 0, 1_794_772_169_977)


def test_consumer_offsets_are_read_and_written_byte_for_byte(golden: GoldenStore) -> None:
    data = (golden.root / "config" / "consumerOffset.json").read_bytes()
    offsets = read_consumer_offsets(data, "consumerOffset.json")
    assert offsets.table == {
        ("TopicA", "groupX"): {0: 17, 1: 5},
        ("orders%RETRY_v1", "группа"): {0: 3},
    }
    assert write_consumer_offsets(offsets) == data


def test_tiered_metadata_is_read_and_written_byte_for_byte(golden: GoldenStore) -> None:
    root = parse_json(golden.tiered_metadata, "tieredStoreMetadata.json")
    assert isinstance(root, dict)
    segments = root["commitLogFileSegmentTable"]
    assert isinstance(segments, dict)
    queue = segments["broker-a/TopicA/0"]
    assert isinstance(queue, dict)
    assert sorted(map(str, queue)) == ["0", "19776"]
    assert all(isinstance(base, int) for base in queue)
    assert write_json(root).encode() == golden.tiered_metadata


def test_a_topic_of_ours_is_written_as_rocketmq_reads_it() -> None:
    config = TopicConfig.create("orders-01", 4, QueueKind.BATCH, [("penstock.name", "orders")])
    written = json.loads(write_topics(Topics({"orders-01": config})))
    assert written["topicConfigTable"]["orders-01"] == {
        "attributes": {"queue.type": "BatchCQ", "penstock.name": "orders"},
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "orders-01",
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }
    assert config.kind is QueueKind.BATCH
    assert TopicConfig.create("t", 1, QueueKind.SIMPLE).attributes == ()


def test_fields_that_penstock_does_not_know_are_kept() -> None:
    data = b'{"topicConfigTable":{"t":{"perm":2,"liteTopicExpiration":-1,"future":{"a":[1]}}}}'
    written = write_topics(read_topics(data, "x"))
    fields = json.loads(written)["topicConfigTable"]["t"]
    assert (fields["perm"], fields["liteTopicExpiration"]) == (2, -1)
    assert fields["future"] == {"a": [1]}


@given(
    table=st.dictionaries(
        st.tuples(st.text(max_size=5).filter(lambda topic: "@" not in topic), st.text(max_size=5)),
        st.dictionaries(st.integers(0, 99), st.integers(-1, 1 << 62), max_size=3),
        max_size=4,
    )
)
def test_any_consumer_offsets_come_back(table: dict[tuple[str, str], dict[int, int]]) -> None:
    offsets = ConsumerOffsets(table, DataVersion(1, 2, 3))
    assert read_consumer_offsets(write_consumer_offsets(offsets), "x") == offsets


json_values: st.SearchStrategy[Json] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), 1 << 63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.integers(-(1 << 62), 1 << 62), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(value=json_values)
def test_any_value_comes_back_in_both_dialects(value: Json) -> None:
    assert parse_json(write_json(value).encode(), "x") == value
    quoted = json.dumps(value)
    assert parse_json(quoted.encode(), "x") == json.loads(quoted)


@given(text=st.text(alphabet='{}[]:,"0123456789-.eE\\tfn ul', max_size=30))
def test_any_text_is_a_value_or_an_error_that_says_where(text: str) -> None:
    found: list[CorruptionError] = []
    try:
        parse_json(text.encode(), "some.json")
    except CorruptionError as error:
        found.append(error)
    assert all(error.path == "some.json" for error in found)
    assert all(0 <= error.position <= len(text) for error in found)


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("", 0, "value expected"),
        ("{", 1, "key"),
        ('{"a":1', 6, "','"),
        ('{"a" 1}', 5, "':'"),
        ("{a:1}", 1, "key"),
        ("[1 2]", 3, "','"),
        ('"abc', 0, "closing quote"),
        ('"\\x"', 0, "escape"),
        ("{} x", 3, "after the value"),
        ("[" * 100, 65, "deeper"),
        ('{"имя":x}', 10, "value expected"),
    ],
)
def test_an_error_names_the_file_the_byte_and_the_reason(
    text: str, position: int, reason: str
) -> None:
    with pytest.raises(CorruptionError, match=reason) as caught:
        parse_json(text.encode(), "config/topics.json")
    assert (caught.value.path, caught.value.position) == ("config/topics.json", position)


def test_text_that_is_not_utf8_is_an_error() -> None:
    with pytest.raises(CorruptionError) as caught:
        parse_json(b'{"\xff":1}', "x")
    assert caught.value.position == 2


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"topicConfigTable":[]}',
        '{"topicConfigTable":{"t":1}}',
        '{"topicConfigTable":{"t":{"readQueueNums":"many"}}}',
        '{"topicConfigTable":{"t":{"readQueueNums":true}}}',
        '{"topicConfigTable":{"t":{"attributes":3}}}',
        '{"dataVersion":{"counter":[]}}',
    ],
)
def test_topics_that_make_no_sense_are_an_error(text: str) -> None:
    with pytest.raises(CorruptionError, match=r"topics\.json"):
        read_topics(text.encode(), "topics.json")


@pytest.mark.parametrize("text", ['{"offsetTable":{"t":{}}}', '{"offsetTable":{"t@g":{"x":1}}}'])
def test_consumer_offsets_that_make_no_sense_are_an_error(text: str) -> None:
    with pytest.raises(CorruptionError):
        read_consumer_offsets(text.encode(), "x")


def test_an_empty_configuration_is_no_error() -> None:
    assert read_topics(b"{}", "x") == Topics({})
    assert read_topics(b'{"topicConfigTable":null}', "x") == Topics({})
    assert read_consumer_offsets(b"{}", "x") == ConsumerOffsets({})
