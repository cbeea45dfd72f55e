"""A fetch session (KIP-227): the partitions of a client, of which it names only what changes."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.brokers.kafka.fetch.request import FetchPartition
from penstock.brokers.kafka.fetch.response import FetchedPartition

_EPOCH_MAX = 0x7FFFFFFF


class FetchSession:
    __slots__ = ("_requested", "_sent_bounds", "by_id", "epoch", "id")

    def __init__(self, number: int, requested: Sequence[FetchPartition], *, by_id: bool) -> None:
        self.id = number
        self.by_id = by_id
        """Whether its requests name topics by id; fixed for the life of the session."""
        self.epoch = 1
        """The epoch of the next request."""
        self._requested = {(one.topic, one.partition_id): one for one in requested}
        self._sent_bounds: dict[tuple[bytes, int], tuple[int, int]] = {}

    def apply(
        self, requested: Sequence[FetchPartition], forgotten: Sequence[tuple[bytes, int]]
    ) -> None:
        for one in requested:
            self._requested[one.topic, one.partition_id] = one
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
        shown = []
        for one in fetched:
            key = (one.topic, one.partition_id)
            edges = (one.high_watermark, one.log_start)
            if is_full or one.size or one.error_code or self._sent_bounds.get(key) != edges:
                shown.append(one)
            self._sent_bounds[key] = edges
            if one.size:
                # Partitions with records go last, so that full responses serve all in turn.
                self._requested[key] = self._requested.pop(key)
        return shown
