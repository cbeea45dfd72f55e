"""Exclusive subscriptions."""

from __future__ import annotations

from penstock.brokers.mqtt.extras.exclusive import ExclusiveFilters
from penstock.brokers.mqtt.protocol.hooks import Client, FilterDecision

ONE = Client("one", None, 5, "10.0.0.1", 1, "tcp")
OTHER = Client("other", None, 5, "10.0.0.2", 1, "tcp")


def test_a_second_client_is_refused_until_the_first_unsubscribes() -> None:
    filters = ExclusiveFilters()
    assert filters.subscribe(ONE, "$exclusive/a/+") == FilterDecision("a/+")
    assert filters.subscribe(ONE, "$exclusive/a/+").reason_code == 0
    assert filters.subscribe(OTHER, "$exclusive/a/+").reason_code == 0x97
    assert filters.unsubscribe(OTHER, "$exclusive/a/+") == "a/+"
    assert filters.subscribe(OTHER, "$exclusive/a/+").reason_code == 0x97
    filters.unsubscribe(ONE, "$exclusive/a/+")
    assert filters.subscribe(OTHER, "$exclusive/a/+").reason_code == 0


def test_the_end_of_a_connection_releases_all_its_filters() -> None:
    filters = ExclusiveFilters()
    filters.subscribe(ONE, "$exclusive/a")
    filters.subscribe(ONE, "$exclusive/b")
    filters.ended(ONE)
    assert filters.subscribe(OTHER, "$exclusive/a").reason_code == 0
    assert filters.subscribe(OTHER, "$exclusive/b").reason_code == 0
    filters.ended(ONE)


def test_it_can_be_turned_off() -> None:
    filters = ExclusiveFilters(is_enabled=False)
    assert filters.subscribe(ONE, "$exclusive/a").reason_code == 0x8F


def test_an_exclusive_filter_cannot_have_another_prefix() -> None:
    assert ExclusiveFilters().subscribe(ONE, "$exclusive/$share/g/a").reason_code == 0x8F
