"""The two shapes a message has: as a producer hands it over, and as the store gives it back.

Three integers travel through this code base and must never be mixed up:

    Offset     the n-th record of a shard, counted from 0; what consumers commit
    Position   a byte address in a log or a file
    size       a number of bytes; always suffixed `_size`, never called "length" or "len"

`Offset` and `Position` are distinct types for the checker and plain `int` at run time.

Text (tags, header names) holds any characters; bytes that are not UTF-8 travel through it as
surrogate escapes (`b"\\xff".decode("utf-8", "surrogateescape")`), so nothing is ever lost.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, NewType, Self

from msgspec import Struct

from penstock.errors import BadRequestError

Offset = NewType("Offset", int)
Position = NewType("Position", int)

Header = tuple[str, bytes | None]
"""A header's name and value; names may repeat, and the order is kept."""


class Record(Struct, frozen=True, gc=False):
    """A message on its way in; it has no offset yet.

    `value=None` is a tombstone and differs from `b""`; `key=None` means that the record has
    no key, and differs from `b""`. Without a timestamp the store stamps the record with its own
    clock.
    """

    value: bytes | None
    key: bytes | None = None
    tags: tuple[str, ...] = ()
    headers: tuple[Header, ...] = ()
    timestamp_ms: int | None = None
    expires_at_ms: int | None = None


class StoredRecord(Struct, frozen=True, gc=False):
    """A message on its way out, carrying the offset that its shard gave it.

    The field order is part of the native extension's interface: it builds these by position.
    """

    offset: Offset
    value: bytes | None
    key: bytes | None
    tags: tuple[str, ...]
    headers: tuple[Header, ...]
    timestamp_ms: int
    expires_at_ms: int | None
    store_timestamp_ms: int
    leader_epoch: int

    def as_record(self) -> Record:
        """Return the message as a producer would hand it over again."""
        return Record(
            value=self.value,
            key=self.key,
            tags=self.tags,
            headers=self.headers,
            timestamp_ms=self.timestamp_ms,
            expires_at_ms=self.expires_at_ms,
        )


class ShardId(NamedTuple):
    """One partition of a topic: the unit of ordering, leadership and offsets."""

    topic: str
    partition: int

    @property
    def name(self) -> str:
        """`{topic}_{partition}`, as engines and files name the shard."""
        return f"{self.topic}_{self.partition}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """Split `{topic_id}_{partition}` at its last underscore."""
        topic, separator, partition = name.rpartition("_")
        if not separator or not topic or not (partition.isascii() and partition.isdigit()):
            raise BadRequestError(
                f"{name!r} is not a shard name; expected {{topic_id}}_{{partition}}, such as "
                "'orders_0'"
            )
        return cls(topic, int(partition))


class Location(NamedTuple):
    """The place of a record in its topic."""

    partition: int
    offset: Offset


class Producer(NamedTuple):
    """Who writes, so that a repeated write is recognised: the id, the epoch that fences older
    instances of the same id, and the sequence number of the first record of this write."""

    id: int
    epoch: int
    sequence: int
    is_transactional: bool = False
    """Whether the write belongs to the producer's transaction; see `TransactionalEngine`."""


class Flush(Enum):
    """When an append may be acknowledged (the names are RocketMQ's)."""

    ASYNC = "ASYNC_FLUSH"  # in the page cache: survives this process, not a power cut
    SYNC = "SYNC_FLUSH"  # on the device: survives both


class QueueKind(Enum):
    """What one unit of a shard's queue points at; fixed when the shard is created."""

    SIMPLE = "SimpleCQ"  # one record
    BATCH = "BatchCQ"  # one batch of records, kept as the client's own bytes
