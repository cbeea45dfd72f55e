"""Topic rewriting, automatic subscriptions and the names of clients in templates."""

from __future__ import annotations

from typing import Literal

import pytest

from penstock.brokers.mqtt.extras.auto_subscribe import ConfiguredSubscriptions
from penstock.brokers.mqtt.extras.rewrite import TopicRewriter
from penstock.brokers.mqtt.protocol.hooks import Client
from penstock.brokers.mqtt.wire.packets import SubscriptionRequest
from penstock.errors import SettingsError
from penstock.settings.mqtt_features_section import MqttAutoSubscription, MqttRewriteRule


def client(client_id: str = "c1", username: str | None = "alice") -> Client:
    return Client(client_id, username, 5, "10.0.0.1", 4711, "tcp")


def rule(
    topic_filter: str,
    pattern: str,
    topic: str,
    action: Literal["publish", "subscribe", "all"] = "all",
) -> MqttRewriteRule:
    return MqttRewriteRule(filter=topic_filter, pattern=pattern, topic=topic, action=action)


def test_groups_of_the_pattern_are_filled_in() -> None:
    rewriter = TopicRewriter([rule("old/+/#", "old/([^/]+)/(.*)", "plants/$1/x/$2")])
    assert rewriter.publish(client(), "old/7/a/b") == "plants/7/x/a/b"
    assert rewriter.publish(client(), "new/7/a") == "new/7/a"


def test_the_first_rule_that_matches_applies() -> None:
    rewriter = TopicRewriter([rule("a/#", "a/x", "one"), rule("a/#", "a/(.*)", "two/$1")])
    assert rewriter.publish(client(), "a/x") == "one"
    assert rewriter.publish(client(), "a/y") == "two/y"


def test_a_rule_applies_to_its_action_only() -> None:
    rewriter = TopicRewriter([rule("a", "a", "b", "subscribe")])
    assert rewriter.publish(client(), "a") == "a"
    assert rewriter.subscribe(client(), "a") == "b"


def test_the_prefix_of_a_subscription_stays() -> None:
    rewriter = TopicRewriter([rule("old/#", "old/(.*)", "new/$1")])
    assert rewriter.subscribe(client(), "$share/g/old/+/x") == "$share/g/new/+/x"
    assert rewriter.subscribe(client(), "$replay/1h/old/a") == "$replay/1h/new/a"


def test_templates_name_the_client() -> None:
    rewriter = TopicRewriter([rule("me/#", "me/(.*)", "${username}/${clientid}/$1")])
    assert rewriter.publish(client(), "me/x") == "alice/c1/x"
    assert rewriter.publish(client("c2"), "me/x") == "alice/c2/x"


@pytest.mark.parametrize("name", ["a/b", "+", "#", ""])
def test_a_client_name_that_changes_the_levels_is_not_used(name: str) -> None:
    rewriter = TopicRewriter([rule("me/#", "me/(.*)", "${clientid}/$1")])
    assert rewriter.publish(client(name), "me/x") == "me/x"


def test_a_variable_in_the_topic_of_a_client_is_not_replaced() -> None:
    rewriter = TopicRewriter([rule("a/#", "a/(.*)", "b/$1")])
    assert rewriter.publish(client(), "a/${username}") == "a/${username}"


def test_a_result_that_is_not_a_valid_name_is_not_used() -> None:
    rewriter = TopicRewriter([rule("a/#", "a/?(.*)", "$1")])
    assert rewriter.publish(client(), "a/") == "a/"


@pytest.mark.parametrize(
    "wrong", [rule("a/#/b", "a", "b"), rule("a", "(", "b"), rule("a", "a", "$1")]
)
def test_a_wrong_rule_is_refused_at_the_start(wrong: MqttRewriteRule) -> None:
    with pytest.raises(SettingsError, match="rewrite"):
        TopicRewriter([wrong])


def test_automatic_subscriptions_name_the_client_or_are_left_out() -> None:
    rules = [
        MqttAutoSubscription(filter="inbox/${clientid}/#", qos=1, no_local=True),
        MqttAutoSubscription(filter="users/${username}"),
    ]
    configured = ConfiguredSubscriptions(rules)
    assert list(configured.of(client("c1", None))) == [
        SubscriptionRequest("inbox/c1/#", 1, no_local=True)
    ]
    assert len(configured.of(client())) == 2


def test_a_wrong_automatic_subscription_is_refused_at_the_start() -> None:
    with pytest.raises(SettingsError, match="auto_subscribe"):
        ConfiguredSubscriptions([MqttAutoSubscription(filter="a/#/b")])
