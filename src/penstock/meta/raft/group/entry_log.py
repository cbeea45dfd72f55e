"""The entries of one group, as rows in the database.

Entries are dense: the log holds exactly the indexes (truncated, last]. Every change goes into the
batch of a turn, which the caller writes.
"""

from __future__ import annotations

from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.database import Batch, Database
from penstock.meta.storage.groups import GroupName


class EntryLog:
    def __init__(
        self, database: Database, group: GroupName, truncated: int, rows: list[tuple[int, bytes]]
    ) -> None:
        self._database = database
        self._family = group.log_family
        self._group = group.number
        self._sizes = {index: len(row) for index, row in rows}
        self.truncated = truncated
        """Up to this index the entries are gone."""
        self.last = truncated + len(rows)
        self.size = sum(self._sizes.values())
        """Bytes of all entries."""

    def __len__(self) -> int:
        return len(self._sizes)

    def write(self, batch: Batch, rows: list[tuple[int, bytes]]) -> None:
        """Append rows; they replace entries from the first index on that were not committed."""
        if not rows:
            return
        first = rows[0][0]
        if first <= self.last:
            # A new leader replaces what the old one could not commit.
            self._delete(batch, first, self.last)
        for index, row in rows:
            batch.put(self._family, fmt.entry_key(self._group, index), row)
            self._sizes[index] = len(row)
            self.size += len(row)
        self.last = rows[-1][0]

    def truncate(self, batch: Batch, until: int) -> None:
        """Drop the entries up to `until`, which the log has."""
        row = self._database.get(self._family, fmt.entry_key(self._group, until))
        assert row is not None, "the log is dense"
        self._delete(batch, self.truncated + 1, until)
        self._put_truncation(batch, until, term=fmt.ENTRY.unpack_from(row)[0])

    def reset(self, batch: Batch, index: int, term: int) -> None:
        """Drop all entries: the log starts after `index`, with a state that was received."""
        first, end = fmt.entry_key(self._group, 0), fmt.entries_end(self._group)
        batch.delete_range(self._family, first, end)
        self._put_truncation(batch, index, term)
        self._sizes, self.size = {}, 0
        self.last = index

    def index_leaving(self, size: int) -> int:
        """Return the index up to which entries must go so that at most `size` bytes are left."""
        index, left = self.truncated, self.size
        while left > size and index < self.last:
            index += 1
            left -= self._sizes[index]
        return index

    def _delete(self, batch: Batch, first: int, last: int) -> None:
        start, end = (fmt.entry_key(self._group, index) for index in (first, last + 1))
        batch.delete_range(self._family, start, end)
        for index in range(first, last + 1):
            self.size -= self._sizes.pop(index)

    def _put_truncation(self, batch: Batch, index: int, term: int) -> None:
        batch.put(self._family, fmt.cut_key(self._group), fmt.CUT.pack(index, term))
        self.truncated = index
