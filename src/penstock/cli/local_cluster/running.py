"""Runs supervised nodes until a signal: start, watch, stop within a bounded time."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

from msgspec import Struct

from penstock.cli.local_cluster.display import LineDisplay
from penstock.cli.local_cluster.supervised_directory import SupervisedDirectory
from penstock.cli.local_cluster.supervisor import LocalCluster
from penstock.errors import DeadlineError
from penstock.platform.clock import SystemClock


class Patience(Struct, frozen=True):
    """How long the nodes may take."""

    start_s: float
    stop_s: float
    each_s: float = 0.0
    """0: all nodes stop at the same time; else one after the other, each within this time."""


class _Signals:
    """The first SIGINT or SIGTERM asks to stop, the second one to hurry."""

    def __init__(self) -> None:
        self.stopping: Final = threading.Event()
        self.hurry: Final = threading.Event()

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        (self.hurry if self.stopping.is_set() else self.stopping).set()


def run_until_signal(
    directory: SupervisedDirectory,
    display: LineDisplay,
    patience: Patience,
    *,
    restarts: bool,
    on_ready: Callable[[LocalCluster], None],
    on_stopping: Callable[[], None] = lambda: None,
) -> None:
    """Start the nodes, call `on_ready` when all of them serve, and stop them after a signal.

    Raises `SetupError` when a node ends before the others are ready, and `DeadlineError` when nodes
    were not ready, or had to be killed."""
    signals = _Signals()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signals.handle)
    cluster = LocalCluster(directory, display, signals.stopping, SystemClock(), restarts=restarts)
    try:
        with display.starting():
            cluster.start()
            is_ready = cluster.wait_ready(patience.start_s)
        if is_ready:
            on_ready(cluster)
            cluster.watch()
        on_stopping()
        display.event("stopping all nodes")
    finally:
        killed = cluster.stop(patience.stop_s, signals.hurry, each_s=patience.each_s)
    if killed:
        listed = ", ".join(str(node) for node in sorted(killed))
        raise DeadlineError(
            f"node {listed} did not stop within {patience.stop_s:g} s and was killed; its log in "
            f"{directory.logs} says what it waited for"
        )
    display.event("stopped")
