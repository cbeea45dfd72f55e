"""MQTT topics as names of stored topics, and back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.brokers.mqtt.topics.names import (
    NAME_SIZE_MAX,
    decode_name,
    encode_name,
    fit_name,
    is_shortened,
)

LEGAL = re.compile(r"[A-Za-z0-9._-]*")
TOPICS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#"))


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("orders", "orders"),
        ("plant/berlin", "plant.berlin"),
        ("a b/c_d.e", "a_20b.c_5fd_2ee"),
        ("ü", "_c3_bc"),
        ("\1", "_01"),
    ],
)
def test_a_topic_becomes_a_name_that_kafka_accepts(topic: str, name: str) -> None:
    assert encode_name(topic) == name
    assert decode_name(name) == topic


@given(TOPICS)
def test_every_topic_comes_back(topic: str) -> None:
    name = encode_name(topic)
    assert LEGAL.fullmatch(name)
    assert decode_name(name) == topic


@given(st.text("ab_./0-2fF", max_size=12))
def test_a_name_decodes_only_to_the_topic_that_has_it(name: str) -> None:
    topic = decode_name(name)
    assert topic is None or encode_name(topic) == name


@given(st.text("abc.", min_size=NAME_SIZE_MAX - 5, max_size=NAME_SIZE_MAX + 200))
def test_long_names_are_shortened_and_known_as_such(name: str) -> None:
    fitted = fit_name(name)
    assert len(fitted) <= NAME_SIZE_MAX
    assert is_shortened(fitted) is (len(name) > NAME_SIZE_MAX)
    assert decode_name(fitted) is None or fitted == name
