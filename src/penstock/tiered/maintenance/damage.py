"""Damaged and missing objects of tiers: each is counted, logged and listed once.

A reader that meets one raises an error every time; the log has one line for each object and hour,
however many readers there are.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from penstock.errors import TierDamageError
from penstock.platform.clock import Clock, SystemClock
from penstock.platform.log import get_logger
from penstock.tiered.metrics import TierMetrics

OBJECTS_MAX: Final = 1024
"""Objects that are remembered; the oldest is dropped first."""
LOG_INTERVAL_S: Final = 3600.0

_log: Final = get_logger(__name__)


class DamageReports:
    """Safe to use from many threads."""

    def __init__(self, metrics: TierMetrics | None = None, clock: Clock | None = None) -> None:
        self._metrics: Final = metrics or TierMetrics()
        self._clock: Final = clock or SystemClock()
        self._lock: Final = threading.Lock()
        self._known: OrderedDict[str, tuple[TierDamageError, float]] = OrderedDict()
        """By object: what was found, and when it was last logged."""

    def report(self, error: TierDamageError, *, by_reader: bool = True) -> None:
        """Count damage that was met, and log it unless that was done lately."""
        if by_reader:
            self._metrics.damaged_reads.inc()
        now = self._clock.monotonic()
        with self._lock:
            before = self._known.get(error.object_name)
            is_due = before is None or now - before[1] >= LOG_INTERVAL_S
            self._known[error.object_name] = (error, now if before is None or is_due else before[1])
            self._known.move_to_end(error.object_name)
            while len(self._known) > OBJECTS_MAX:
                self._known.popitem(last=False)
        if before is None:
            self._metrics.damaged_chunks.inc()
        if is_due:
            _log.error(
                "tier_chunk_damaged",
                shard=error.shard,
                first_offset=error.first_offset,
                end_offset=error.end_offset,
                object=error.object_name,
                reason=error.reason,
            )

    def clear(self, object_name: str) -> None:
        """Drop an object that is undamaged again, or that nothing refers to any more."""
        with self._lock:
            self._known.pop(object_name, None)

    def known(self) -> list[TierDamageError]:
        """Return what was found and is still referred to, as far as is known."""
        with self._lock:
            return [error for error, _ in self._known.values()]
