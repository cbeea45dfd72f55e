"""Records that another log holds, made ready for this one.

Only the position changes; the checksum follows it by linearity and is never computed anew over
bytes that were not verified against the old one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.codec.format import (
    CHECKSUM_MASK,
    CHECKSUM_SIZE,
    CHECKSUM_START,
    KIND_BATCH,
    RECORD_HEAD,
)
from penstock.codec.pure.queue_table import Queue
from penstock.codec.pure.read.codec import crc_patch, view_of
from penstock.codec.pure.read.dispatching import Facts, facts_of
from penstock.codec.pure.read.located import (
    RecordParts,
    checksum_digits,
    find_damaged_part,
    find_parts,
    read_checksum,
    write_checksum,
)
from penstock.errors import BadRequestError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_POSITION_AT: Final = RECORD_HEAD.position_of("position")
_POSITION_END: Final = _POSITION_AT + 8
_DIGITS_FROM_END: Final = CHECKSUM_SIZE - len(CHECKSUM_START)


class Copy(NamedTuple):
    """A record to be copied, and how many offsets it takes."""

    facts: Facts
    offsets: int


def read_copies(data: memoryview, queue: Queue, *, strict: bool) -> list[Copy]:
    """Return the records in `data`; `BadRequestError` unless they are undamaged, whole groups, and
    continue `queue`. With `strict`, each has a whole-record checksum."""
    copies: list[Copy] = []
    group_end = index = 0
    offset = queue.next_offset
    while index < len(data):
        facts = _read_one(data, index, queue, strict=strict)
        size = facts.group_size()
        if isinstance(size, str):
            raise BadRequestError(f"record at byte {index}: {size}")
        if size is not None:
            if index < group_end:
                raise BadRequestError(f"record at byte {index} begins a group inside another")
            group_end = index + size
        copy = Copy(facts, _count_at(facts, queue, offset, index))
        copies.append(copy)
        offset += copy.offsets
        index += facts.record.size
        if index - facts.record.size < group_end < index:
            raise BadRequestError(f"a group ends inside the record before byte {index}")
    if not copies or group_end > index:
        raise BadRequestError("data holds no record" if not copies else "a group is cut short")
    return copies


def find_special(
    log: Buffer, base: int, start: int, end: int, epoch: int, special_suffix: str
) -> list[int]:
    """Return the positions of records that change more of a shard than its queue: see
    `codec.interface`."""
    view = view_of(log)
    index, stop = start - base, min(end - base, len(view))
    positions: list[int] = []
    while index < stop:
        parts = find_parts(view, index, len(view))
        if isinstance(parts, str):
            raise BadRequestError(f"no record of a commit log at byte {index}: {parts}")
        facts = facts_of(view, parts)
        is_special = bool(special_suffix) and facts.topic.endswith(special_suffix)
        if is_special or facts.epoch != epoch or facts.has_producer:
            positions.append(base + index)
        epoch = facts.epoch
        index += parts.size
    return positions


def _read_one(data: memoryview, index: int, queue: Queue, *, strict: bool) -> Facts:
    parts = find_parts(data, index, len(data))
    fault = parts if isinstance(parts, str) else find_damaged_part(data, parts, strict=strict)
    if fault is not None or isinstance(parts, str):
        raise BadRequestError(f"record at byte {index}: {fault}")
    facts = facts_of(data, parts)
    if facts.topic != queue.topic or parts.queue_id != queue.queue_id:
        raise BadRequestError(
            f"record at byte {index} belongs to '{facts.topic}_{parts.queue_id}', "
            f"not {queue.shard!r}"
        )
    if not facts.enters_a_queue:
        raise BadRequestError(f"record at byte {index} is not a committed record")
    return facts


def _count_at(facts: Facts, queue: Queue, offset: int, index: int) -> int:
    """Return how many offsets the record takes, which must begin at `offset`."""
    begin, count = facts.record.queue_offset, 1
    if queue.kind == KIND_BATCH:
        inner = facts.inner
        if inner is None or inner[0] != begin:
            raise BadRequestError(f"record at byte {index} does not belong in a batch queue")
        count = inner[1]
    if begin != offset:
        raise BadRequestError(f"record at byte {index} has offset {begin}, expected {offset}")
    return count


def moved(data: memoryview, record: RecordParts, position: int) -> bytes:
    """Return the record's bytes as they read at `position`."""
    copied = bytearray(data[record.start : record.end])
    digits = checksum_digits(data, record)
    new = position.to_bytes(8, signed=True)
    if digits is not None:
        old = copied[_POSITION_AT:_POSITION_END]
        delta = bytes(a ^ b for a, b in zip(old, new, strict=True))
        size_after = record.size - CHECKSUM_SIZE - _POSITION_END
        patched = crc_patch(read_checksum(digits), size_after, delta) & CHECKSUM_MASK
        digits_at = record.size - _DIGITS_FROM_END
        copied[digits_at:-1] = write_checksum(patched)
    copied[_POSITION_AT:_POSITION_END] = new
    return bytes(copied)
