"""Pages of records: queue units in, messages out, everything checked on the way.

A unit and its record must agree on size, topic, queue and offset, and the record's checksums must
hold; otherwise the page ends before it and says why. Nothing that failed a check is ever returned.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from penstock.codec.envelope import Stamps, has_key, leader_epoch_of, stored_from_parts
from penstock.codec.format import (
    BATCH_UNIT,
    FLAG_COMPRESSED,
    FLAG_INNER_BATCH,
    KAFKA,
    MULTI_TAG,
    PRE_BLANK,
    QUEUE_UNIT,
    TAG_HEADER,
    Damage,
    tag_code,
)
from penstock.codec.interface import DeletedRanges, ReadPage
from penstock.codec.properties import Properties, inner_range, lookup, parse
from penstock.codec.pure.read.codec import view_of
from penstock.codec.pure.read.inflating import inflate_body
from penstock.codec.pure.read.inner_batch import Message, read_inner
from penstock.codec.pure.read.located import RecordParts, check_at
from penstock.record import StoredRecord

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MULTI_CODE: Final = tag_code(MULTI_TAG)
_PRE_BLANK: Final = QUEUE_UNIT.unpack(PRE_BLANK)
_INT32_MIN: Final = -(1 << 31)
_INT32_MAX: Final = (1 << 31) - 1


class RecordFilter(NamedTuple):
    """Which messages a reader wants to see."""

    deleted: DeletedRanges
    now_ms: int
    tag: str | None
    key: bytes | None

    def is_deleted(self, offset: int) -> bool:
        n = bisect_right(self.deleted, offset, key=lambda entry: entry[0]) - 1
        return n >= 0 and offset < self.deleted[n][1]

    def may_have_tag(self, code: int) -> bool:
        """Say whether a unit's code leaves the tag possible. Codes beyond 32 bits are not hashes:
        they address an extension unit, or are the delivery time of a delayed record."""
        if self.tag is None or not _INT32_MIN <= code <= _INT32_MAX:
            return True
        return code in (tag_code(self.tag), _MULTI_CODE)

    def takes(self, stored: StoredRecord, properties: Properties) -> bool:
        if stored.expires_at_ms is not None and stored.expires_at_ms <= self.now_ms:
            return False
        if self.tag is not None and self.tag not in stored.tags:
            return False
        return self.key is None or has_key(stored, properties, self.key)


class Page:
    """What has been read so far, within the caller's limits."""

    def __init__(self, next_offset: int, max_records: int, max_size: int) -> None:
        self.records: list[StoredRecord] = []
        self.next_offset = next_offset
        self.size = 0
        self.damage: Damage | None = None
        self._max_records = max_records if max_size > 0 else 0
        self._max_size = max_size

    @property
    def is_full(self) -> bool:
        return len(self.records) >= self._max_records

    def has_room(self, size: int) -> bool:
        """Say whether one more record fits; the first always does."""
        return not self.records or self.size + size <= self._max_size

    def as_tuple(self) -> ReadPage:
        return self.records, self.next_offset, self.size, self.damage


class LogFile:
    """One file of the log, and the queue whose records are looked for in it."""

    def __init__(
        self, log: Buffer, base: int, topic: str, queue_id: int, *, strict: bool = False
    ) -> None:
        self.view = view_of(log)
        self._base = base
        self._topic = topic.encode("utf-8", "surrogateescape")
        self._queue_id = queue_id
        self._strict = strict

    def holds(self, position: int) -> bool:
        return self._base <= position < self._base + len(self.view)

    def record_at(self, position: int, size: int) -> RecordParts | Damage:
        """Return the undamaged record that a unit points at."""
        parts = check_at(self.view, self._base, position, len(self.view), strict=self._strict)
        if isinstance(parts, Damage):
            return parts
        if parts.size != size:
            return Damage(position, f"unit says {size} bytes, the record has {parts.size}")
        topic = self.view[parts.topic : parts.topic_end]
        if parts.queue_id != self._queue_id or topic != self._topic:
            return Damage(position, "unit points at a record of another queue")
        return parts


