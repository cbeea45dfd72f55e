"""Random histories of one store, with kills and power cuts, against a list of what was done.

Everything that happens to a store is written to one log, so what survives a crash is a prefix of
the history: up to some position, which is not before the last sync. The model is the list of what
was done, each with the position at which the log ended then. After a crash the store says where its
log ends; the rest of the list is forgotten, and everything that can be read must agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)
from tests.engine.segment.batches import inner_batch
from tests.engine.segment.rig import Rig
from tests.engine.segment.shard_model import ShardModel, check_shard

from penstock.errors import UnknownShardError
from penstock.record import Flush, Producer, QueueKind, Record, ShardId
from penstock.testing import FaultyDisk, ManualClock

QUICK = ShardId("quick", 0)  # acknowledged in the page cache
SAFE = ShardId("safe", 0)  # acknowledged on the device
BATCHED = ShardId("batched", 3)
SHARDS = {
    QUICK: (QueueKind.SIMPLE, Flush.ASYNC),
    SAFE: (QueueKind.SIMPLE, Flush.SYNC),
    BATCHED: (QueueKind.BATCH, Flush.ASYNC),
}
shards = st.sampled_from([QUICK, QUICK, SAFE, BATCHED])
simple_shards = st.sampled_from([QUICK, QUICK, SAFE])
contents = st.tuples(
    st.sampled_from([0, 1, 40, 700, 3000]),
    st.sampled_from([None, b"red", b"green", b"a b", b"\xff"]),
    st.sampled_from([(), ("hot",), ("cold",), ("hot", "cold")]),
    st.integers(0, 50),
)
Model = dict[ShardId, ShardModel]
PORTIONS = 20


@dataclass(frozen=True)
class Done:
    """Something that was done: the log ended at `end` then."""

    end: int
    apply: Callable[[Model], None]


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        clock = ManualClock()
        self.rig = Rig(disk=FaultyDisk(clock=clock, page_size=512), clock=clock)
        self.history: list[Done] = []
        self.model: Model = {}
        self.durable = 0
        self.number = 0

    @initialize()
    def create(self) -> None:
        for shard, (kind, flush) in SHARDS.items():
            self.rig.store.create_shard(shard, kind, flush)
            self.do(partial(_add_model, shard))

    # What is done

    def do(self, apply: Callable[[Model], None], *, synced: bool = False) -> None:
        apply(self.model)
        end = self.rig.store.bounds(QUICK).end_position
        self.history.append(Done(int(end), apply))
        if synced:
            self.durable = int(end)

    def make(self, content: tuple[int, bytes | None, tuple[str, ...], int]) -> Record:
        size, key, tags, minute = content
        self.number += 1
        return Record(
            b"%d:" % self.number + b"x" * size,
            key=key,
            tags=tags,
            timestamp_ms=1_700_000_000_000 + minute * 60_000 + self.number,
        )

    def appended(self, shard: ShardId, records: list[Record], offset: int) -> None:
        assert offset == self.model[shard].next_offset
        self.do(lambda model: model[shard].add(records), synced=SHARDS[shard][1] is Flush.SYNC)

    @rule(shard=shards, content=contents)
    def append(
        self, shard: ShardId, content: tuple[int, bytes | None, tuple[str, ...], int]
    ) -> None:
        record = self.make(content)
        self.appended(shard, [record], self.rig.store.append(shard, record))

    @rule(shard=shards, group=st.lists(contents, min_size=2, max_size=5))
    def append_many(
        self, shard: ShardId, group: list[tuple[int, bytes | None, tuple[str, ...], int]]
    ) -> None:
        records = [self.make((min(content[0], 700), *content[1:])) for content in group]
        self.appended(shard, records, self.rig.store.append_many(shard, records))

    @rule(group=st.lists(contents, min_size=1, max_size=4))
    def append_batch(self, group: list[tuple[int, bytes | None, tuple[str, ...], int]]) -> None:
        # The messages of a batch share one timestamp, which is the batch's.
        made = [self.make((min(content[0], 700), *content[1:])) for content in group]
        born = made[0].timestamp_ms
        records = [
            Record(each.value, key=each.key, tags=each.tags[:1], timestamp_ms=born)
            for each in made
            if each.key not in (b"a b", b"\xff")
        ]
        if records:
            body = inner_batch(records)
            offset = self.rig.store.append_batch(BATCHED, body, len(records), born_ms=born)
            self.appended(BATCHED, records, offset)

    @rule(
        shard=simple_shards, who=st.integers(1, 2), group=st.lists(contents, min_size=1, max_size=3)
    )
    def append_as_producer(
        self, shard: ShardId, who: int, group: list[tuple[int, bytes | None, tuple[str, ...], int]]
    ) -> None:
        records = [self.make((min(content[0], 700), *content[1:])) for content in group]
        sequence = self.model[shard].sequence_of(who)
        offset = self.rig.store.append_many(shard, records, Producer(who, 0, sequence))
        assert offset == self.model[shard].next_offset
        self.do(
            lambda model: model[shard].add_as(who, records),
            synced=SHARDS[shard][1] is Flush.SYNC,
        )
        again, repeated = self.rig.store.append_once(shard, records, Producer(who, 0, sequence))
        assert (again, repeated) == (offset, True)

    @rule(shard=shards, picks=st.lists(st.integers(0, 40), min_size=1, max_size=3))
    def delete(self, shard: ShardId, picks: list[int]) -> None:
        model = self.model[shard]
        chosen = {pick for pick in picks if model.floor <= pick < model.next_offset}
        before = chosen - model.deleted
        assert self.rig.store.delete_offsets(shard, picks) == len(before)
        self.do(
            lambda model: model[shard].deleted.update(chosen),
            synced=SHARDS[shard][1] is Flush.SYNC and bool(before),
        )

    @rule(shard=shards, offset=st.integers(0, 25))
    def delete_before(self, shard: ShardId, offset: int) -> None:
        model = self.model[shard]
        floor = max(model.floor, min(offset, model.next_offset))
        changed = floor > model.floor
        # A shard whose batches were cut off below its floor is empty: it begins where it ends.
        assert self.rig.store.delete_before(shard, offset) == min(floor, model.next_offset)
        self.do(
            lambda model: model[shard].raise_floor(floor),
            synced=SHARDS[shard][1] is Flush.SYNC and changed,
        )

    @rule(shard=simple_shards, back=st.integers(0, 6))
    def truncate(self, shard: ShardId, back: int) -> None:
        model = self.model[shard]
        offset = max(model.floor, model.next_offset - back)
        assert self.rig.store.truncate(shard, offset) == offset
        self.do(lambda model: model[shard].truncate(offset), synced=True)

    @rule(back=st.integers(0, 6))
    def truncate_batches(self, back: int) -> None:
        model = self.model[BATCHED]
        offset = max(model.floor, model.next_offset - back)
        end = self.rig.store.truncate(BATCHED, offset)
        assert end <= offset
        self.do(lambda model: model[BATCHED].truncate(end), synced=True)

    # What the store does by itself

    @rule()
    def flush(self) -> None:
        self.rig.store.flush()
        self.durable = int(self.rig.store.bounds(QUICK).end_position)

    @rule()
    def checkpoint(self) -> None:
        self.rig.store.checkpoint()
        self.durable = int(self.rig.store.bounds(QUICK).end_position)

    @rule()
    def upkeep(self) -> None:
        self.rig.store.run_upkeep()
        self.durable = int(self.rig.store.bounds(QUICK).end_position)

    @rule()
    def look_at_everything(self) -> None:
        for shard, model in self.model.items():
            check_shard(self.rig.store, shard, model)

    # What happens to it

    @rule()
    def restart(self) -> None:
        end = self.rig.store.bounds(QUICK).end_position
        report = self.rig.restart().report
        assert (report.end_position, report.bytes_cut) == (end, 0)
        self.durable = int(end)
        self.after_start()

    @rule()
    def kill(self) -> None:
        end = self.rig.store.bounds(QUICK).end_position
        report = self.rig.kill().report
        assert (report.end_position, report.bytes_cut) == (end, 0)
        self.durable = int(end)
        self.after_start()

    @rule(seed=st.integers(0, 1 << 32))
    def cut_power(self, seed: int) -> None:
        end = self.rig.crash(seed).report.end_position
        assert end >= self.durable
        self.history = [done for done in self.history if done.end <= end]
        self.model = {}
        for done in self.history:
            done.apply(self.model)
        self.durable = end
        self.after_start()

    def after_start(self) -> None:
        report = self.rig.store.report
        assert (report.damaged, report.rebuilt) == ([], [])
        for shard, (_, flush) in SHARDS.items():
            if shard in self.model:
                self.rig.store.set_flush(shard, flush)
                check_shard(self.rig.store, shard, self.model[shard])
            else:
                with pytest.raises(UnknownShardError):
                    self.rig.store.bounds(shard)
                self.rig.store.create_shard(shard, SHARDS[shard][0], flush)
                self.do(partial(_add_model, shard))

    def teardown(self) -> None:
        if self.model:
            self.look_at_everything()


def _add_model(shard: ShardId, model: Model) -> None:
    model[shard] = ShardModel()


_CHECKS = list(HealthCheck)
TestRandomHistories = Histories.TestCase
TestRandomHistories.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=_CHECKS
)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("portion", range(PORTIONS))
def test_very_many_random_histories(portion: int) -> None:
    """In portions, for several processes: 20 000 of them together, each another one."""
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=1_000,
            stateful_step_count=60,
            deadline=None,
            derandomize=False,
            suppress_health_check=_CHECKS,
        ),
    )
