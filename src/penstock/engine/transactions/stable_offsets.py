"""What transactions keep from readers of committed records: shards that one holds up, and the
records of those that were aborted.

A shard is stable up to the first record of its oldest open transaction. Of an aborted one only the
range is known, with its producer; which batches in it are that producer's is found by their heads,
once, with the first read there.

Bounds: a range for each aborted transaction whose records are still there; they are forgotten with
their records. Any thread may call; the lock is held for dictionary operations only.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from penstock.engine.transactions.aborted_offsets import BatchReader, find_aborted
from penstock.meta import AbortedRange
from penstock.record import ShardId

Ranges = Sequence[tuple[int, int]]


class _OpenTransaction(Struct):
    started_ms: int
    """Which transaction of its producer it is: grows with every one."""
    first_offset: int
    is_exact: bool
    """Whether it stays where it is with the next write."""


class StableOffsets:
    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._open: Final[dict[str, dict[int, _OpenTransaction]]] = {}
        """By shard and producer id."""
        self._aborted: Final[dict[str, list[tuple[int, AbortedRange]]]] = {}
        """By shard, ordered by the last offset."""
        self._found: Final[dict[AbortedRange, Ranges]] = {}

    # Readers

    @property
    def holds_any(self) -> bool:
        """Whether a transaction holds any shard up at the moment."""
        return bool(self._open)

    def touches(self, shard: str) -> bool:
        """Say whether readers of a shard must ask for anything else here. Cheap."""
        return shard in self._open or shard in self._aborted

    def stable_until(self, shard: str) -> int | None:
        """Return the first offset of the oldest open transaction, or None when none is open."""
        if shard not in self._open:
            return None  # without the lock: nearly always so
        with self._lock:
            held = self._open.get(shard)
            return min(entry.first_offset for entry in held.values()) if held else None

    def aborted(self, shard: str, first: int, end: int) -> list[AbortedRange]:
        """Return the aborted transactions that may have records in [first, end)."""
        if shard not in self._aborted:
            return []
        with self._lock:
            ranges = self._aborted.get(shard, [])
            start = bisect_left(ranges, first, key=lambda entry: entry[0])
            return [entry for _, entry in ranges[start:] if entry.first_offset < end]

    def decided(
        self, shard: str, first: int, end: int, most: int
    ) -> tuple[int, list[AbortedRange]]:
        """Return up to which offset all transactions of a shard are over whose commit offset was
        `end` before this call, and those that were aborted with records from `first` on. With more
        than `most` of them the offset is one before which there are fewer, if there is one."""
        # In this order: a transaction holds a shard up before it writes to it, and what was
        # aborted is known before the shard is released.
        held = self.stable_until(shard)
        until = end if held is None else min(held, end)
        aborted = self.aborted(shard, first, until)
        if len(aborted) > most:
            bound = sorted(transaction.first_offset for transaction in aborted)[most]
            if bound > first:
                return bound, [
                    transaction for transaction in aborted if transaction.first_offset < bound
                ]
        return until, aborted

    def hidden(self, shard: ShardId, first: int, end: int, reader: BatchReader) -> Ranges:
        """Return the ranges of aborted records in [first, end), ascending. May read the heads of
        batches."""
        ranges: list[tuple[int, int]] = []
        for entry in self.aborted(shard.name, first, end):
            batches = self._found.get(entry)
            if batches is None:
                batches = find_aborted(reader, shard, entry)
                with self._lock:
                    if (entry.last_offset, entry) in self._aborted.get(entry.shard, ()):
                        self._found[entry] = batches
            ranges += batches
        return sorted(ranges)

    # What holds a shard up

    def hold(self, shard: str, producer_id: int, bound: int, started_ms: int = 0) -> None:
        """Hold a shard up for a producer, from `bound` on at the latest; again: nothing. The
        transaction that began at `started_ms` replaces an earlier one of the producer, which is
        over."""
        with self._lock:
            held = self._open.setdefault(shard, {})
            known = held.get(producer_id)
            if known is None or known.started_ms < started_ms:
                held[producer_id] = _OpenTransaction(started_ms, bound, is_exact=False)

    def hold_written(self, shard: str, producer_id: int, bound: int, started_ms: int = 0) -> None:
        """Hold a shard up from `bound` on, where a producer may have written already: its next
        record is not its first."""
        with self._lock:
            held = self._open.setdefault(shard, {})
            known = held.get(producer_id)
            if known is None or known.started_ms < started_ms:
                held[producer_id] = _OpenTransaction(started_ms, bound, is_exact=True)
            elif known.started_ms == started_ms:
                known.first_offset = min(known.first_offset, bound)
                known.is_exact = True

    def drop_shard(self, shard: str) -> None:
        """Hold a shard up for no producer: what is open there is loaded anew."""
        with self._lock:
            self._open.pop(shard, None)

    def set_first_offset(self, shard: str, producer_id: int, first_offset: int) -> None:
        """The first record of a transaction is here, not at its bound."""
        with self._lock:
            held = self._open.get(shard, {}).get(producer_id)
            if held is not None and not held.is_exact:
                held.first_offset = first_offset
                held.is_exact = True

    def firsts(self, producer_id: int) -> dict[str, int]:
        """Return where a producer holds shards up."""
        with self._lock:
            return {
                shard: held[producer_id].first_offset
                for shard, held in self._open.items()
                if producer_id in held
            }

    def transactions(self) -> set[tuple[int, int]]:
        """Return what holds a shard up: producers, and when their transactions began."""
        with self._lock:
            return {
                (producer_id, transaction.started_ms)
                for held in self._open.values()
                for producer_id, transaction in held.items()
            }

    def release(
        self, producer_id: int, aborted: Iterable[AbortedRange] = (), *, until_ms: int | None = None
    ) -> list[str]:
        """Hold nothing up any more for the transactions of a producer that began at `until_ms` or
        before (None: for any), whose aborted ranges are added first; return the shards that it
        held up."""
        with self._lock:
            for entry in aborted:
                self._add_aborted(entry)
            shards = [
                shard
                for shard, held in self._open.items()
                if producer_id in held
                and (until_ms is None or held[producer_id].started_ms <= until_ms)
            ]
            for shard in shards:
                del self._open[shard][producer_id]
                if not self._open[shard]:
                    del self._open[shard]
            return shards

    # What was aborted

    def load_aborted(self, ranges: Iterable[AbortedRange]) -> None:
        with self._lock:
            for entry in ranges:
                self._add_aborted(entry)

    def remove_aborted(self, shard: str, earliest: int | None) -> list[AbortedRange]:
        """Take the ranges of a shard whose records are gone (None: all of them) out."""
        with self._lock:
            ranges = self._aborted.get(shard, [])
            gone = [entry for last, entry in ranges if earliest is None or last < earliest]
            kept = [pair for pair in ranges if pair[1] not in gone]
            if kept:
                self._aborted[shard] = kept
            else:
                self._aborted.pop(shard, None)
            for entry in gone:
                self._found.pop(entry, None)
            return gone

    def shards_with_aborted(self) -> list[str]:
        with self._lock:
            return list(self._aborted)

    def _add_aborted(self, entry: AbortedRange) -> None:
        ranges = self._aborted.setdefault(entry.shard, [])
        if (entry.last_offset, entry) not in ranges:
            insort(ranges, (entry.last_offset, entry))


def is_within(ranges: Ranges, offset: int) -> bool:
    """Say whether one of the ascending ranges, which do not overlap, holds `offset`."""
    index = bisect_right(ranges, offset, key=lambda entry: entry[0]) - 1
    return index >= 0 and offset < ranges[index][1]
