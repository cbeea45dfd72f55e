"""The head of a Kafka record batch of version 2, the only one that is stored.

    base offset 8 · size of the rest 4 · leader epoch 4 · magic 1 · CRC-32C 4 · attributes 2 ·
    last offset delta 4 · base time 8 · max time 8 · producer id 8 · epoch 2 · sequence 4 · count 4

The checksum covers everything from the attributes on; base offset and leader epoch are set by the
store.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

HEAD: Final = Struct(">qiibIhiqqqhii")
HEAD_SIZE: Final = 61
CHECKED_FROM: Final = 21
MAGIC: Final = 2

CODEC_MASK: Final = 7
LOG_APPEND_TIME: Final = 8
TRANSACTIONAL: Final = 16
CONTROL: Final = 32

assert HEAD.size == HEAD_SIZE


class BatchHead(NamedTuple):
    base_offset: int
    size_after: int
    """Bytes after this field: the batch has twelve more."""
    leader_epoch: int
    magic: int
    checksum: int
    attributes: int
    last_delta: int
    base_ms: int
    max_ms: int
    producer_id: int
    producer_epoch: int
    sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return self.size_after + 12

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0
