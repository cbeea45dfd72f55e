"""Builds what coordinates clients: groups of consumers."""

from __future__ import annotations

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.groups.coordinator import GroupCoordinator
from penstock.brokers.kafka.groups.model import Limits
from penstock.brokers.kafka.groups.registration import register_groups
from penstock.brokers.kafka.registry import ApiRegistry


def register(registry: ApiRegistry, broker: KafkaBroker) -> None:
    settings = broker.settings
    limits = Limits(
        session_timeout_min_ms=settings.group_session_timeout_min_ms,
        session_timeout_max_ms=settings.group_session_timeout_max_ms,
        initial_delay_ms=settings.group_initial_delay_ms,
        members_max=settings.group_members_max,
    )
    groups = GroupCoordinator(broker.clock, limits)
    register_groups(registry, broker, groups, lambda _group: ())
