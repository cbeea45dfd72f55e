"""What the data path needs to know of transactions, in memory: who may write, what is stable.

A shard is stable up to the first record of its oldest open transaction; records of aborted ones are
told to readers, who leave them out. Writers of shards that sync are in threads of their own, so
there is a lock; it is held for a few dictionary operations.

Invariants:

  * a shard counts as held up before the first record of a transaction is written to it
  * when a transaction is aborted, its range is told before the shard is released
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Final

from kio.schema.errors import ErrorCode
from msgspec import Struct

from penstock.brokers.kafka.batch_head import BatchHead
from penstock.brokers.kafka.transactions import AbortedTransaction
from penstock.engine.transaction_limits import TransactionLimits
from penstock.meta.state.transaction_commands import AbortedRange


class Writer(Struct):
    """A producer whose transaction is open: the shards it may write to, by their bounds."""

    transactional_id: str
    epoch: int
    bounds: dict[str, int]
    """Offsets at which the records of the transaction begin, or before them."""
    is_open: bool = True


class TransactionIndex:
    def __init__(self, limits: TransactionLimits) -> None:
        self._limits: Final = limits
        self._lock: Final = threading.Lock()
        self._written: Final = threading.Condition(self._lock)
        self._writers: Final[dict[int, Writer]] = {}
        """By producer id."""
        self._epochs: Final[dict[int, int]] = {}
        """The current epoch of each producer id: older ones write no more."""
        self._writing: Final[dict[int, int]] = {}
        """Writes under way, by producer id: a marker must come behind them."""

    # What Produce and Fetch ask

    def check_write(self, shard: str, head: BatchHead, transactional_id: str | None) -> int:
        with self._lock:
            if head.producer_epoch < self._epochs.get(head.producer_id, 0):
                return int(ErrorCode.invalid_producer_epoch)
            writer = self._writers.get(head.producer_id)
            if writer is None or not writer.is_open or shard not in writer.bounds:
                return int(ErrorCode.invalid_txn_state)
            if head.producer_epoch != writer.epoch:
                return int(ErrorCode.invalid_producer_epoch)
            if transactional_id is not None and transactional_id != writer.transactional_id:
                return int(ErrorCode.invalid_txn_state)
            self._limits.hold(shard, head.producer_id, writer.bounds[shard])
            self._writing[head.producer_id] = self._writing.get(head.producer_id, 0) + 1
            return 0

    def note_written(self, shard: str, head: BatchHead, first_offset: int | None) -> None:
        if first_offset is not None:
            self._limits.note_first(shard, head.producer_id, first_offset)
        with self._lock:
            left = self._writing[head.producer_id] - 1
            if left:
                self._writing[head.producer_id] = left
            else:
                del self._writing[head.producer_id]
                self._written.notify_all()

    def stable_until(self, shard: str) -> int | None:
        return self._limits.stable_until(shard)

    def aborted(self, shard: str, first: int, end: int) -> Sequence[AbortedTransaction]:
        return [
            AbortedTransaction(one.producer_id, one.first_offset)
            for one in self._limits.aborted(shard, first, end)
        ]

    # What the coordinator tells

    def note_epoch(self, producer_id: int, epoch: int) -> None:
        self._epochs[producer_id] = epoch

    def forget_epoch(self, producer_id: int) -> None:
        self._epochs.pop(producer_id, None)

    def open(self, producer_id: int, writer: Writer, *, may_have_written: bool = False) -> None:
        """Let a producer write; after a restart its shards count as written to."""
        with self._lock:
            self._writers[producer_id] = writer
            if may_have_written:
                for shard, bound in writer.bounds.items():
                    self._limits.hold(shard, producer_id, bound)

    def shut(self, producer_id: int) -> dict[str, int]:
        """Let a producer write no more; return the first offsets of what it wrote, by shard."""
        with self._lock:
            writer = self._writers.get(producer_id)
            if writer is not None:
                writer.is_open = False
            return self._limits.firsts(producer_id)

    def is_writing(self, producer_id: int) -> bool:
        return producer_id in self._writing

    def wait_until_written(self, producer_id: int, seconds: float) -> bool:
        """Block until the writes of a producer that were let in are done."""
        with self._written:
            return self._written.wait_for(lambda: producer_id not in self._writing, seconds)

    def release(self, producer_id: int, aborted: Iterable[AbortedRange]) -> list[str]:
        """The markers are written: nothing of this producer's transaction is open any more. Return
        the shards that it held up."""
        with self._lock:
            self._writers.pop(producer_id, None)
            return self._limits.release(producer_id, aborted)
