"""Waiting for records, as long as a program likes: also for ever.

A backend is asked for a slice of that at a time. No clock has room for every number of seconds, a
server lets nobody wait for long, and who waits for ever hears of a store that was closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.api.backend import Backend, TopicPartition
from penstock.platform.clock import Clock
from penstock.record import Offset

SLICE_S: Final = 10.0


def wait_for_records(
    backend: Backend,
    namespace: str,
    positions: Mapping[TopicPartition, Offset],
    seconds: float,
    clock: Clock,
) -> bool:
    """Wait until a record lies at or behind one of the positions; return whether one does."""
    deadline = clock.monotonic() + seconds
    while True:
        left = max(0.0, deadline - clock.monotonic())
        if backend.wait_for_records(namespace, positions, min(left, SLICE_S)):
            return True
        if clock.monotonic() >= deadline:
            return False
