"""Waits, without a limit, until the groups of a node have leaders, and says for which nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from penstock.errors import DeadlineError
from penstock.meta.raft.status import RaftStatus
from penstock.meta.state.model import Member
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)

LOOK_SECONDS: Final = 0.1
PATIENCE_SECONDS: Final = 2.0
"""An election takes about so long; only then is the wait worth a word."""
REPEAT_SECONDS: Final = 60.0


class StartEvent(threading.Event):
    """Is set to end a start that waits for other nodes; meanwhile it tells what for."""

    waits_for = ""


class Patience:
    """Logs what a start waits for: once per change, and again every minute."""

    def __init__(self, clock: Clock, stopping: threading.Event) -> None:
        self._clock = clock
        self._stopping = stopping
        self._began = clock.monotonic()
        self._told = ""
        self._told_at = 0.0

    def waits(self, reason: str) -> None:
        tell(self._stopping, reason)
        now = self._clock.monotonic()
        is_due = reason != self._told or now - self._told_at >= REPEAT_SECONDS
        if is_due and now - self._began >= PATIENCE_SECONDS:
            self._told, self._told_at = reason, now
            _log.warning("start_waits", reason=reason, seconds=round(now - self._began))

    def ends(self) -> None:
        tell(self._stopping, "")
        if self._told:
            _log.info("start_goes_on", seconds=round(self._clock.monotonic() - self._began))


def tell(stopping: threading.Event, reason: str) -> None:
    """Note what a start waits for, if its event can tell it on."""
    if isinstance(stopping, StartEvent):
        stopping.waits_for = reason


def await_leaders(
    status: Callable[[], Sequence[RaftStatus]],
    absent: Callable[[], Sequence[Member]],
    *,
    clock: Clock,
    stopping: threading.Event,
) -> None:
    """Return when all groups have a leader that this node knows, and this node has their state.
    `absent` are the members that it has no connection to. Raises `DeadlineError` when it is to
    stop."""
    patience = Patience(clock, stopping)
    while True:
        without = [one.name for one in status() if not one.leader or not one.configuration.voters]
        if not without:
            patience.ends()
            return
        away = ", ".join(f"{one.node_id} ({one.address})" for one in absent())
        groups = ", ".join(without)
        if away:
            patience.waits(f"no leader of {groups}: waiting for nodes {away}")
        else:
            patience.waits(f"no leader of {groups}: the members are connected and elect one")
        if clock.wait(stopping, LOOK_SECONDS):
            raise DeadlineError(f"stopped while there was no leader of {groups}")
