"""The interface between Produce, Fetch, ListOffsets and the transaction coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

ProducerKey = tuple[str, int, int]
"""Transactional id, producer id and epoch."""


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int


class Transactions(Protocol):
    """The calls of the data path. Methods may be called from any thread and do not block."""

    def check_write(
        self, shard: str, producer_id: int, epoch: int, transactional_id: str | None
    ) -> int:
        """Return an error code for a transactional batch, 0 to accept it."""
        ...

    def is_open(self, shard: str, producer_id: int) -> bool:
        """Say whether a producer may write to a shard in a transaction now."""
        ...

    def is_enlisted(self, shard: str, producer_id: int, epoch: int) -> bool:
        """Say whether the open transaction of a producer may write to a shard."""
        ...

    def finish_write(self, shard: str, producer_id: int, first_offset: int | None) -> None:
        """End a write that `check_write` accepted: at `first_offset`, or None when it failed."""
        ...

    def stable_until(self, shard: str) -> int | None:
        """Return the first offset of the oldest open transaction, or None when none is open."""
        ...

    def aborted(self, shard: str, first: int, end: int) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions with records in [first, end)."""
        ...


class NoTransactions:
    """Used where transactions are not served: rejects their batches."""

    def check_write(
        self, shard: str, producer_id: int, epoch: int, transactional_id: str | None
    ) -> int:
        return 48  # INVALID_TXN_STATE

    def is_open(self, shard: str, producer_id: int) -> bool:
        return False

    def is_enlisted(self, shard: str, producer_id: int, epoch: int) -> bool:
        return False

    def finish_write(self, shard: str, producer_id: int, first_offset: int | None) -> None:
        raise AssertionError("no write was accepted")

    def stable_until(self, shard: str) -> int | None:
        return None

    def aborted(self, shard: str, first: int, end: int) -> Sequence[AbortedTransaction]:
        return ()
