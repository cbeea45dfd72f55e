"""Which leader wrote which offsets of one shard: (epoch, first offset), ascending in both.

A replica that comes back asks its leader where the newest epoch that it knows ends, and cuts its
own log there; this table answers. It is derived from the epochs that records carry, and is cut
with the queue.

Where it differs from Kafka's table, it does so because an epoch has an entry here only once a
record was written in it: an epoch beyond the newest entry is answered with that entry and the end
of the log, where Kafka would say "unknown". Both send the replica to the same offset.

Entries are replaced as a whole, never changed in place: readers need no lock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, Self

NO_EPOCH: Final = -1
"""The epoch of a shard into which nothing was written."""

Entry = tuple[int, int]


def _first_offset(entry: Entry) -> int:
    return entry[1]


class EpochTable:
    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: tuple[Entry, ...] = ()

    @property
    def latest(self) -> int:
        """The newest epoch with a record, or NO_EPOCH."""
        entries = self._entries
        return entries[-1][0] if entries else NO_EPOCH

    def add(self, epoch: int, offset: int) -> None:
        """Learn that the record at `offset` was written in `epoch`.

        Records come in order. One that goes back, in offset or in epoch, replaces what it
        contradicts, as a record in the log replaces all of its shard from its offset on.
        """
        assert epoch >= 0, f"epoch {epoch} is negative"
        assert offset >= 0, f"offset {offset} is negative"
        entries = self._entries
        if entries and entries[-1][0] == epoch and entries[-1][1] <= offset:
            return
        kept = len(entries)
        while kept and (entries[kept - 1][1] >= offset or entries[kept - 1][0] > epoch):
            kept -= 1
        if not kept or entries[kept - 1][0] < epoch:
            self._entries = (*entries[:kept], (epoch, offset))
        else:
            self._entries = entries[:kept]

    def end_of(self, epoch: int, next_offset: int) -> tuple[int, int]:
        """Return the largest epoch that is not above `epoch`, and the offset at which it ends.

        `next_offset` is the end of the shard, where its newest epoch ends. When every entry is
        above `epoch`, those older offsets are gone: the answer is `epoch` itself, ending where the
        oldest entry begins. An empty table answers NO_EPOCH and `next_offset`.
        """
        entries = self._entries
        if not entries:
            return NO_EPOCH, next_offset
        above = bisect_right(entries, epoch, key=lambda entry: entry[0])
        end = entries[above][1] if above < len(entries) else next_offset
        return (entries[above - 1][0] if above else epoch), end

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of the record at `offset`, or NO_EPOCH below the oldest entry."""
        entries = self._entries
        index = bisect_right(entries, offset, key=_first_offset)
        return entries[index - 1][0] if index else NO_EPOCH

    def truncate_from(self, offset: int) -> None:
        """Forget epochs that begin at or past `offset`: their records are gone."""
        entries = self._entries
        self._entries = entries[: bisect_left(entries, offset, key=_first_offset)]

    def drop_before(self, offset: int) -> None:
        """Forget epochs that end at or below `offset`. The newest one always stays: a shard that
        retention emptied still knows who wrote last."""
        entries = self._entries
        index = bisect_right(entries, offset, key=_first_offset)
        if index:
            self._entries = ((entries[index - 1][0], offset), *entries[index:])

    def to_list(self) -> list[Entry]:
        return list(self._entries)

    @classmethod
    def from_list(cls, entries: Iterable[Entry]) -> Self:
        """Restore what `to_list` gave; raise ValueError when the entries do not ascend."""
        new = cls()
        new._entries = tuple((epoch, offset) for epoch, offset in entries)
        for before, after in pairwise(((-1, -1), *new._entries)):
            if before[0] >= after[0] or before[1] >= after[1]:
                raise ValueError(f"epoch entry {after} does not follow {before}")
        return new

    def __len__(self) -> int:
        return len(self._entries)
