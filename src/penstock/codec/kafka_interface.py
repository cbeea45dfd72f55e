"""What the native extension offers for the batches of Kafka's producers; it has no reference in
Python."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer

CheckedBatch = tuple[int, str, list[int], int, int, int, int]
"""Flaw, reason, indexes of the records at fault, inflated size, size of the largest record, oldest
and newest time."""


class BatchFlaw(IntEnum):
    """What is wrong with a batch."""

    NONE = 0
    CHECKSUM = 1
    RECORD = 2
    """It does not inflate, or a record in it is malformed."""
    KEYS = 3
    """Records lack a key."""
    TOO_LARGE = 4
    """It inflates to more than the limit."""


class CheckBatch(Protocol):
    def __call__(self, batch: Buffer, limit: int, needs_keys: bool, /) -> CheckedBatch:
        """Check the checksum and each record of one whole batch, inflating at most about `limit`
        bytes and never holding all of them."""
        ...


PlainBatch = tuple[int, int, int, int, int, int, int, int, int, int]
"""Attributes, count, newest time by the head, producer id, epoch and sequence; then size, size of
the largest record, oldest and newest time."""


class CheckPlain(Protocol):
    def __call__(self, batch: Buffer, size_max: int, needs_keys: bool, /) -> PlainBatch | None:
        """Check the head, the checksum and each record of a batch that is not compressed; None
        when it is compressed or has any flaw."""
        ...


ProduceTopics = list[tuple[bytes, list[tuple[int, int, int]]]]
"""For each topic its name and (partition, start, end) of its batches."""


class ParseProduce(Protocol):
    def __call__(
        self, request: Buffer, is_flexible: bool, /
    ) -> tuple[str | None, int, ProduceTopics]:
        """Return the transactional id, acks and topics of a Produce request; `ValueError` for
        bytes that are not one."""
        ...


class RewriteBatch(Protocol):
    def __call__(
        self,
        batch: Buffer,
        codec: int | None,
        append_ms: int | None,
        newest_ms: int | None,
        /,
    ) -> bytes:
        """Return a checked batch compressed by another codec, with the time at which it is stored,
        or with that of its newest record; None leaves that as it is."""
        ...


class KafkaFunctions(Protocol):
    @property
    def check_batch(self) -> CheckBatch: ...

    @property
    def check_plain(self) -> CheckPlain: ...

    @property
    def parse_produce(self) -> ParseProduce: ...

    @property
    def rewrite_batch(self) -> RewriteBatch: ...
