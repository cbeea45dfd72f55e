"""Delayed topics, Sparkplug certificates, slow subscribers."""

from __future__ import annotations

import pytest

from penstock.brokers.mqtt.extras.delayed_topics import DELAY_MAX_S, DelayedTopic, parse_delayed
from penstock.brokers.mqtt.extras.slow_subscriptions import INTERVAL_MS, SlowSubscriptions
from penstock.brokers.mqtt.extras.sparkplug import certificate_topic

NOW_MS = 1_800_000_000_000


def test_a_delay_counts_from_now() -> None:
    assert parse_delayed("$delayed/15/a/b", NOW_MS) == DelayedTopic("a/b", NOW_MS + 15_000)
    assert parse_delayed("$delayed/0/a", NOW_MS).due_ms == NOW_MS
    assert parse_delayed(f"$delayed/{DELAY_MAX_S}/a", NOW_MS).due_ms > NOW_MS


def test_a_larger_number_is_a_time() -> None:
    assert parse_delayed("$delayed/1800000100/a", NOW_MS).due_ms == 1_800_000_100_000
    assert parse_delayed("$delayed/1700000000/a", NOW_MS).due_ms == NOW_MS


@pytest.mark.parametrize(
    "name",
    [
        "$delayed/15",
        "$delayed/15/",
        "$delayed/x/a",
        "$delayed/-1/a",
        "$delayed/1.5/a",
        "$delayed/99999999999/a",
        "$delayed/9999999999999999/a",
        "$delayed/1/$SYS/a",
        "$delayed/1/$delayed/1/a",
    ],
)
def test_a_name_that_cannot_be_delayed_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="delay"):
        parse_delayed(name, NOW_MS)


@pytest.mark.parametrize(
    ("topic", "certificate"),
    [
        ("spBv1.0/G1/NBIRTH/E1", "$sparkplug/certificates/spBv1.0/G1/NBIRTH/E1"),
        ("spBv1.0/G1/DBIRTH/E1/D1", "$sparkplug/certificates/spBv1.0/G1/DBIRTH/E1/D1"),
        ("spBv1.0/G1/NDATA/E1", None),
        ("spBv1.0/G1/NBIRTH/E1/D1", None),
        ("spBv1.0/G1/DBIRTH/E1", None),
        ("spBv1.0/G1", None),
        ("other/G1/NBIRTH/E1", None),
    ],
)
def test_birth_messages_make_certificates(topic: str, certificate: str | None) -> None:
    assert certificate_topic(topic) == certificate


def test_the_slowest_subscribers_are_kept() -> None:
    slow = SlowSubscriptions(2)
    for number, latency_ms in enumerate([5, 50, 10, 40]):
        slow.record(f"c{number}", "t", latency_ms, 0)
    assert [entry.latency_ms for entry in slow.slowest(0)] == [50, 40]
    assert slow.threshold_ms == 40


def test_the_highest_latency_of_a_subscriber_counts_for_an_interval() -> None:
    slow = SlowSubscriptions(2)
    slow.record("c", "t", 50, 0)
    slow.record("c", "t", 5, 1)
    assert [entry.latency_ms for entry in slow.slowest(1)] == [50]
    assert slow.slowest(INTERVAL_MS + 1) == []


def test_statistics_can_be_turned_off() -> None:
    slow = SlowSubscriptions(0)
    slow.record("c", "t", 50, 0)
    assert slow.slowest(0) == []
