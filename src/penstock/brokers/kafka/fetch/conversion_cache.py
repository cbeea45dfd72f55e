"""A cache of batches that the server built from records, for the next consumer that reads them.

An entry is valid while the state of its shard (`Converted.state`) is the same: written records
never change, and every removal of records changes that state. Batches with records that have an
expiry time are not cached. The least recently used ones are evicted when there are too many bytes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, NamedTuple

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


class ConversionCache:
    def __init__(self, size_max: int) -> None:
        """`size_max` 0 keeps nothing."""
        self._size_max: Final = size_max
        self._lock: Final = threading.Lock()
        self._kept: Final[OrderedDict[ConvertedKey, Converted]] = OrderedDict()
        self.size = 0
        self.hits = 0

    def find(self, key: ConvertedKey, state: object, until: int, max_size: int) -> Converted | None:
        """Return the batch that begins at an offset, if it fits into range and size."""
        with self._lock:
            converted = self._kept.get(key)
            if converted is None:
                return None
            if converted.state != state:
                self._drop(key)
                return None
            if converted.next_offset > until or len(converted.batch) > max_size:
                return None
            self._kept.move_to_end(key)
            self.hits += 1
            return converted

    def add(self, key: ConvertedKey, converted: Converted) -> None:
        size = len(converted.batch) + OVERHEAD
        with self._lock:
            if key in self._kept:
                self._drop(key)
            if size > self._size_max // 4:
                return
            self._kept[key] = converted
            self.size += size
            while self.size > self._size_max:
                self._drop(next(iter(self._kept)))

    def _drop(self, key: ConvertedKey) -> None:
        self.size -= len(self._kept.pop(key).batch) + OVERHEAD
