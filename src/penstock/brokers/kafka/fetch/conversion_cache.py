"""Batches that were made of records of other doors, kept for the next consumer that asks.

A batch is good as long as its records are: what is written never changes, and everything that could
take a record away changes the state of its shard (`state_of`). Batches with records that expire by
themselves are not kept. The oldest in use go when there are too many bytes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, NamedTuple

from penstock.engine.routing.storage_cache import ShardEntry

OVERHEAD: Final = 400
"""Bytes that an entry takes besides its batch, about."""


class ConvertedKey(NamedTuple):
    shard: str
    offset: int
    tag_header: str
    is_part: bool
    """What is left of a batch of Kafka's, and not records of another form."""


class Converted(NamedTuple):
    state: object
    batch: bytes
    next_offset: int


def state_of(entry: ShardEntry) -> object:
    """Return something that is equal as long as nothing was taken away from a shard; to be asked
    for before its records are read."""
    epoch = None if entry.meta is None else entry.meta.leader_epoch
    return entry.removals, epoch, entry.offline


class ConversionCache:
    def __init__(self, size_max: int) -> None:
        """`size_max` 0 keeps nothing."""
        self._size_max: Final = size_max
        self._lock: Final = threading.Lock()
        self._kept: Final[OrderedDict[ConvertedKey, Converted]] = OrderedDict()
        self.size = 0
        self.hits = 0

    def find(self, key: ConvertedKey, state: object, until: int, max_size: int) -> Converted | None:
        """Return the batch that begins at an offset, if it fits in what is asked for."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            if found.state != state:
                self._drop(key)
                return None
            if found.next_offset > until or len(found.batch) > max_size:
                return None
            self._kept.move_to_end(key)
            self.hits += 1
            return found

    def add(self, key: ConvertedKey, made: Converted) -> None:
        size = len(made.batch) + OVERHEAD
        with self._lock:
            if key in self._kept:
                self._drop(key)
            if size > self._size_max // 4:
                return
            self._kept[key] = made
            self.size += size
            while self.size > self._size_max:
                self._drop(next(iter(self._kept)))

    def _drop(self, key: ConvertedKey) -> None:
        self.size -= len(self._kept.pop(key).batch) + OVERHEAD
