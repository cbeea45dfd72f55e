"""Which records of a shard a compaction removes: one set of rules for all engines.

    superseded   the key was written again later
    aborted      of a transaction that came to nothing
    tombstones   a null value that says "this key is gone", once every reader could have read it

A tombstone goes when the store has had it for `tombstone_retention_ms`, and only in a pass that
finds nothing left of what it replaced. So a reader that began before the older records went has at
least the time between two passes to come across it, also on a node that was down for longer.

Records that came within `compaction_lag_ms` end a pass: they stay, and replace nothing yet. Times
are those of the store, which do not go back within a shard, and not those that producers claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.engine.contract import ShardConfig
from penstock.engine.transactions.stable_offsets import Ranges, is_within
from penstock.record import StoredRecord


class CompactionRules(NamedTuple):
    """What one pass may touch."""

    now_ms: int
    lag_ms: int
    tombstone_ms: int

    @classmethod
    def of(cls, config: ShardConfig, now_ms: int) -> CompactionRules:
        return cls(now_ms, config.compaction_lag_ms, config.tombstone_retention_ms)

    def is_young(self, stored_ms: int) -> bool:
        """Say whether a record is left alone."""
        return self.lag_ms > 0 and stored_ms > self.now_ms - self.lag_ms

    def may_go(self, stored_ms: int) -> bool:
        """Say whether a tombstone has been kept for long enough."""
        return stored_ms <= self.now_ms - self.tombstone_ms

    def again(self, tombstone_ms: int | None, young_ms: int | None) -> int | None:
        """Return when another pass pays: when the last of the tombstones that wait is old enough,
        or the first of the records that are too young."""
        moments = []
        if tombstone_ms is not None:
            moments.append(max(self.now_ms, tombstone_ms + self.tombstone_ms))
        if young_ms is not None:
            moments.append(young_ms + self.lag_ms)
        return min(moments, default=None)


class Removal(NamedTuple):
    offsets: list[int]
    size: int
    again_ms: int | None


_Place = tuple[int, int]
"""Offset and size of a record; a plain tuple, since there is one for each."""


class KeyedRows(NamedTuple):
    """Records in a row, each with a key and a value."""

    offsets: Sequence[int]
    keys: Sequence[bytes]
    sizes: Sequence[int]
    stored_ms: Sequence[int]


class _Tombstone(NamedTuple):
    stored_ms: int
    is_alone: bool
    """Whether this pass found nothing that it replaced."""


class CompactionPass:
    """Takes the live records of a shard, oldest first. Memory holds each key once."""

    def __init__(self, rules: CompactionRules, until: int, aborted: Ranges = ()) -> None:
        """Records from `until` on replace nothing: their transaction may still be aborted. Those in
        the ranges of `aborted` ones replace nothing, and go."""
        self._rules: Final = rules
        self._until: Final = until
        self._aborted: Final = aborted
        self._newest: Final[dict[bytes, _Place]] = {}
        self._tombstones: Final[dict[bytes, _Tombstone]] = {}
        self._gone: Final[list[int]] = []
        self._size = 0
        self._young_ms: int | None = None

    def add_record(self, record: StoredRecord) -> bool:
        """Add the next record; return False when the pass ends before it."""
        value_size = None if record.value is None else len(record.value)
        return self.add_row(record.offset, record.key, value_size, record.store_timestamp_ms)

    def add_rows(self, rows: KeyedRows) -> bool:
        """Add the next records, in one step where nothing is special about one of them."""
        last = rows.offsets[-1]
        if (
            self._aborted
            or self._tombstones
            or last >= self._until
            or self._rules.is_young(max(rows.stored_ms))
        ):
            return all(map(self._add_keyed, *rows))
        page = dict(zip(rows.keys, zip(rows.offsets, rows.sizes, strict=True), strict=True))
        replaced = list(filter(None, map(self._newest.get, page)))
        if len(page) < len(rows.keys):
            kept = {offset for offset, _ in page.values()}
            together = zip(rows.offsets, rows.sizes, strict=True)
            replaced += [place for place in together if place[0] not in kept]
        self._gone.extend(offset for offset, _ in replaced)
        self._size += sum(size for _, size in replaced)
        self._newest.update(page)
        return True

    def _add_keyed(self, offset: int, key: bytes, size: int, stored_ms: int) -> bool:
        return self.add_row(offset, key, size - len(key), stored_ms)

    def add_row(
        self, offset: int, key: bytes | None, value_size: int | None, stored_ms: int
    ) -> bool:
        """Add the next record, of which only this is known; without a size it has no value."""
        if offset >= self._until:
            return False
        if self._rules.is_young(stored_ms):
            self._young_ms = stored_ms
            return False
        size = (value_size or 0) + len(key or b"")
        if self._aborted and is_within(self._aborted, offset):
            self._remove((offset, size))
            return True
        if key is None:
            return True
        before = self._newest.get(key)
        if before is not None:
            self._remove(before)
        self._newest[key] = offset, size
        if value_size is None:
            self._tombstones[key] = _Tombstone(stored_ms, before is None)
        elif self._tombstones:
            self._tombstones.pop(key, None)
        return True

    def _remove(self, place: _Place) -> None:
        offset, size = place
        self._gone.append(offset)
        self._size += size

    def finish(self, tombstones_until: int | None = None) -> Removal:
        """Return what goes; tombstones only below `tombstones_until`."""
        waiting_ms: int | None = None
        for key, tombstone in self._tombstones.items():
            place = self._newest[key]
            if (
                tombstone.is_alone
                and self._rules.may_go(tombstone.stored_ms)
                and (tombstones_until is None or place[0] < tombstones_until)
            ):
                self._remove(place)
            else:
                waiting_ms = max(waiting_ms or 0, tombstone.stored_ms)
        self._gone.sort()
        return Removal(self._gone, self._size, self._rules.again(waiting_ms, self._young_ms))
