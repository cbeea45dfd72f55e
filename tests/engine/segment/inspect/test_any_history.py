"""Whatever was done to a store, it is whole, and a view of it says what the store says."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from tests.engine.segment.readonly.sample_store import EVENTS, ORDERS, QUIET

from penstock.engine.segment.inspect import rebuild, verify
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.store import SegmentStore
from penstock.record import Offset, QueueKind, Record, ShardId, StoredRecord

SHARDS = {
    ORDERS: QueueKind.SIMPLE,
    ShardId("orders", 1): QueueKind.SIMPLE,
    EVENTS: QueueKind.BATCH,
}
ALL = 1 << 30
Contents = dict[ShardId, tuple[int, int, list[StoredRecord], list[list[Offset]]]]


def contents(store: SegmentStore | ReadOnlyStore) -> Contents:
    """Return everything that can be read, by offset and by key."""
    found: Contents = {}
    for shard in store.shards():
        bounds = store.bounds(shard)
        keyed = [[r.offset for r in store.by_key(shard, b"k%d" % n)] for n in range(5)]
        records = store.read(shard, 0, max_records=ALL, max_size=ALL)
        found[shard] = (bounds.earliest, bounds.commit, records, keyed)
    return found


class History:
    """A store to which random things are done."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path = path
        self._random = random.Random(seed)
        self._number = 0
        self._kills = 0
        self._store = SegmentStore.open(str(path), QUIET)

    def run(self, steps: int) -> None:
        actions = [
            *([self._append] * 6),
            *([self._append_group] * 4),
            *(self._delete, self._delete_before, self._truncate, self._remove_oldest),
            *(self._store_upkeep, self._reopen, self._kill, self._rebuild, self._drop),
        ]
        for _ in range(steps):
            shard = self._random.choice(list(SHARDS))
            self._store.create_shard(shard, SHARDS[shard])
            self._random.choice(actions)(shard)
        self._reopen(ORDERS)
        self._store.close()

    def _record(self) -> Record:
        self._number += 1
        choose = self._random
        return Record(
            value=None if choose.random() < 0.05 else b"v%d" % self._number,
            key=b"k%d" % choose.randrange(5) if choose.random() < 0.7 else None,
            tags=tuple(choose.sample(["t", "u", "ü"], choose.randrange(3))),
            headers=(("pad", bytes(choose.choice([0, 10, 300]))),),
            timestamp_ms=choose.randrange(1_000),
        )

    def _append(self, shard: ShardId) -> None:
        for _ in range(self._random.randrange(1, 50)):
            self._store.append(shard, self._record())

    def _append_group(self, shard: ShardId) -> None:
        count = self._random.randrange(1, 20)
        self._store.append_many(shard, [self._record() for _ in range(count)])

    def _offset(self, shard: ShardId) -> int:
        bounds = self._store.bounds(shard)
        return self._random.randint(bounds.earliest, bounds.commit)

    def _delete(self, shard: ShardId) -> None:
        self._store.delete_offsets(shard, [self._offset(shard) for _ in range(3)])

    def _delete_before(self, shard: ShardId) -> None:
        self._store.delete_before(shard, self._offset(shard))

    def _truncate(self, shard: ShardId) -> None:
        self._store.truncate(shard, self._offset(shard))

    def _drop(self, shard: ShardId) -> None:
        self._store.delete_shard(shard)

    def _remove_oldest(self, _: ShardId) -> None:
        self._store.retention.remove_oldest_file()

    def _store_upkeep(self, _: ShardId) -> None:
        self._store.run_upkeep()
        assert contents(ReadOnlyStore.open(str(self._path))) == contents(self._store)

    def _reopen(self, _: ShardId) -> None:
        before = contents(self._store)
        self._store.close()
        assert verify(str(self._path)).findings == []
        assert contents(ReadOnlyStore.open(str(self._path))) == before
        self._store = SegmentStore.open(str(self._path), QUIET)
        assert contents(self._store) == before

    def _kill(self, _: ShardId) -> None:
        """Go on in a copy of the open store: what a killed process leaves in the page cache."""
        before = contents(self._store)
        self._kills += 1
        killed = self._path.with_name(f"killed-{self._kills}")
        shutil.copytree(self._path, killed)
        self._store.close()
        assert verify(str(killed)).findings == []
        self._path = killed
        self._store = SegmentStore.open(str(killed), QUIET)
        assert contents(self._store) == before

    def _rebuild(self, _: ShardId) -> None:
        before = contents(self._store)
        self._store.close()
        rebuild(str(self._path))
        assert verify(str(self._path)).findings == []
        self._store = SegmentStore.open(str(self._path), QUIET)
        assert contents(self._store) == before


# The long ones had units of records behind the end of a queue that was cut, dropped, or rebuilt.
@pytest.mark.parametrize(("seed", "steps"), [(0, 25), (1, 25), (2, 25), (22, 120), (52, 120)])
def test_a_store_with_any_history_is_whole(tmp_path: Path, seed: int, steps: int) -> None:
    History(tmp_path / "store", seed).run(steps)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3, 100))
def test_a_store_with_any_long_history_is_whole(tmp_path: Path, seed: int) -> None:
    History(tmp_path / "store", seed).run(steps=120)