def read_records(
    log: Buffer,
    base: int,
    units: bytes,
    first_offset: int,
    topic: str,
    queue_id: int,
    max_records: int,
    max_size: int,
    deleted: DeletedRanges,
    now_ms: int,
    tag: str | None,
    key: bytes | None,
    strict: bool = False,
) -> ReadPage:
    """Read the records of consecutive simple-queue units from `first_offset` on."""
    page = Page(first_offset, max_records, max_size)
    record_filter = RecordFilter(deleted, now_ms, tag, key)
    file = LogFile(log, base, topic, queue_id, strict=strict)
    for unit in _units(QUEUE_UNIT.size, units):
        position, size, code = QUEUE_UNIT.unpack(unit)
        if page.is_full:
            break
        if not record_filter.is_deleted(page.next_offset) and (position, size, code) != _PRE_BLANK:
            if not file.holds(position):
                break
            if record_filter.may_have_tag(code) and not _read_one(
                file, page, record_filter, position, size
            ):
                break
        page.next_offset += 1
    return page.as_tuple()


def _read_one(
    file: LogFile, page: Page, record_filter: RecordFilter, position: int, size: int
) -> bool:
    """Put the record of the page's next offset on the page, if it is wanted; return False when the
    page ends before it."""
    parts = file.record_at(position, size)
    if isinstance(parts, RecordParts) and parts.queue_offset != page.next_offset:
        parts = Damage(position, f"unit {page.next_offset} points at offset {parts.queue_offset}")
    message = parts if isinstance(parts, Damage) else _message_of(file.view, parts, position)
    if isinstance(message, Damage) or isinstance(parts, Damage):
        page.damage = message if isinstance(message, Damage) else None
        return False
    stored, properties = message
    if record_filter.takes(stored, properties):
        if not page.has_room(size):
            return False
        if is_compressed(parts):
            inflated = _inflated(parts, stored, position)
            if isinstance(inflated, Damage):
                page.damage = inflated
                return False
            size += max(0, len(inflated.value or b"") - len(stored.value or b""))
            stored = inflated
            if not page.has_room(size):
                return False
        page.records.append(stored)
        page.size += size
    return True


def is_compressed(parts: RecordParts) -> bool:
    """Say whether the body is as a RocketMQ client compressed it; an empty one is left alone."""
    return bool(parts.sys_flag & FLAG_COMPRESSED) and parts.body < parts.body_end


def _inflated(parts: RecordParts, stored: StoredRecord, position: int) -> StoredRecord | Damage:
    """Return the record with the value that its body holds. (Only clients of RocketMQ compress, and
    never an envelope: that is ours.)"""
    try:
        value = inflate_body(stored.value or b"", parts.sys_flag)
    except ValueError as error:
        return Damage(position, str(error))
    return replace(stored, value=value)


def read_at(
    file: LogFile, record_filter: RecordFilter, position: int, size: int
) -> StoredRecord | None:
    """Return the record at `position` if it is undamaged, wanted and not compressed."""
    parts = file.record_at(position, size)
    if isinstance(parts, Damage) or is_compressed(parts):
        return None
    message = _message_of(file.view, parts, position)
    return None if isinstance(message, Damage) or not record_filter.takes(*message) else message[0]


def _message_of(log: memoryview, parts: RecordParts, position: int) -> Message | Damage:
    properties = parse(bytes(log[parts.properties : parts.end]))
    body = bytes(log[parts.body : parts.body_end])
    try:
        return stored_from_parts(body, properties, _stamps_of(parts)), properties
    except ValueError as error:
        return Damage(position, str(error))


def _stamps_of(parts: RecordParts) -> Stamps:
    return Stamps(
        parts.queue_offset,
        parts.born_timestamp_ms,
        parts.store_timestamp_ms,
        leader_epoch_of(parts.sys_flag, parts.prepared_offset),
    )


def _units(size: int, units: bytes) -> Iterator[bytes]:
    return (units[start : start + size] for start in range(0, len(units) - size + 1, size))


