"""Random histories of commits, resets, removals, failures, kills and power cuts, against a model.

The model is a dictionary of what was committed last. A kill changes nothing in it. After a power
cut an offset may be any of those committed since the last save, and nothing older.
"""

from __future__ import annotations

from typing import Literal

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.meta.simulated_database import SimulatedDatabase
from tests.offsets.flaky_meta import FlakyMeta

from penstock.errors import DeadlineError, StaleWriteError, UnknownGroupError
from penstock.offsets.config import CACHE_FAMILY
from penstock.offsets.manager import OffsetManager
from penstock.offsets.strategy import OffsetCommit
from penstock.record import Offset, ShardId
from penstock.testing import ManualClock

SHARDS = [ShardId("t-1", 0), ShardId("t-1", 1)]
GROUPS = ["g", "h"]

groups = st.sampled_from(GROUPS)
shards = st.sampled_from(SHARDS)
offsets = st.integers(0, 50)
Key = tuple[str, ShardId]


class Offsets(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.meta_database = SimulatedDatabase()
        self.meta = FlakyMeta(self.meta_database, self.clock)
        self.local = SimulatedDatabase(families=(CACHE_FAMILY,))
        self.manager = OffsetManager(self.meta, self.local, clock=self.clock)
        self.current: dict[Key, int] = {}
        self.since_save: dict[Key, list[int | None]] = {}
        self.known: set[str] = set()

    # -- what consumers do ------------------------------------------------------------------------

    @rule(group=groups, shard=shards, offset=offsets, enable_cache=st.booleans())
    def commit(self, group: str, shard: ShardId, offset: int, enable_cache: bool) -> None:
        self.manager.commit_offset(group, shard, offset, enable_cache=enable_cache)
        self.note(group, shard, offset, is_saved=not enable_cache)

    @rule(group=groups, first=offsets, second=offsets, enable_cache=st.booleans())
    def commit_both(self, group: str, first: int, second: int, enable_cache: bool) -> None:
        commits = dict(zip(SHARDS, (first, second), strict=True))
        self.manager.commit_offsets(
            group,
            {shard: OffsetCommit(Offset(offset)) for shard, offset in commits.items()},
            enable_cache=enable_cache,
        )
        for shard, offset in commits.items():
            self.note(group, shard, offset, is_saved=not enable_cache)

    @rule(group=groups, shard=shards, offset=offsets)
    def reset(self, group: str, shard: ShardId, offset: int) -> None:
        self.manager.reset_offsets(group, {shard: OffsetCommit(Offset(offset))})
        self.note(group, shard, offset, is_saved=True)

    @rule(group=groups, shard=shards, offset=offsets, expected=st.none() | offsets)
    def compare_and_set(
        self, group: str, shard: ShardId, offset: int, expected: int | None
    ) -> None:
        current = self.current.get((group, shard))
        try:
            self.manager.compare_and_set(group, shard, offset, expected=expected)
        except StaleWriteError:
            assert current != expected
        else:
            assert current == expected
            self.note(group, shard, offset, is_saved=True)
        self.saved(group)
        self.known.add(group)

    @rule(group=groups, shard=shards)
    def delete_offset(self, group: str, shard: ShardId) -> None:
        try:
            count = self.manager.delete_offsets(group, [shard])
        except UnknownGroupError:
            assert group not in self.known
        else:
            assert count == ((group, shard) in self.current)
        self.saved(group)
        self.forget(group, shard)

    @rule(group=groups)
    def delete_group(self, group: str) -> None:
        try:
            self.manager.delete_group(group)
        except UnknownGroupError:
            assert group not in self.known
        for shard in SHARDS:
            self.forget(group, shard)
        self.known.discard(group)

    # -- what happens to them ---------------------------------------------------------------------

    @rule()
    def save(self) -> None:
        self.manager.flush()
        for group in GROUPS:
            self.saved(group)

    @rule(failure=st.sampled_from(["before", "after"]))
    def fail_to_save(self, failure: Literal["before", "after"]) -> None:
        self.meta.fails = failure
        try:
            self.manager.flush()
        except DeadlineError:
            pass
        else:
            assert self.manager.cache.pending_count == 0
        self.meta.fails = None

    @rule()
    def kill(self) -> None:
        self.restart(self.local.after_kill(), self.meta_database.after_kill())

    @rule()
    def stop_and_start(self) -> None:
        self.manager.stop()
        for group in GROUPS:
            self.saved(group)
        self.restart(self.local.after_power_cut(), self.meta_database.after_kill())

    @rule(data=st.data())
    def cut_power(self, data: st.DataObject) -> None:
        unsynced = len(self.local.batches) - self.local.synced
        kept = data.draw(st.integers(0, unsynced))
        self.restart(self.local.after_power_cut(kept), self.meta_database.after_power_cut())
        for key in [(group, shard) for group in GROUPS for shard in SHARDS]:
            found = self.manager.get_offset(*key)
            offset = None if found is None else found.offset
            possible = self.since_save.get(key, [self.current.get(key)])
            assert offset in possible, (key, offset, possible)
            if offset is None:
                self.current.pop(key, None)
            else:
                self.current[key] = offset
            # What survived is in the meta service or still waits; either way, nothing older.
            self.since_save[key] = possible[: possible.index(offset) + 1]

    # -- the model --------------------------------------------------------------------------------

    def note(self, group: str, shard: ShardId, offset: int, *, is_saved: bool) -> None:
        key = (group, shard)
        history = self.since_save.setdefault(key, [self.current.get(key)])
        self.current[key] = offset
        self.since_save[key] = [offset] if is_saved else [*history, offset]
        self.known.add(group)

    def saved(self, group: str) -> None:
        for shard in SHARDS:
            key = (group, shard)
            self.since_save[key] = [self.current.get(key)]

    def forget(self, group: str, shard: ShardId) -> None:
        self.current.pop((group, shard), None)
        self.since_save[group, shard] = [None]

    def restart(self, local: SimulatedDatabase, meta_database: SimulatedDatabase) -> None:
        self.meta.close()
        self.local, self.meta_database = local, meta_database
        self.meta = FlakyMeta(meta_database, self.clock)
        self.manager = OffsetManager(self.meta, local, clock=self.clock)

    @invariant()
    def shows_what_was_committed_last(self) -> None:
        for group in GROUPS:
            expected = {
                shard: offset for (name, shard), offset in self.current.items() if name == group
            }
            found = self.manager.get_offsets(group)
            assert {shard: one.offset for shard, one in found.items()} == expected
            for shard in SHARDS:
                one = self.manager.get_offset(group, shard)
                assert (None if one is None else one.offset) == expected.get(shard)

    @invariant()
    def the_cache_holds_what_waits_and_nothing_else(self) -> None:
        assert len(self.local.rows(CACHE_FAMILY)) == self.manager.cache.pending_count

    def teardown(self) -> None:
        self.meta.close()


TestOffsets = Offsets.TestCase
