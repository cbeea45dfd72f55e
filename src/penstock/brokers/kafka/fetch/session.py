"""A fetch session (KIP-227): the partitions of a client, of which it names only what changes."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.brokers.kafka.fetch.request import Wanted
from penstock.brokers.kafka.fetch.response import Fetched

_EPOCH_MAX = 0x7FFFFFFF


class FetchSession:
    __slots__ = ("_told", "_wanted", "by_id", "epoch", "id")

    def __init__(self, number: int, wanted: Sequence[Wanted], *, by_id: bool) -> None:
        self.id = number
        self.by_id = by_id
        """Whether its requests name topics by id; fixed for the life of the session."""
        self.epoch = 1
        """That of the next request."""
        self._wanted = {(one.topic, one.partition_id): one for one in wanted}
        self._told: dict[tuple[bytes, int], tuple[int, int]] = {}

    def apply(self, wanted: Sequence[Wanted], forgotten: Sequence[tuple[bytes, int]]) -> None:
        for one in wanted:
            self._wanted[one.topic, one.partition_id] = one
        for key in forgotten:
            self._wanted.pop(key, None)
            self._told.pop(key, None)

    def wanted(self) -> list[Wanted]:
        return list(self._wanted.values())

    def advance(self, fetched: Sequence[Fetched], *, is_full: bool) -> list[Fetched]:
        """Go on to the next request; return what must be told: all of it, or what is new."""
        if not is_full:
            self.epoch = 1 if self.epoch >= _EPOCH_MAX else self.epoch + 1
        shown = []
        for one in fetched:
            key = (one.topic, one.partition_id)
            edges = (one.high_watermark, one.log_start)
            if is_full or one.size or one.error_code or self._told.get(key) != edges:
                shown.append(one)
            self._told[key] = edges
            if one.size:
                # Those with records go last, so that each has its turn when answers are full.
                self._wanted[key] = self._wanted.pop(key)
        return shown
