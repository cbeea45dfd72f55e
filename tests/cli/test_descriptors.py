"""`penstock serve` takes the descriptors that it may have, and keeps some for files."""

from __future__ import annotations

import resource

import pytest

from penstock.cli.descriptors import CONNECTIONS_MIN, RESERVE_MAX, fit_connections, raise_limit
from penstock.settings import SERVE, merge_settings


def test_the_soft_limit_becomes_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 9_000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    assert raise_limit() == 9_000
    assert given == [(9_000, 9_000)]


def test_a_system_that_refuses_leaves_the_limit_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_kind: int, _limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_limit() == 256


@pytest.mark.parametrize(
    ("limit", "connections"),
    [
        (None, SERVE.kafka.connections_max),
        (1 << 20, SERVE.kafka.connections_max),
        (20_000, (20_000 - RESERVE_MAX) // 2),
        (1_024, 256),
        (10, CONNECTIONS_MIN),
    ],
)
def test_connections_leave_descriptors_for_files(limit: int | None, connections: int) -> None:
    fitted = fit_connections(SERVE, limit)
    assert fitted.kafka.connections_max == fitted.mqtt.connections_max == connections


def test_a_front_end_that_is_not_served_leaves_its_descriptors_to_the_other_one() -> None:
    settings = merge_settings(SERVE, {"mqtt": {"enabled": False}})
    assert fit_connections(settings, 20_000).kafka.connections_max == 20_000 - RESERVE_MAX
