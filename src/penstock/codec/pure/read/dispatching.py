"""What a record in a log means for queues and indexes: RocketMQ's dispatch rules."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from penstock.codec.envelope import leader_epoch_of
from penstock.codec.format import (
    DELAY,
    DELAY_LEVELS_MS,
    FLAG_PREPARED,
    FLAG_ROLLBACK,
    FLAG_TRANSACTION,
    GROUP,
    GROUP_DIGITS,
    PRODUCER,
    SCHEDULE_TOPIC,
    TAGS,
    index_hash,
    java_hash,
    java_hash_after,
    tag_code,
)
from penstock.codec.properties import (
    index_texts,
    inner_range,
    lookup,
    parse,
    parse_int64,
)
from penstock.codec.pure.read.codec import topic_of
from penstock.codec.pure.read.located import RecordParts


class Facts(NamedTuple):
    """What dispatching needs to know of a record."""

    topic: str
    properties: dict[str, str]
    record: RecordParts

    @property
    def enters_a_queue(self) -> bool:
        return self.record.sys_flag & FLAG_TRANSACTION not in (FLAG_PREPARED, FLAG_ROLLBACK)

    @property
    def inner(self) -> tuple[int, int] | None:
        return inner_range(self.properties)

    @property
    def epoch(self) -> int:
        return leader_epoch_of(self.record.sys_flag, self.record.prepared_offset)

    @property
    def has_producer(self) -> bool:
        return PRODUCER in self.properties

    @property
    def tag_code(self) -> int:
        """What the queue unit holds: the tag's hash, or the delivery time of a delayed record."""
        level = parse_int64(self.properties.get(DELAY)) if self.topic == SCHEDULE_TOPIC else None
        if level is not None and level > 0:
            delay_ms = DELAY_LEVELS_MS[min(level, len(DELAY_LEVELS_MS)) - 1]
            return self.record.store_timestamp_ms + delay_ms
        return tag_code(self.properties[TAGS]) if TAGS in self.properties else 0

    def group_size(self) -> int | str | None:
        """Return the bytes of the group that this record begins; text says what is wrong."""
        digits = self.properties.get(GROUP)
        if digits is None:
            return None
        if len(digits) != GROUP_DIGITS or not (digits.isascii() and digits.isdigit()):
            return f"group size {digits!r} is not a number of {GROUP_DIGITS} digits"
        return int(digits)

    def index_hashes(self) -> list[int]:
        """Return the hashes that the key index holds for this record, in order."""
        if self.record.sys_flag & FLAG_TRANSACTION == FLAG_ROLLBACK:
            return []
        prefix = _prefix_hash(self.topic)
        return [entry_hash(prefix, text) for text in index_texts(self.properties)]


def facts_of(log: memoryview, record: RecordParts) -> Facts:
    properties = parse(bytes(log[record.properties : record.end]))
    return Facts(topic_of(log, record), lookup(properties), record)


def entry_hash(prefix: int, text: str) -> int:
    """Return the index hash of `topic#text`, where `prefix` is the Java hash of `topic#`."""
    return index_hash(java_hash_after(prefix, text))


@lru_cache(maxsize=4096)
def tag_entry_hash(prefix: int, tag: str) -> int:
    return entry_hash(prefix, f"T#{tag}")


@lru_cache(maxsize=4096)
def _prefix_hash(topic: str) -> int:
    return java_hash(f"{topic}#")
