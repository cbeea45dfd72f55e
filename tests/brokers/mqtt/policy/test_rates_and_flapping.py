"""Rate limits and flapping detection, with times given by the test."""

from __future__ import annotations

from penstock.brokers.mqtt.policy.flapping import FlappingDetector, FlappingLimits
from penstock.brokers.mqtt.policy.rates import ConnectionRates, PublishRate, RateLimits


def test_connections_of_one_address_are_limited_apart_from_others() -> None:
    rates = ConnectionRates(RateLimits(connections_per_address=2), 0.0)
    assert [rates.admits("a", 0.0) for _ in range(3)] == [True, True, False]
    assert rates.admits("b", 0.0)
    assert rates.admits("a", 0.5)


def test_connections_of_all_addresses_are_limited_together() -> None:
    rates = ConnectionRates(RateLimits(connections=1), 0.0)
    assert rates.admits("a", 0.0)
    assert not rates.admits("b", 0.0)
    assert rates.admits("b", 1.0)


def test_without_limits_every_connection_is_admitted() -> None:
    rates = ConnectionRates(RateLimits(), 0.0)
    assert all(rates.admits("a", 0.0) for _ in range(1000))


def test_publishes_above_the_rate_pause_the_connection() -> None:
    rate = PublishRate(RateLimits(publishes=10), 0.0)
    assert rate.delay_s(10, 0, 0.0) == 0.0
    assert rate.delay_s(5, 0, 0.0) == 0.5
    assert rate.delay_s(5, 0, 1.0) == 0.0


def test_the_longer_pause_of_count_and_bytes_applies() -> None:
    rate = PublishRate(RateLimits(publishes=10, publish_bytes=100), 0.0)
    assert rate.delay_s(1, 300, 0.0) == 2.0


def test_a_client_that_disconnects_too_often_is_banned() -> None:
    detector = FlappingDetector(FlappingLimits(disconnects=3, window_ms=1000, ban_ms=5000))
    assert detector.disconnected("c", 0) is None
    assert detector.disconnected("c", 500) is None
    assert detector.disconnected("other", 900) is None
    assert detector.disconnected("c", 1000) == 6000
    assert detector.disconnected("c", 1001) is None


def test_disconnects_outside_of_the_window_are_not_counted() -> None:
    detector = FlappingDetector(FlappingLimits(disconnects=2, window_ms=1000))
    assert detector.disconnected("c", 0) is None
    assert detector.disconnected("c", 2000) is None


def test_detection_can_be_turned_off() -> None:
    detector = FlappingDetector(FlappingLimits(disconnects=0))
    assert all(detector.disconnected("c", 0) is None for _ in range(100))
