"""The dispatch pipeline under random histories of appends, failures, restarts and power cuts."""

from __future__ import annotations

import random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.engine.segment.dispatch.dispatch_bench import Bench, Collector

from penstock.engine.segment.dispatch.worker import RETRY_MAX_S
from penstock.record import ShardId


class AgainstTheShards(RuleBasedStateMachine):
    """Appends, commits, deletions, failures, crashes: when all is well again, two dispatchers have
    seen every live record, and each record they saw is the one at its offset."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.collectors = [Collector("one"), Collector("two")]
        self.register()

    def register(self) -> None:
        for collector in self.collectors:
            self.bench.pipeline.register(collector)

    @rule(number=st.integers(0, 2), count=st.integers(1, 5), commit=st.booleans())
    def append(self, number: int, count: int, commit: bool) -> None:
        self.bench.shards.append(ShardId("t", number), count, commit=commit)

    @rule(number=st.integers(0, 2), offset=st.integers(0, 20))
    def delete(self, number: int, offset: int) -> None:
        self.bench.shards.holes.add((ShardId("t", number), offset))

    @rule(seconds=st.sampled_from([0.0, 0.3, 2.0]))
    def run(self, seconds: float) -> None:
        self.bench.clock.advance(seconds)
        self.bench.pipeline.run_once()

    @rule(which=st.integers(0, 1), number=st.integers(0, 2))
    def break_one(self, which: int, number: int) -> None:
        self.collectors[which].broken.add(ShardId("t", number))

    @rule()
    def restart(self) -> None:
        self.bench.pipeline.close()
        self.bench.open()
        self.register()

    @rule(seed=st.integers(0, 1000), data=st.data())
    def cut_power(self, seed: int, data: st.DataObject) -> None:
        """The shards may lose tails, which dispatchers may have seen."""
        shards = self.bench.shards
        self.bench.disk.crash(random.Random(seed))
        for shard, values in shards.values.items():
            end = data.draw(st.integers(shards.earliest[shard], len(values)))
            del values[end:]
            shards.commit[shard] = end
            shards.holes = {(s, n) for s, n in shards.holes if s != shard or n < end}
            for collector in self.collectors:
                got = collector.got.get(shard, {})
                collector.got[shard] = {n: value for n, value in got.items() if n < end}
        self.bench.open()
        self.register()

    @rule()
    def mend_and_finish(self) -> None:
        for collector in self.collectors:
            collector.broken.clear()
        self.bench.clock.advance(RETRY_MAX_S)
        self.bench.pipeline.run_once()
        for collector in self.collectors:
            assert self.bench.pipeline.failures(collector.name) == {}
            for shard in self.bench.shards.values:
                assert set(collector.offsets(shard)) >= set(self.bench.shards.live(shard))
            assert set(self.bench.pipeline.lag(collector.name).values()) <= {0}

    @invariant()
    def nobody_saw_what_is_not_committed_or_another_record(self) -> None:
        for collector in self.collectors:
            for shard, got in collector.got.items():
                values = self.bench.shards.values[shard]
                assert all(n < self.bench.shards.commit[shard] for n in got)
                assert all(values[n] == value for n, value in got.items())

    @invariant()
    def what_is_not_lagging_was_seen(self) -> None:
        for collector in self.collectors:
            for shard, lag in self.bench.pipeline.lag(collector.name).items():
                seen_until = self.bench.shards.commit[shard] - lag
                live = [n for n in self.bench.shards.live(shard) if n < seen_until]
                assert set(collector.offsets(shard)) >= set(live)


TestAgainstTheShards = AgainstTheShards.TestCase
