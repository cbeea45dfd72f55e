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
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import Final

from kio.schema.errors import ErrorCode
from msgspec import Struct

from penstock.brokers.kafka.batch_head import BatchHead
from penstock.brokers.kafka.transactions import AbortedTransaction
from penstock.meta.state.transaction_commands import AbortedRange


class Writer(Struct):
    """A producer whose transaction is open: the shards it may write to, by their bounds."""

    transactional_id: str
    epoch: int
    bounds: dict[str, int]
    """Offsets at which the records of the transaction begin, or before them."""
    is_open: bool = True


class _Held(Struct):
    first_offset: int
    is_exact: bool


class TransactionIndex:
    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._written: Final = threading.Condition(self._lock)
        self._writers: Final[dict[int, Writer]] = {}
        """By producer id."""
        self._epochs: Final[dict[int, int]] = {}
        """The current epoch of each producer id: older ones write no more."""
        self._held: Final[dict[str, dict[int, _Held]]] = {}
        """By shard and producer id: what holds the stable offset up."""
        self._writing: Final[dict[int, int]] = {}
        """Writes under way, by producer id: a marker must come behind them."""
        self._aborted: Final[dict[str, list[tuple[int, AbortedRange]]]] = {}
        """By shard, ordered by the last offset."""

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
            held = self._held.setdefault(shard, {})
            if head.producer_id not in held:
                held[head.producer_id] = _Held(writer.bounds[shard], is_exact=False)
            self._writing[head.producer_id] = self._writing.get(head.producer_id, 0) + 1
            return 0

    def note_written(self, shard: str, head: BatchHead, first_offset: int | None) -> None:
        with self._lock:
            left = self._writing[head.producer_id] - 1
            if left:
                self._writing[head.producer_id] = left
            else:
                del self._writing[head.producer_id]
                self._written.notify_all()
            held = self._held.get(shard, {}).get(head.producer_id)
            if first_offset is not None and held is not None and not held.is_exact:
                held.first_offset = first_offset
                held.is_exact = True

    def stable_until(self, shard: str) -> int | None:
        if shard not in self._held:
            return None  # without the lock: nearly always so
        with self._lock:
            held = self._held.get(shard)
            return min(one.first_offset for one in held.values()) if held else None

    def aborted(self, shard: str, first: int, end: int) -> Sequence[AbortedTransaction]:
        if shard not in self._aborted:
            return ()
        with self._lock:
            ranges = self._aborted.get(shard, [])
            start = bisect_left(ranges, first, key=lambda one: one[0])
            return [
                AbortedTransaction(one.producer_id, one.first_offset)
                for _, one in ranges[start:]
                if one.first_offset < end
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
                    held = self._held.setdefault(shard, {})
                    held.setdefault(producer_id, _Held(bound, is_exact=False))

    def shut(self, producer_id: int) -> dict[str, int]:
        """Let a producer write no more; return the first offsets of what it wrote, by shard."""
        with self._lock:
            writer = self._writers.get(producer_id)
            if writer is not None:
                writer.is_open = False
            return {
                shard: held[producer_id].first_offset
                for shard, held in self._held.items()
                if producer_id in held
            }

    def is_writing(self, producer_id: int) -> bool:
        return producer_id in self._writing

    def wait_until_written(self, producer_id: int, seconds: float) -> bool:
        """Block until the writes of a producer that were let in are done."""
        with self._written:
            return self._written.wait_for(lambda: producer_id not in self._writing, seconds)

    def release(self, producer_id: int, aborted: Iterable[AbortedRange]) -> None:
        """The markers are written: nothing of this producer's transaction is open any more."""
        with self._lock:
            for one in aborted:
                self._add_aborted(one)
            self._writers.pop(producer_id, None)
            for shard in [shard for shard, held in self._held.items() if producer_id in held]:
                del self._held[shard][producer_id]
                if not self._held[shard]:
                    del self._held[shard]

    def load_aborted(self, ranges: Iterable[AbortedRange]) -> None:
        with self._lock:
            for one in ranges:
                self._add_aborted(one)

    def aborted_before(self, shard: str, earliest: int | None) -> list[AbortedRange]:
        """Take the ranges of a shard whose records are gone (None: all of them) out."""
        with self._lock:
            ranges = self._aborted.get(shard, [])
            gone = [one for last, one in ranges if earliest is None or last < earliest]
            kept = [pair for pair in ranges if pair[1] not in gone]
            if kept:
                self._aborted[shard] = kept
            else:
                self._aborted.pop(shard, None)
            return gone

    def shards_with_aborted(self) -> list[str]:
        with self._lock:
            return list(self._aborted)

    def _add_aborted(self, one: AbortedRange) -> None:
        insort(self._aborted.setdefault(one.shard, []), (one.last_offset, one))
