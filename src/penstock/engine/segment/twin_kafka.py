"""What the native extension offers for the batches of Kafka's producers; it has no pure twin."""

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
    def rewrite_batch(self) -> RewriteBatch: ...
