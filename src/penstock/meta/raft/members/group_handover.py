"""Gives up the lead of Raft groups before a node stops, so that they need no election."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from penstock.meta.raft.group.status import RaftStatus
from penstock.meta.raft.members.membership import MemberGroup, ready_voters
from penstock.platform.clock import Clock

_LOOK_S: Final = 0.02


def give_up_groups(
    node_id: int,
    groups: Sequence[MemberGroup],
    statuses: Callable[[], Sequence[RaftStatus]],
    clock: Clock,
    seconds: float,
) -> list[str]:
    """Have another voter lead each group that this node leads; return those that it still leads
    after `seconds`. A group without another voter stays."""
    until = clock.monotonic() + seconds
    never = threading.Event()
    while True:
        led = [
            status
            for status in statuses()
            if status.role == "leader" and set(status.configuration.voters) != {node_id}
        ]
        if not led or clock.monotonic() >= until:
            return [status.name for status in led]
        for number, status in enumerate(led):
            others = sorted(ready_voters(status) - {node_id})
            for group in groups:
                if others and group.name.name == status.name:
                    group.transfer(others[number % len(others)])
        clock.wait(never, _LOOK_S)
