"""Lag of consumer groups: committed offsets compared with the ends of the topics."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import Struct

from penstock.api import Store


class PartitionLag(Struct, frozen=True):
    group: str
    topic: str
    partition: int
    offset: int
    """The next offset that the group reads."""
    end: int
    """The offset after the last readable record."""
    lag: int
    last_commit_ms: int
    """Of the group, whichever partition it was for."""


class LagResult(Struct, frozen=True):
    groups: int
    lag: int
    partitions: list[PartitionLag]
    seconds: float


def lag(store: Store, *, groups: Sequence[str] | None = None) -> LagResult:
    """Compare these groups (all by default) with the ends of what they read.

    `store` is `penstock.connect`'s, or `penstock.open`'s. Records that retention removed before a
    group read them do not count. Nothing is changed.
    """
    began = time.monotonic()
    chosen = store.groups() if groups is None else list(groups)
    partitions = []
    ends: dict[str, dict[int, int]] = {}
    for name in chosen:
        info = store.describe_group(name)
        for (topic, partition), offset in sorted(info.offsets.items()):
            if topic not in ends:
                parts = store.topic(topic).describe().bounded
                ends[topic] = {part.partition: part.commit for part in parts}
            end = ends[topic][partition]
            lag_records = info.lag.get((topic, partition), 0)
            partitions.append(
                PartitionLag(name, topic, partition, offset, end, lag_records, info.last_commit_ms)
            )
    total = sum(partition_lag.lag for partition_lag in partitions)
    return LagResult(len(chosen), total, partitions, time.monotonic() - began)
