"""`PartitionFetcher`: reads the partitions of a consumer in turn, and waits for new records."""

from __future__ import annotations

from threading import Event
from typing import Final

from penstock.adapter import Message
from penstock.api.backend import Backend, TopicPartition
from penstock.api.consumer.partition_errors import OF_PARTITION, PartitionErrors
from penstock.api.consumer.partition_positions import PartitionPositions
from penstock.api.long_poll import SLICE_S
from penstock.errors import RetryableError
from penstock.platform.clock import Clock
from penstock.record import StoredRecord

RETRY_S: Final = 0.5
"""Pause before a partition without a position, or with an error, is tried again."""


class PartitionFetcher:
    """Reads do not advance positions; a partition that cannot be read is added to the errors."""

    def __init__(
        self,
        backend: Backend,
        namespace: str,
        places: PartitionPositions,
        errors: PartitionErrors,
        clock: Clock,
    ) -> None:
        self._backend: Final = backend
        self._namespace: Final = namespace
        self._places: Final = places
        self._positions: Final = places.positions
        self._errors: Final = errors
        self._clock: Final = clock
        self._turn = 0

    def wait(self, seconds: float) -> bool:
        """Wait for records for a while; return whether there are any."""
        if self._errors or self._places.unplaced:
            seconds = min(seconds, RETRY_S)
        readable = {
            place: offset for place, offset in self._positions.items() if place not in self._errors
        }
        if not readable:
            self._clock.wait(Event(), min(seconds, RETRY_S))
            return False
        try:
            slice_s = min(seconds, SLICE_S)
            return self._backend.wait_for_records(readable, slice_s, namespace=self._namespace)
        except RetryableError:
            # The next read says which partition it is.
            self._clock.wait(Event(), min(seconds, RETRY_S))
            return False

    def read(self, max_records: int) -> list[Message]:
        """Return records from the positions on; raise if no partition can be read."""
        messages: list[Message] = []
        parts = [place for place in self._positions if self._errors.is_due(place)]
        if parts:
            # Each call begins with another partition, so that a busy one does not starve the
            # others.
            self._turn = (self._turn + 1) % len(parts)
            parts = [*parts[self._turn :], *parts[: self._turn]]
        for place in parts:
            if len(messages) >= max_records:
                break
            page = self._read_partition(place, max_records - len(messages))
            messages += [Message(*place, record) for record in page]
        if not messages:
            self._errors.check_any_read(self._places.all_mine())
        return messages

    def _read_partition(self, place: TopicPartition, max_records: int) -> list[StoredRecord]:
        """Return records of a partition; none if it cannot be read (see `errors`)."""
        began = self._clock.monotonic()
        try:
            page = self._backend.read_by_offset(
                *place, self._positions[place], max_records=max_records, namespace=self._namespace
            )
        except OF_PARTITION as error:
            self._errors.add(place, error, began)
            return []
        self._errors.clear(place)
        return page

    def skip_holes(self) -> None:
        """Skip deleted records at the end of a partition; a wait there would return immediately."""
        for place, position in list(self._positions.items()):
            info = self._places.info(place) if place not in self._errors else None
            # Read after that look: a record that came in between is not passed over.
            if info is None or info.commit <= position or self._read_partition(place, 1):
                continue
            if place not in self._errors:
                self._positions[place] = info.commit
