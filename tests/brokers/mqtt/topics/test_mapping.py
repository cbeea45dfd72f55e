"""Rules, and the mapping of a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.quick_directory import quick_directory

from penstock.adapter.topics.partitioning import key_hash
from penstock.brokers.mqtt.topics.mapping import TopicMapping
from penstock.brokers.mqtt.topics.rules import Rule, compile_rules
from penstock.errors import SettingsError
from penstock.node.node import Node
from penstock.settings import MqttMapRule


def stored(topic: str, *rules: MqttMapRule) -> str:
    for rule in compile_rules(rules):
        name = rule.stored_topic(topic, topic.split("/"))
        if name is not None:
            return name
    raise AssertionError("no rule matches")


def test_the_first_rule_that_matches_decides() -> None:
    rules = (
        MqttMapRule(filter="plant/+/telemetry/#", topic="plant.{1}.telemetry"),
        MqttMapRule(filter="plant/#", topic="plants"),
        MqttMapRule(filter="each/+", topic="t-{topic}"),
    )
    assert stored("plant/a b/telemetry/x/y", *rules) == "plant.a_20b.telemetry"
    assert stored("plant/a", *rules) == "plants"
    assert stored("each/one", *rules) == "t-each.one"
    assert stored("other", *rules) == "mqtt"


@pytest.mark.parametrize("topic", ["/", "//", ""])
def test_names_that_kafka_refuses_are_replaced(topic: str) -> None:
    name = stored(topic, MqttMapRule(filter="#", topic="{topic}"))
    assert name not in {"", ".", ".."}


@pytest.mark.parametrize(
    ("topic_filter", "topic"),
    [
        ("a/#/b", "x"),
        ("a+", "x"),
        ("$SYS/#", "x"),
        ("a/+", "x.{2}"),
        ("a", "x y"),
        ("a", "{one}"),
        ("a", "__mqtt_x"),
        ("a", "."),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused(topic_filter: str, topic: str) -> None:
    with pytest.raises(SettingsError, match=r"mqtt\.map"):
        Rule(MqttMapRule(filter=topic_filter, topic=topic))


@pytest.mark.parametrize(
    ("rule", "name", "wanted", "is_reached"),
    [
        (("plant/+/t/#", "p.{1}"), "p.a", "plant/a/t/x", True),
        (("plant/+/t/#", "p.{1}"), "p.a", "plant/b/t/x", False),
        (("plant/+/t/#", "p.{1}"), "p.a", "plant/+/t/x", True),
        (("plant/+/t/#", "p.{1}"), "p.a", "other/#", False),
        (("plant/+/t/#", "p.{1}"), "q.a", "#", False),
        (("each/#", "{topic}"), "each.a.b", "each/+/b", True),
        (("each/#", "{topic}"), "each.a.b", "each/+/c", False),
        (("a/#", "same"), "same", "a/b", True),
        (("a/#", "same"), "same", "b", False),
    ],
)
def test_a_rule_knows_which_filters_reach_its_topics(
    rule: tuple[str, str], name: str, wanted: str, is_reached: bool
) -> None:
    compiled = Rule(MqttMapRule(filter=rule[0], topic=rule[1]))
    assert compiled.can_reach(name, wanted.split("/")) is is_reached


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with quick_directory() as directory, Node(Path(directory) / "data") as running:
        running.admin.create_topic_full("mqtt", 8, {"queue": "simple", "partitioner": "key"})
        running.admin.create_topic_full("orders", 3, {"queue": "batch"})
        running.admin.create_topic_full("unmapped", 1, {})
        yield running


def test_a_topic_is_mapped_to_the_partition_of_its_key(node: Node) -> None:
    mapping = TopicMapping(node.driver_manager, ())
    for number in range(50):
        topic = f"a/{number}"
        mapped = mapping.resolve(topic)
        assert mapped.partition == key_hash(topic.encode()) % 8
        assert mapped.shard_name.endswith(f"_{mapped.partition}")


def test_a_topic_whose_stored_topic_is_missing_has_no_route(node: Node) -> None:
    rule = MqttMapRule(filter="new/#", topic="new")
    mapping = TopicMapping(node.driver_manager, (rule,))
    assert mapping.resolve("new/a").route is None
    node.admin.create_topic_full("new", 2, {})
    assert mapping.resolve("new/a").route is not None
    node.admin.delete_topic("new")
    assert mapping.resolve("new/a").route is None


def test_only_topics_of_rules_are_reached(node: Node) -> None:
    rule = MqttMapRule(filter="orders", topic="orders")
    mapping = TopicMapping(node.driver_manager, (rule,))

    def names(topic_filter: str) -> set[str]:
        return {topic.name for topic in mapping.stored_topics_for(topic_filter)}

    assert names("#") == {"orders", "mqtt"}
    assert "orders" in names("orders")
    assert names("other/+") == {"mqtt"}


@pytest.mark.parametrize(
    ("key", "name"),
    [(b"orders", "orders"), (None, "orders"), (b"o-17", "orders"), (b"\xff", "orders")],
)
def test_records_of_other_writers_have_the_name_of_the_rule(
    node: Node, key: bytes | None, name: str
) -> None:
    rule = MqttMapRule(filter="orders", topic="orders")
    mapping = TopicMapping(node.driver_manager, (rule,))
    assert mapping.name_of(key, "orders") == name


@pytest.mark.parametrize(
    ("key", "name"),
    [(b"a/b", "a/b"), (b"orders", "mqtt"), (b"a/+", "mqtt"), (b"", "mqtt"), (None, "mqtt")],
)
def test_a_key_is_the_topic_if_a_publish_to_it_is_stored_there(
    node: Node, key: bytes | None, name: str
) -> None:
    rule = MqttMapRule(filter="orders", topic="orders")
    mapping = TopicMapping(node.driver_manager, (rule,))
    assert mapping.name_of(key, "mqtt") == name
