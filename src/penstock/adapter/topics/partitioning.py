"""Which partition a record goes to.

explicit       the caller says
round_robin    `message_seq % partitions`, each message of a batch for itself; partitions without
               a leader are left out
key            murmur2 of the key, as Kafka's clients: the same key lies in the same partition
               for every writer, whichever protocol it speaks; a record without a key goes round
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from penstock.record import Record

_MASK: Final = 0xFFFFFFFF
_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_KEYS_REMEMBERED: Final = 16_384
"""Keys come again and again; a hash in Python costs ten times a look-up."""

Parts = list[tuple[int, Sequence[Record]]]


def murmur2(data: bytes) -> int:
    """Return Kafka's murmur2 hash, as an unsigned number of 32 bits."""
    size = len(data)
    hashed = _SEED ^ size
    whole = size & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
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
    """The global counter of messages; a batch takes as many numbers as it has messages."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._next = 0

    @property
    def value(self) -> int:
        """How many messages were counted."""
        return self._next

    def take(self, count: int) -> int:
        """Count `count` messages; return the number of the first."""
        with self._lock:
            first = self._next
            self._next = first + count
            return first


def split_in_turn(records: Sequence[Record], first: int, turns: Sequence[int]) -> Parts:
    """Split a batch whose n-th message goes to the partition `turns[(first + n) % len(turns)]`."""
    count = len(turns)
    if count == 1:
        return [(turns[0], records)]
    return [
        (turns[(first + start) % count], records[start::count])
        for start in range(min(count, len(records)))
    ]


def choose_by_key(
    record: Record, sequence: MessageSequence, partitions: int, turns: Sequence[int]
) -> int:
    """Return the partition of a record: by its key among all, without one the next of `turns`."""
    key = record.key
    if key is None:
        return turns[sequence.take(1) % len(turns)]
    return key_hash(key) % partitions


def choose_all_by_key(
    records: Sequence[Record], sequence: MessageSequence, partitions: int, turns: Sequence[int]
) -> list[int]:
    """Return a partition for each record."""
    sequence.take(sum(1 for record in records if record.key is not None))
    return [choose_by_key(record, sequence, partitions, turns) for record in records]


def group_by_partition(records: Sequence[Record], chosen: Sequence[int]) -> Parts:
    """Group records by the partition that was chosen for each; their order within it stays."""
    parts: dict[int, list[Record]] = {}
    for record, partition in zip(records, chosen, strict=True):
        parts.setdefault(partition, []).append(record)
    return list(parts.items())


def offsets_in_turn(firsts: Sequence[int], count: int) -> list[int]:
    """Return the offsets of a batch that `split_in_turn` split, in its order; `firsts` are those
    that the parts got, in the order of the parts."""
    stride = len(firsts)
    offsets = [0] * count
    for start, first in enumerate(firsts):
        part = range(start, count, stride)
        offsets[start::stride] = range(first, first + len(part))
    return offsets


def offsets_by_choice(chosen: Sequence[int], firsts: dict[int, int]) -> Iterator[int]:
    """Yield the offsets of a batch that was grouped by `chosen`; `firsts` by partition."""
    following = dict(firsts)
    for partition in chosen:
        offset = following[partition]
        following[partition] = offset + 1
        yield offset