# ---------------------------------------------------------------------------------- batches


def read_batches(
    log: Buffer,
    base: int,
    units: bytes,
    start_offset: int,
    topic: str,
    queue_id: int,
    max_records: int,
    max_size: int,
    deleted: DeletedRanges,
    now_ms: int,
    tag: str | None,
    key: bytes | None,
    strict: bool = False,
) -> ReadPage:
    """Read the messages from `start_offset` on of consecutive batch-queue units."""
    page = Page(start_offset, max_records, max_size)
    record_filter = RecordFilter(deleted, now_ms, tag, key)
    file = LogFile(log, base, topic, queue_id, strict=strict)
    for unit in _units(BATCH_UNIT.size, units):
        position, size, _, _, batch_base, count, _, _ = BATCH_UNIT.unpack(unit)
        if page.is_full:
            break
        batch_end = batch_base + count
        if not file.holds(position):
            if batch_end <= page.next_offset:
                continue
            break
        # A batch wholly below the start is checked, too: its unit may be there because damage
        # made its offset smaller, and passing over it would be a silent hole.
        batch = messages_at(file, position, size, (batch_base, count))
        if isinstance(batch, Damage):
            page.damage = batch
            break
        messages, inflated = batch
        if not _read_messages(page, record_filter, messages, size + inflated):
            break
        page.next_offset = max(page.next_offset, batch_end)
    return page.as_tuple()


def _read_messages(
    page: Page, record_filter: RecordFilter, messages: list[Message], size: int
) -> bool:
    """Put the wanted messages of one batch on the page; return False when it is full."""
    is_counted = False
    for stored, properties in messages:
        if stored.offset < page.next_offset:
            continue
        if page.is_full:
            return False
        if not record_filter.is_deleted(stored.offset) and record_filter.takes(stored, properties):
            if not is_counted:
                if not page.has_room(size):
                    return False
                page.size += size
                is_counted = True
            page.records.append(stored)
        page.next_offset = stored.offset + 1
    return True


def messages_at(
    file: LogFile, position: int, size: int, expected: tuple[int, int]
) -> tuple[list[Message], int] | Damage:
    """Return the messages of the batch that a unit points at, in the order of their offsets, and
    how many bytes were inflated for them."""
    parts = file.record_at(position, size)
    if isinstance(parts, Damage):
        return parts
    properties = lookup(parse(bytes(file.view[parts.properties : parts.end])))
    inner = inner_range(properties)
    if inner != expected or parts.queue_offset != expected[0]:
        return Damage(position, f"unit says offset and count {expected}, the record {inner}")
    if not parts.sys_flag & FLAG_INNER_BATCH:
        return _lone_message(file, parts, position)
    body = bytes(file.view[parts.body : parts.body_end])
    is_kafka = properties.get(KAFKA) == "1"
    inflated = 0
    try:
        if is_compressed(parts):
            body = inflate_body(body, parts.sys_flag)
            inflated = len(body)
        named = properties.get(TAG_HEADER, "")
        header = named[1:] if named.startswith("=") else None
        messages, more = read_inner(body, _stamps_of(parts), kafka=is_kafka, tag_header=header)
    except ValueError as error:
        return Damage(position, f"inner batch: {error}")
    base, count = expected
    if is_kafka:
        agrees = all(base <= stored.offset < base + count for stored, _ in messages)
    else:
        agrees = len(messages) == count
    if not agrees:
        return Damage(position, f"inner batch does not hold the {count} messages it should")
    return messages, inflated + more


def _lone_message(
    file: LogFile, parts: RecordParts, position: int
) -> tuple[list[Message], int] | Damage:
    """Return the one message of an ordinary record in a batch queue."""
    message = _message_of(file.view, parts, position)
    if isinstance(message, Damage):
        return message
    stored, properties = message
    if not is_compressed(parts):
        return [message], 0
    inflated = _inflated(parts, stored, position)
    if isinstance(inflated, Damage):
        return inflated
    return [(inflated, properties)], len(inflated.value or b"")
