"""The open transactions of a node, in memory, for the data path: which producers may write to which
shards, and up to which offset a shard is stable.

A shard is stable up to the first record of its oldest open transaction. Readers get the ranges of
aborted transactions and skip their records. Writers of shards that sync have threads of their own,
so there is a lock; it is held for a few dictionary operations.

Invariants:

  * a shard is held before the first record of a transaction is written to it
  * the range of an aborted transaction is recorded before the shard is released
  * once a transaction has ended here, neither a late request to open it nor one to end it changes
    the next transaction of the same producer
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from kio.schema.errors import ErrorCode
from msgspec import Struct

from penstock.brokers.kafka.transactions.interface import AbortedTransaction
from penstock.engine.transactions import StableOffsets
from penstock.errors import BusyError, TransactionRefusedError
from penstock.meta import AbortedRange

PRODUCERS_MAX: Final = 200_000


class Writer(Struct):
    """A producer whose transaction is open: the shards it may write to, by their bounds."""

    transactional_id: str
    epoch: int
    bounds: dict[str, int]
    """Offsets at which the records of the transaction begin, or before them."""
    started_ms: int
    """Identifies a transaction of the producer; grows."""
    is_open: bool = True


class _Known(Struct):
    """A producer between its transactions."""

    epoch: int = 0
    """Writes with an older one are rejected."""
    over_ms: int = -1
    """The beginning of its last transaction that is over."""


class TransactionIndex:
    def __init__(self, limits: StableOffsets) -> None:
        self._limits: Final = limits
        self.stable_until: Final = limits.stable_until
        self._lock: Final = threading.Lock()
        self._written: Final = threading.Condition(self._lock)
        self._writers: Final[dict[int, Writer]] = {}
        """By producer id."""
        self._known: Final[OrderedDict[int, _Known]] = OrderedDict()
        """By producer id; the least recently used are evicted."""
        self._ending: Final[set[int]] = set()
        """Producers whose markers are being written."""
        self._writing: Final[dict[int, int]] = {}
        """Writes under way, by producer id: a marker must come after them."""

    # Calls of Produce and Fetch

    def check_write(
        self, shard: str, producer_id: int, epoch: int, transactional_id: str | None
    ) -> int:
        with self._lock:
            known = self._known.get(producer_id)
            if known is not None and epoch < known.epoch:
                return int(ErrorCode.invalid_producer_epoch)
            writer = self._writers.get(producer_id)
            if writer is None or not writer.is_open or shard not in writer.bounds:
                return int(ErrorCode.invalid_txn_state)
            if epoch != writer.epoch:
                return int(ErrorCode.invalid_producer_epoch)
            if transactional_id is not None and transactional_id != writer.transactional_id:
                return int(ErrorCode.invalid_txn_state)
            self._limits.hold(shard, producer_id, writer.bounds[shard], writer.started_ms)
            self._writing[producer_id] = self._writing.get(producer_id, 0) + 1
            return 0

    def is_open(self, shard: str, producer_id: int) -> bool:
        writer = self._writers.get(producer_id)  # without the lock: asked for every plain batch
        return writer is not None and shard in writer.bounds

    def is_enlisted(self, shard: str, producer_id: int, epoch: int) -> bool:
        writer = self._writers.get(producer_id)
        return (
            writer is not None
            and writer.is_open
            and writer.epoch == epoch
            and shard in writer.bounds
        )

    def finish_write(self, shard: str, producer_id: int, first_offset: int | None) -> None:
        if first_offset is not None:
            self._limits.set_first_offset(shard, producer_id, first_offset)
        with self._lock:
            left = self._writing[producer_id] - 1
            if left:
                self._writing[producer_id] = left
            else:
                del self._writing[producer_id]
                self._written.notify_all()

    def aborted(self, shard: str, first: int, end: int) -> Sequence[AbortedTransaction]:
        return [
            AbortedTransaction(aborted.producer_id, aborted.first_offset)
            for aborted in self._limits.aborted(shard, first, end)
        ]

    # Calls of the coordinator

    def record_epoch(self, producer_id: int, epoch: int) -> None:
        with self._lock:
            self._know(producer_id).epoch = epoch

    def remove_epoch(self, producer_id: int) -> None:
        with self._lock:
            self._known.pop(producer_id, None)

    def open(self, producer_id: int, writer: Writer, *, may_have_written: bool = False) -> None:
        """Let a producer write, to further shards if its transaction is open already; after a
        restart its shards count as written to."""
        with self._lock:
            self._check_next(producer_id, writer.started_ms, "opened")
            if self._know(producer_id).over_ms == writer.started_ms:
                raise _reject_late(producer_id, "opened")
            known = self._writers.get(producer_id)
            if known is None:
                self._writers[producer_id] = writer
            elif known.started_ms < writer.started_ms:
                raise BusyError(f"an older transaction of producer {producer_id} is left over")
            elif known.is_open:
                writer.bounds.update(known.bounds)
                known.bounds = writer.bounds
            else:
                raise _reject_late(producer_id, "opened")
            known_producer = self._know(producer_id)
            known_producer.epoch = max(known_producer.epoch, writer.epoch)
            if may_have_written:
                for shard, bound in writer.bounds.items():
                    self._limits.hold_written(shard, producer_id, bound, writer.started_ms)

    def begin_end(self, producer_id: int, epoch: int, started_ms: int) -> bool:
        """Stop a producer's writes, and other ends of its transaction until `end_is_over`.
        Return whether its writes here are known."""
        with self._lock:
            self._check_next(producer_id, started_ms, "ended")
            self._ending.add(producer_id)
            known = self._know(producer_id)
            known.epoch = max(known.epoch, epoch)
            writer = self._writers.get(producer_id)
            if writer is None or writer.started_ms != started_ms:
                return False
            writer.is_open = False
            return True

    def shut(self, producer_id: int, started_ms: int) -> None:
        """Reject further writes of a transaction; the next one of its producer may have begun."""
        with self._lock:
            writer = self._writers.get(producer_id)
            if writer is not None and writer.started_ms == started_ms:
                writer.is_open = False

    def wait_until_written(self, producer_id: int, seconds: float) -> bool:
        """Block until the accepted writes of a producer are done; False: not within `seconds`."""
        with self._written:
            return self._written.wait_for(lambda: producer_id not in self._writing, seconds)

    def release(
        self, producer_id: int, started_ms: int, aborted: Iterable[AbortedRange]
    ) -> list[str]:
        """Remove a transaction after its markers were written; return the shards that it held."""
        with self._lock:
            return self._release(producer_id, started_ms, aborted)

    def end_is_over(self, producer_id: int) -> None:
        with self._lock:
            self._ending.discard(producer_id)

    # Transactions of other coordinators

    def writers(self) -> list[tuple[int, Writer]]:
        with self._lock:
            return list(self._writers.items())

    def left_over(self, producer_id: int, started_ms: int) -> Writer | None:
        """Return the writer of an older transaction, which ended without this process."""
        with self._lock:
            writer = self._writers.get(producer_id)
            return writer if writer is not None and writer.started_ms < started_ms else None

    def release_left_over(
        self, producer_id: int, started_ms: int, aborted: Iterable[AbortedRange]
    ) -> list[str]:
        """Remove a transaction that ended without this process; return the shards that it held.
        Does nothing when a later transaction is open or an end is in progress."""
        with self._lock:
            writer = self._writers.get(producer_id)
            if writer is None or writer.started_ms != started_ms or producer_id in self._ending:
                return []
            return self._release(producer_id, started_ms, aborted)

    # The caller holds the lock

    def _release(
        self, producer_id: int, started_ms: int, aborted: Iterable[AbortedRange]
    ) -> list[str]:
        self._writers.pop(producer_id, None)
        known = self._know(producer_id)
        known.over_ms = max(known.over_ms, started_ms)
        return self._limits.release(producer_id, aborted)

    def _know(self, producer_id: int) -> _Known:
        known = self._known.get(producer_id)
        if known is None:
            known = self._known[producer_id] = _Known()
            if len(self._known) > PRODUCERS_MAX:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(producer_id)
        return known

    def _check_next(self, producer_id: int, started_ms: int, action: str) -> None:
        """Raise when a request is for a transaction that is over, or one is being ended."""
        if producer_id in self._ending:
            raise BusyError(f"the last transaction of producer {producer_id} is being ended")
        writer = self._writers.get(producer_id)
        newest = -1 if writer is None else writer.started_ms
        if started_ms < max(newest, self._know(producer_id).over_ms):
            raise _reject_late(producer_id, action)


def _reject_late(producer_id: int, action: str) -> TransactionRefusedError:
    return TransactionRefusedError(
        "bad_state", f"a transaction of producer {producer_id} is over and cannot be {action}"
    )
