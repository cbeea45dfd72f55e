"""Names of shared subscriptions, and which member a message goes to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from penstock.brokers.mqtt.share_groups.names import ShareName, parse
from penstock.brokers.mqtt.share_groups.strategies import strategy_of


@dataclass
class Routed:
    topic: str = "t"
    publisher: int = 0


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("$share/g/a/b", ShareName("g", "a/b")),
        ("$share/g/#", ShareName("g", "#")),
        ("$share/g//a", ShareName("g", "/a")),
        ("$queue/a/+", ShareName("", "a/+")),
        ("$queue//", ShareName("", "/")),
        ("$share/g/", None),
        ("$share/g", None),
        ("$share//a", None),
        ("$share/+/a", None),
        ("$share/g#/a", None),
        ("$queue/", None),
        ("a/b", None),
        ("$shared/g/a", None),
    ],
)
def test_names_are_a_group_and_a_filter(text: str, name: ShareName | None) -> None:
    assert parse(text) == name


@pytest.mark.parametrize("name", ["round_robin", "local"])
def test_members_get_messages_in_turn(name: str) -> None:
    strategy = strategy_of(name)  # type: ignore[arg-type] # one of its literals
    assert [strategy.index(Routed(), 3) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert strategy.index(Routed(), 1) == 0


def test_the_sticky_member_stays_until_another_one_was_used() -> None:
    strategy = strategy_of("sticky")
    assert [strategy.index(Routed(), 3) for _ in range(3)] == [0, 0, 0]
    strategy.used(2)
    assert strategy.index(Routed(), 3) == 2
    assert strategy.index(Routed(), 2) == 0


def test_hashes_send_equal_keys_to_one_member_and_all_keys_to_all_members() -> None:
    by_topic, by_client = strategy_of("hash_topic"), strategy_of("hash_client")
    for number in range(50):
        routed = Routed(f"t/{number}", number)
        assert by_topic.index(routed, 5) == by_topic.index(Routed(f"t/{number}", 7), 5)
        assert by_client.index(routed, 5) == by_client.index(Routed("other", number), 5)
    topics = {by_topic.index(Routed(f"t/{number}"), 5) for number in range(200)}
    clients = {by_client.index(Routed("t", number), 5) for number in range(200)}
    assert topics == clients == set(range(5))


def test_random_members_are_all_used() -> None:
    strategy = strategy_of("random")
    counts = Counter(strategy.index(Routed(), 4) for _ in range(2_000))
    assert set(counts) == {0, 1, 2, 3}
