"""Waits for records without an upper limit, in slices of `SLICE_S`.

A server limits the length of a single wait, clocks cannot represent every number of seconds, and a
slice notices a closed store.
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
    """Wait until there is a record at or after one of the positions; return whether there is."""
    deadline = clock.monotonic() + seconds
    while True:
        left = max(0.0, deadline - clock.monotonic())
        if backend.wait_for_records(positions, min(left, SLICE_S), namespace=namespace):
            return True
        if clock.monotonic() >= deadline:
            return False
