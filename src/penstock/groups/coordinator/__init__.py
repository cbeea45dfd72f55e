"""The coordinator of a node's groups: the requests that wait, their deadlines, and what is stored.

`coordinator` applies requests to the state machines, `pending_requests` holds the answers that wait
for other members, `timers` runs the deadlines, and `persistence` stores members in the meta service
so that they survive a restart or a move of the coordinator.
"""

from penstock.groups.coordinator.build import build_groups
from penstock.groups.coordinator.coordinator import GroupCoordinator

__all__ = ["GroupCoordinator", "build_groups"]
