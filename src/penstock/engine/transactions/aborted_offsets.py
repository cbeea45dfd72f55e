"""Finds the records of an aborted transaction by the heads of the batches in its range."""

from __future__ import annotations

from struct import Struct
from typing import Final, Protocol

from penstock.engine.contract import BatchPage
from penstock.meta import AbortedRange
from penstock.record import ShardId

_HEAD: Final = Struct(">qiibIhiqqq")
_HEAD_SIZE: Final = 61
_TRANSACTIONAL: Final = 16
_PAGE_SIZE: Final = 1 << 20


class BatchReader(Protocol):
    def read_batches(self, shard: ShardId, offset: int, until: int, max_size: int) -> BatchPage: ...


def find_aborted(
    reader: BatchReader, shard: ShardId, aborted: AbortedRange
) -> list[tuple[int, int]]:
    """Return the offsets of the batches that its producer wrote in the range, ascending."""
    batches: list[tuple[int, int]] = []
    offset, until = int(aborted.first_offset), int(aborted.last_offset) + 1
    while offset < until:
        page = reader.read_batches(shard, offset, until, _PAGE_SIZE)
        for part in page.parts:
            batches += _batches_of(memoryview(part), aborted.producer_id)
        after = page.next_offset
        if page.foreign is not None:
            # Some of it was deleted; the head is that of the whole batch.
            body = memoryview(page.foreign.body)
            if _batches_of(body, aborted.producer_id):
                batches.append((after, page.foreign.end_offset))
            after = page.foreign.end_offset
        if after <= offset:
            break
        offset = after
    return batches


def _batches_of(data: memoryview, producer_id: int) -> list[tuple[int, int]]:
    batches: list[tuple[int, int]] = []
    position = 0
    while position + _HEAD_SIZE <= len(data):
        base, size, _, _, _, attributes, last_delta, _, _, producer = _HEAD.unpack_from(
            data, position
        )
        if producer == producer_id and attributes & _TRANSACTIONAL:
            batches.append((base, base + last_delta + 1))
        position += max(12 + size, _HEAD_SIZE)
    return batches
