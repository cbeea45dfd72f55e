"""Errors of partitions that cannot be read, with retry times.

The consumer continues with its other partitions. Each failure doubles the delay before the next
attempt; the delay also grows with the duration of the failed call, so that a node that does not
answer does not slow down the other partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from penstock.api.backend import TopicPartition
from penstock.errors import (
    CorruptionError,
    DiskFailedError,
    NotSupportedError,
    RetryableError,
    ShardLostError,
    StoreError,
    UnknownShardError,
)
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger

PAUSE_S_MIN: Final = 0.5
PAUSE_S_MAX: Final = 30.0

OF_PARTITION: Final = (
    RetryableError,
    CorruptionError,
    DiskFailedError,
    NotSupportedError,
    ShardLostError,
    UnknownShardError,
)
"""Errors that concern a single partition."""

OnError = Callable[[TopicPartition, StoreError], None]
_log: Final = get_logger(__name__)


class PartitionErrors:
    def __init__(self, clock: Clock, on_error: OnError | None) -> None:
        self._clock: Final = clock
        self._on_error: Final = on_error
        self._errors: Final[dict[TopicPartition, StoreError]] = {}
        self.get: Final = self._errors.get
        self._pauses: dict[TopicPartition, tuple[float, float]] = {}
        """When to try again, and the pause until then."""

    def all(self) -> dict[TopicPartition, StoreError]:
        return dict(self._errors)

    def __contains__(self, place: TopicPartition) -> bool:
        return place in self._errors

    def __bool__(self) -> bool:
        return bool(self._errors)

    def is_due(self, place: TopicPartition) -> bool:
        pause = self._pauses.get(place)
        return pause is None or self._clock.monotonic() >= pause[0]

    def add(self, place: TopicPartition, error: StoreError, began: float) -> None:
        """Record the failure of a read that began at `began`."""
        known = self._errors.get(place)
        self._errors[place] = error
        now = self._clock.monotonic()
        last = self._pauses.get(place, (0.0, PAUSE_S_MIN / 2))[1]
        pause = min(PAUSE_S_MAX, max(2 * last, 4 * (now - began)))
        self._pauses[place] = (now + pause, pause)
        if known is not None and str(known) == str(error):
            return
        topic, partition = place
        _log.warning("partition_not_read", topic=topic, partition=partition, reason=str(error))
        if self._on_error is not None:
            self._on_error(place, error)

    def clear(self, place: TopicPartition) -> None:
        if place in self._errors:
            del self._errors[place]
            self._pauses.pop(place, None)

    def retry_now(self) -> None:
        """Retry all partitions at the next read."""
        self._pauses = {place: (0.0, pause) for place, (_, pause) in self._pauses.items()}

    def check_any_read(self, partitions: Collection[TopicPartition]) -> None:
        """Raise when none of the partitions can be read."""
        if partitions and all(place in self._errors for place in partitions):
            self.check()

    def check(self) -> None:
        """Raise the first error, if there is one."""
        for error in self._errors.values():
            raise error

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the errors of partitions that are no longer read."""
        for place in [place for place in self._errors if place not in partitions]:
            self.clear(place)
