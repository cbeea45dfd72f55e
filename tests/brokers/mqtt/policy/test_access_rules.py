"""Access rules: Mosquitto's syntax, and the decisions."""

from __future__ import annotations

import pytest

from penstock.brokers.mqtt.policy.access_rules import AccessRules, Principal, parse_access_rules
from penstock.errors import SettingsError

FILE = """
# rules
topic read public/#

user alice
topic plant/+/state
topic read logs/#
topic deny plant/secret/#
topic write in box/a

pattern readwrite dev/%c/#
pattern read home/%u

client sensor-7
topic write special

address 10.0.0.0/8
topic read inside

superuser root
"""


@pytest.fixture
def rules() -> AccessRules:
    return parse_access_rules(FILE, "acl")


def test_without_rules_everything_is_allowed() -> None:
    client = parse_access_rules("# nothing\n", "acl").for_client(Principal("c"))
    assert client.allows("publish", "a")
    assert client.allows("subscribe", "#")


def test_with_one_rule_everything_else_is_denied(rules: AccessRules) -> None:
    client = rules.for_client(Principal("c", "mallory"))
    assert not client.allows("publish", "a")
    assert not client.allows("subscribe", "public/news")


def test_rules_before_the_first_section_are_for_clients_without_a_name(rules: AccessRules) -> None:
    client = rules.for_client(Principal("c"))
    assert client.allows("subscribe", "public/news")
    assert client.allows("subscribe", "public/#")
    assert not client.allows("publish", "public/news")
    assert not client.allows("subscribe", "#")


def test_a_user_has_the_rules_of_its_section(rules: AccessRules) -> None:
    client = rules.for_client(Principal("c", "alice"))
    assert client.allows("publish", "plant/1/state")
    assert client.allows("subscribe", "plant/1/state")
    assert client.allows("subscribe", "logs/#")
    assert not client.allows("publish", "logs/x")
    assert client.allows("publish", "in box/a")


def test_a_denial_outranks_a_permission(rules: AccessRules) -> None:
    client = rules.for_client(Principal("c", "alice"))
    assert not client.allows("publish", "plant/secret/state")
    assert not client.allows("subscribe", "plant/+/state")
    assert client.allows("subscribe", "plant/1/state")


def test_a_filter_can_be_denied_without_its_messages() -> None:
    rules = parse_access_rules("topic #\ntopic denyfilter #\ntopic denyfilter a/b\n", "acl")
    client = rules.for_client(Principal("c"))
    assert not client.allows("subscribe", "#")
    assert not client.allows("subscribe", "$share/g/a/b")
    assert client.allows("subscribe", "a/#")
    assert client.allows("publish", "a/b")


def test_patterns_name_the_client_and_the_user(rules: AccessRules) -> None:
    client = rules.for_client(Principal("c1", "alice"))
    assert client.allows("publish", "dev/c1/x")
    assert not client.allows("publish", "dev/c2/x")
    assert client.allows("subscribe", "home/alice")
    assert not rules.for_client(Principal("c1")).allows("subscribe", "home/alice")


@pytest.mark.parametrize("name", ["+", "#", "c1/x"])
def test_a_name_with_a_wildcard_does_not_widen_a_pattern(rules: AccessRules, name: str) -> None:
    client = rules.for_client(Principal(name, name))
    assert not client.allows("publish", "dev/c1/x")
    assert not client.allows("subscribe", "home/+")


def test_clients_addresses_and_superusers_have_sections(rules: AccessRules) -> None:
    assert rules.for_client(Principal("sensor-7", "bob")).allows("publish", "special")
    assert rules.for_client(Principal("x", "bob", "10.1.2.3")).allows("subscribe", "inside")
    assert rules.superusers == {"root"}
    assert not rules.for_client(Principal("x", "bob", "11.1.2.3")).allows("subscribe", "inside")
    assert rules.for_client(Principal("x", "root", is_superuser=True)).allows("publish", "anything")


@pytest.mark.parametrize("prefix", ["$share/g/", "$queue/", "$exclusive/", "$replay/earliest/"])
def test_a_prefix_does_not_bypass_the_rules(rules: AccessRules, prefix: str) -> None:
    client = rules.for_client(Principal("c"))
    assert client.allows("subscribe", f"{prefix}public/x")
    assert not client.allows("subscribe", f"{prefix}plant/1/state")
    assert not client.allows("subscribe", f"{prefix}#")


def test_a_delayed_message_needs_the_permission_for_its_topic(rules: AccessRules) -> None:
    client = rules.for_client(Principal("c", "alice"))
    assert client.allows("publish", "$delayed/5/plant/1/state")
    assert not client.allows("publish", "$delayed/5/plant/secret/state")
    assert not client.allows("publish", "$delayed/5/other")


@pytest.mark.parametrize(
    "line",
    ["topc read a", "topic", "user", "topic read a/#/b", "topic a+/b", "address 10.0.0.0/99"],
)
def test_a_wrong_line_is_named(line: str) -> None:
    with pytest.raises(SettingsError, match="acl:2"):
        parse_access_rules(f"# rules\n{line}\n", "acl")
