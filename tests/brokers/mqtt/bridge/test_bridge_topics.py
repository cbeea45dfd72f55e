"""Names of bridged topics, and settings that a bridge refuses."""

from __future__ import annotations

import pytest

from penstock.brokers.mqtt.bridge.topics import tables_of
from penstock.brokers.mqtt.wire.packets import SubscriptionRequest
from penstock.errors import SettingsError
from penstock.settings.mqtt_bridge_section import MqttBridgeTopic

TOPIC = MqttBridgeTopic(
    connection="b",
    filter="plant/#",
    direction="both",
    qos=2,
    local_prefix="berlin/",
    remote_prefix="site/7/",
)


def test_prefixes_are_exchanged_in_both_directions() -> None:
    out, into = tables_of([TOPIC], 5, "b")
    assert out.target_name("berlin/plant/1") == "site/7/plant/1"
    assert into.target_name("site/7/plant/1") == "berlin/plant/1"
    assert out.target_name("berlin/other") is None
    assert into.target_name("berlin/plant/1") is None


def test_the_first_topic_that_matches_decides() -> None:
    rules = [
        MqttBridgeTopic(connection="b", filter="a/b", remote_prefix="x/"),
        MqttBridgeTopic(connection="b", filter="a/#", remote_prefix="y/"),
    ]
    out, into = tables_of(rules, 4, "b")
    assert out.target_name("a/b") == "x/a/b"
    assert out.target_name("a/c") == "y/a/c"
    assert into.transfers == ()


def test_subscriptions_leave_out_what_the_bridge_sends() -> None:
    out, _ = tables_of([TOPIC], 5, "b")
    assert out.requests(5) == [
        SubscriptionRequest(
            "berlin/plant/#", 2, no_local=True, retain_as_published=True, retain_handling=1
        )
    ]
    assert out.requests(4) == [SubscriptionRequest("berlin/plant/#", 2)]


@pytest.mark.parametrize(
    ("topic", "version"),
    [
        (TOPIC, 4),
        (MqttBridgeTopic(connection="b", filter="a/#/b"), 5),
        (MqttBridgeTopic(connection="b", filter=""), 5),
        (MqttBridgeTopic(connection="b", filter="$SYS/#"), 5),
        (MqttBridgeTopic(connection="b", filter="x", local_prefix="a#"), 5),
    ],
)
def test_a_topic_that_cannot_be_bridged_is_refused(topic: MqttBridgeTopic, version: int) -> None:
    with pytest.raises(SettingsError, match="mqtt_bridge"):
        tables_of([topic], version, "b")
