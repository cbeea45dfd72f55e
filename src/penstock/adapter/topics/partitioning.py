"""Which partition a record goes to.

explicit       the one that the caller names
round_robin    `message_seq % partitions`, for each message of a batch separately; partitions
               without a leader are left out
key            murmur2 of the key, as Kafka's clients: records with one key are stored in one
               partition, whichever protocol their writers use; a record without a key goes round

`message_seq` counts every message whose partition the caller did not name, whatever the
partitioner and the number of partitions are.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count
from typing import Final

from penstock.record import Record

_MASK: Final = 0xFFFFFFFF
_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_KEYS_REMEMBERED: Final = 16_384
"""Keys recur, and a hash in Python costs ten times a look-up."""

Parts = list[tuple[int, Sequence[Record]]]


def murmur2(data: bytes) -> int:
    """Return Kafka's murmur2 hash, as an unsigned number of 32 bits."""
    size = len(data)
    hashed = _SEED ^ size
    whole = size & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _M & _MASK
        word = (word ^ (word >> 24)) * _M & _MASK
        hashed = (hashed * _M & _MASK) ^ word
    if size != whole:
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    hashed = (hashed ^ (hashed >> 13)) * _M & _MASK
    return hashed ^ (hashed >> 15)


@lru_cache(_KEYS_REMEMBERED)
def key_hash(key: bytes) -> int:
    """Return the hash as a non-negative number, as Kafka's `toPositive` makes it."""
    return murmur2(key) & 0x7FFFFFFF


class MessageSequence:
    """`message_seq`: the global counter of messages whose partition the store chooses.

    It counts exactly. A single message, the hot path, costs one step of an `itertools.count`, which
    is atomic; a lock would cost six times as much. A batch takes the lock. A message that is
    counted during a batch of another thread may get a number of that batch: two messages then have
    the same turn, which evens out with the next ones.
    """

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._singles: Final = count()
        self._batched = 0

    @property
    def value(self) -> int:
        """How many messages were counted; the number of the next one."""
        # Its text, "count(7)", is the only way to read the counter without a step.
        return int(repr(self._singles)[6:-1]) + self._batched

    def next(self) -> int:
        """Count one message; return its number."""
        return next(self._singles) + self._batched

    def add(self, message_count: int) -> None:
        """Count the messages of a batch for which no partition is chosen."""
        with self._lock:
            self._batched += message_count

    def advance(self, message_count: int) -> int:
        """Count the messages of a batch; return the number of the first."""
        with self._lock:
            first = self.value
            self._batched += message_count
            return first


def split_in_turn(records: Sequence[Record], first: int, turns: Sequence[int]) -> Parts:
    """Split a batch whose n-th message goes to the partition `turns[(first + n) % len(turns)]`."""
    stride = len(turns)
    if stride == 1:
        return [(turns[0], records)]
    return [
        (turns[(first + start) % stride], records[start::stride])
        for start in range(min(stride, len(records)))
    ]


def choose_by_key(key: bytes | None, number: int, partitions: int, turns: Sequence[int]) -> int:
    """Return the partition of a message: by its key among all; without one, by its number in
    `message_seq` among `turns`."""
    if key is None:
        return turns[number % len(turns)]
    return key_hash(key) % partitions


def choose_all_by_key(
    records: Sequence[Record], first: int, partitions: int, turns: Sequence[int]
) -> list[int]:
    """Return a partition for each record of a batch, whose numbers begin with `first`. Records
    without a key take consecutive turns, however many with a key are between them."""
    keyless = count(first)
    return [
        key_hash(record.key) % partitions
        if record.key is not None
        else turns[next(keyless) % len(turns)]
        for record in records
    ]


def group_by_partition(records: Sequence[Record], chosen: Sequence[int]) -> Parts:
    """Group records by the partition that was chosen for each; their order within it stays."""
    parts: dict[int, list[Record]] = {}
    for record, partition in zip(records, chosen, strict=True):
        parts.setdefault(partition, []).append(record)
    return list(parts.items())


def offsets_in_turn(firsts: Sequence[int], record_count: int) -> list[int]:
    """Return the offsets of a batch that `split_in_turn` split, in its order; `firsts` are the
    first offsets of the parts, in the order of the parts."""
    stride = len(firsts)
    offsets = [0] * record_count
    for start, first in enumerate(firsts):
        part = range(start, record_count, stride)
        offsets[start::stride] = range(first, first + len(part))
    return offsets


def offsets_by_choice(chosen: Sequence[int], firsts: dict[int, int]) -> Iterator[int]:
    """Yield the offsets of a batch that was grouped by `chosen`; `firsts` by partition."""
    following = dict(firsts)
    for partition in chosen:
        offset = following[partition]
        following[partition] = offset + 1
        yield offset
