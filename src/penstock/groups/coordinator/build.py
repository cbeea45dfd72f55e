"""Builds the coordinator of a node."""

from __future__ import annotations

from contextlib import ExitStack

from penstock.groups.coordinator.coordinator import GroupCoordinator
from penstock.groups.model import Limits
from penstock.meta import GroupCoordinators, ListenerAnnouncer, MetaClient
from penstock.platform.clock import Clock
from penstock.settings import KafkaSettings


def build_groups(
    settings: KafkaSettings,
    clock: Clock,
    meta: MetaClient,
    coordinators: GroupCoordinators,
    stack: ExitStack,
) -> GroupCoordinator:
    """Return the coordinator, with the groups that the node had when it stopped; `stack` closes
    it. In a cluster `coordinators` says which groups it has."""
    limits = Limits(
        session_timeout_min_ms=settings.group_session_timeout_min_ms,
        session_timeout_max_ms=settings.group_session_timeout_max_ms,
        initial_delay_ms=settings.group_initial_delay_ms,
        members_max=settings.group_members_max,
    )
    groups = GroupCoordinator(clock, limits, states=meta)
    stack.callback(groups.close)
    if isinstance(meta, ListenerAnnouncer):
        groups.load_when_asked()
        groups.is_here = coordinators.is_here
        groups.node_of = lambda group: (
            coordinators.coordinator_of(group) if coordinators.is_known else None
        )
        coordinators.on_change(groups.nodes_changed)
    else:
        groups.load_all()
    return groups
