"""A fetch session (KIP-227): the partitions of a client, of which it names only what changes."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.brokers.kafka.fetch.request import FetchPartition
from penstock.brokers.kafka.fetch.response import NO_REPLICA, FetchedPartition

_EPOCH_MAX = 0x7FFFFFFF


class FetchSession:
    __slots__ = ("_requested", "_sent_bounds", "by_id", "epoch", "id")

    def __init__(self, number: int, requested: Sequence[FetchPartition], *, by_id: bool) -> None:
        self.id = number
        self.by_id = by_id
        """Whether its requests name topics by id; fixed for the life of the session."""
        self.epoch = 1
        """The epoch of the next request."""
        self._requested = {(entry.topic, entry.partition_id): entry for entry in requested}
        self._sent_bounds: dict[tuple[bytes, int], tuple[int, int]] = {}

    def apply(
        self, requested: Sequence[FetchPartition], forgotten: Sequence[tuple[bytes, int]]
    ) -> None:
        for entry in requested:
            self._requested[entry.topic, entry.partition_id] = entry
        for key in forgotten:
            self._requested.pop(key, None)
            self._sent_bounds.pop(key, None)

    def requested(self) -> list[FetchPartition]:
        return list(self._requested.values())

    def advance(
        self, fetched: Sequence[FetchedPartition], *, is_full: bool
    ) -> list[FetchedPartition]:
        """Advance to the next request; return the partitions to send: all, or the changed ones."""
        if not is_full:
            self.epoch = 1 if self.epoch >= _EPOCH_MAX else self.epoch + 1
        changed = []
        for partition in fetched:
            key = (partition.topic, partition.partition_id)
            bounds = (partition.high_watermark, partition.log_start)
            if (
                is_full
                or partition.size
                or partition.error_code
                or partition.preferred != NO_REPLICA
                or self._sent_bounds.get(key) != bounds
            ):
                changed.append(partition)
            self._sent_bounds[key] = bounds
            if partition.size:
                # Partitions with records go last, so that full responses serve all in turn.
                self._requested[key] = self._requested.pop(key)
        return changed
