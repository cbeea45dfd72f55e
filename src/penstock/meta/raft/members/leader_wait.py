"""What a node waits for before it serves: leaders of its groups, and its own vote.

The wait for leaders has no limit; it reports the nodes that are missing. A node that has just
joined then waits until it votes in all groups, for `VOTE_SECONDS` at most. A node that does not
serve yet gets no shard: so where a topic with three replicas can be created, three nodes vote, and
one of them may end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from penstock.errors import DeadlineError
from penstock.meta.raft.group.status import RaftStatus
from penstock.meta.state.model import Member
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)

POLL_SECONDS: Final = 0.1
QUIET_SECONDS: Final = 2.0
"""About the duration of an election; a longer wait is logged."""
REPEAT_SECONDS: Final = 60.0
VOTE_SECONDS: Final = 30.0
"""A node that is not given a vote for so long serves without it."""


class StartEvent(threading.Event):
    """Set to end a start that waits for other nodes; `waits_for` has the reason of the wait."""

    waits_for = ""


class StartWait:
    """Logs the reason for which a start waits: once per change, and again every minute."""

    def __init__(self, clock: Clock, stopping: threading.Event) -> None:
        self._clock = clock
        self._stopping = stopping
        self._began = clock.monotonic()
        self._logged = ""
        self._logged_at = 0.0

    def report(self, reason: str) -> None:
        _set_reason(self._stopping, reason)
        now = self._clock.monotonic()
        is_due = reason != self._logged or now - self._logged_at >= REPEAT_SECONDS
        if is_due and now - self._began >= QUIET_SECONDS:
            self._logged, self._logged_at = reason, now
            _log.warning("start_waits", reason=reason, seconds=round(now - self._began))

    def finish(self) -> None:
        _set_reason(self._stopping, "")
        if self._logged:
            _log.info("start_goes_on", seconds=round(self._clock.monotonic() - self._began))


def _set_reason(stopping: threading.Event, reason: str) -> None:
    """Store the reason for which a start waits, if its event can hold it."""
    if isinstance(stopping, StartEvent):
        stopping.waits_for = reason


def await_leaders(
    status: Callable[[], Sequence[RaftStatus]],
    absent: Callable[[], Sequence[Member]],
    *,
    clock: Clock,
    stopping: threading.Event,
) -> None:
    """Return when this node knows a leader of each group and has the state of each. `absent`
    returns the members without a connection. Raises `DeadlineError` when the node is to stop."""
    start_wait = StartWait(clock, stopping)
    while True:
        without = [
            item.name for item in status() if not item.leader or not item.configuration.voters
        ]
        if not without:
            start_wait.finish()
            return
        away = ", ".join(f"{item.node_id} ({item.address})" for item in absent())
        groups = ", ".join(without)
        if away:
            start_wait.report(f"no leader of {groups}: waiting for nodes {away}")
        else:
            start_wait.report(f"no leader of {groups}: the members are connected and elect one")
        if clock.wait(stopping, POLL_SECONDS):
            raise DeadlineError(f"stopped while {groups} had no leader")


def await_votes(
    node_id: int,
    status: Callable[[], Sequence[RaftStatus]],
    *,
    clock: Clock,
    stopping: threading.Event,
) -> None:
    """Return when this node votes in all groups that it has joined, or after `VOTE_SECONDS`. Raises
    `DeadlineError` when the node is to stop."""
    start_wait = StartWait(clock, stopping)
    began = clock.monotonic()
    while True:
        without = [item.name for item in status() if _is_learning(item, node_id)]
        if not without:
            break
        groups = ", ".join(without)
        reason = f"this node has joined {groups} and has no vote there yet"
        if clock.monotonic() - began >= VOTE_SECONDS:
            _log.warning("serves_without_vote", groups=groups)
            break
        start_wait.report(reason)
        if clock.wait(stopping, POLL_SECONDS):
            raise DeadlineError(f"stopped while {reason}")
    start_wait.finish()


def _is_learning(status: RaftStatus, node_id: int) -> bool:
    """Return whether a node is on its way to a vote. Between two configurations, the majority of
    the one before counts, too."""
    configuration = status.configuration
    return node_id not in configuration.voters or bool(configuration.voters_outgoing)
