"""Random histories, done to the memory engine and to another one side by side.

Both must answer every call alike, errors included, through restarts and crashes of the other one.
The memory engine is the specification. A line in `ENGINES` brings a new engine here, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace
from tests.engine.quick_directory import quick_directory

from penstock.engine.contract import (
    AdapterOffsetStrategy,
    Cleanup,
    Compacted,
    ShardConfig,
    ShardInfo,
    StorageEngine,
)
from penstock.engine.segment.engine import SegmentEngine
from penstock.errors import RequestError
from penstock.record import Offset, Producer, Record, ShardId
from penstock.testing.conformance import EngineHarness
from penstock.testing.conformance.engines import ENGINES, MemoryHarness

DELETED: Final = ShardId("plain", 0)
COMPACTED: Final = ShardId("compacted", 1)
SHARDS: Final = (DELETED, COMPACTED)
LARGE: Final = bytes(3 << 20)

shards = st.sampled_from(SHARDS)
keys = st.sampled_from([b"a", b"b", b"c", b"", b"a\x00", b"\xff", b"k" * 200])
tags = st.sampled_from(["t", "t/u", "", "é", "\udcff", "*multi*", "u" * 200])
# From every part of a shard that a history can reach, and past it.
offsets = st.integers(0, 12) | st.integers(0, 5_000)
times = st.integers(0, 50) | st.integers(0, 3_000)
ages = st.integers(1, 60) | st.integers(1, 3_000)
headers = st.tuples(tags, st.none() | st.binary(max_size=3))
records = st.builds(
    Record,
    value=st.none() | st.binary(max_size=4),
    key=st.none() | keys,
    tags=st.lists(tags, max_size=3).map(tuple),
    headers=st.lists(headers, max_size=2).map(tuple),
    timestamp_ms=st.none() | times,
    expires_at_ms=st.none() | st.integers(0, 60),
)


class SideBySide(RuleBasedStateMachine):
    """Time begins at 0 and moves by a few milliseconds, so that random records expire."""

    make_harness: Callable[[Path], EngineHarness]

    def __init__(self) -> None:
        super().__init__()
        self.directory = quick_directory()
        self.harness = type(self).make_harness(Path(self.directory.name))
        self.clock = self.harness.clock
        self.clock.set_now_ms(0)
        self.memory_harness = MemoryHarness(Path(self.directory.name))
        self.memory_harness.clock = self.clock
        self.engine = self.harness.make()
        self.memory = self.memory_harness.make()
        self.sequences: dict[ShardId, int] = {}

    def teardown(self) -> None:
        self.harness.close()
        self.directory.cleanup()

    def both(self, call: Callable[[StorageEngine], object]) -> object:
        """Do the same to both; they must answer the same, or refuse for the same reason."""
        expected, actual = outcome(call, self.memory), outcome(call, self.engine)
        assert actual == expected
        return expected

    @initialize()
    def create(self) -> None:
        for shard in SHARDS:
            self.create_shard(shard)

    @rule(shard=shards)
    def create_shard(self, shard: ShardId) -> None:
        config = self.config(shard)
        self.both(lambda engine: engine.create_shard(shard, config))

    def config(self, shard: ShardId) -> ShardConfig:
        if shard != COMPACTED:
            return self.harness.config()
        config = self.harness.config(cleanup=Cleanup.COMPACT)
        return replace(config, tombstone_retention_ms=20, compaction_lag_ms=3)

    @rule(shard=shards, really=st.integers(0, 9))
    def delete_shard(self, shard: ShardId, really: int) -> None:
        if really == 0:
            self.both(lambda engine: engine.delete_shard(shard))
            self.both(lambda engine: engine.list_shard())

    @rule(shard=shards, really=st.integers(0, 9))
    def seal_shard(self, shard: ShardId, really: int) -> None:
        if really == 0:
            self.both(lambda engine: engine.seal_shard(shard))

    @rule(shard=shards, record=records)
    def write(self, shard: ShardId, record: Record) -> None:
        self.both(lambda engine: engine.write(shard, record))

    @rule(shard=shards, batch=st.lists(records, min_size=1, max_size=6))
    def batch_write(self, shard: ShardId, batch: list[Record]) -> None:
        self.both(lambda engine: engine.batch_write(shard, batch))

    @rule(shard=shards, count=st.integers(300, 1_500), step=st.integers(-7, 7), record=records)
    def write_many(self, shard: ShardId, count: int, step: int, record: Record) -> None:
        batch = [
            replace(record, timestamp_ms=1_500 + step * (n % 97), key=b"%d" % (n % 50))
            for n in range(count)
        ]
        self.both(lambda engine: engine.batch_write(shard, batch))

    @rule(shard=shards, count=st.integers(1, 3), really=st.integers(0, 9))
    def write_large(self, shard: ShardId, count: int, really: int) -> None:
        """Enough of these roll the log of a segment store."""
        if really == 0:
            batch = [Record(LARGE, key=b"a", timestamp_ms=n) for n in range(count)]
            self.both(lambda engine: engine.batch_write(shard, batch))

    @rule(
        shard=shards,
        back=st.integers(-1, 7),
        epoch=st.integers(0, 1),
        batch=st.lists(records, min_size=1, max_size=2),
    )
    def write_as_producer(self, shard: ShardId, back: int, epoch: int, batch: list[Record]) -> None:
        """Most of them repeats, of this write or of an earlier one; some next in turn."""
        producer = Producer(1, epoch, max(0, self.sequences.get(shard, 0) - back))
        done = self.both(lambda engine: engine.batch_write(shard, batch, producer=producer))
        if not isinstance(done, type):
            self.sequences[shard] = producer.sequence + len(batch)

    @rule(shard=shards, start=offsets, count=st.integers(1, 8), size=st.sampled_from([1, 1 << 30]))
    def read_by_offset(self, shard: ShardId, start: int, count: int, size: int) -> None:
        self.both(
            lambda engine: engine.read_by_offset(
                shard, Offset(start), max_records=count, max_size=size
            )
        )

    @rule(shard=shards, tag=tags, start=offsets, count=st.integers(1, 8))
    def read_by_tag(self, shard: ShardId, tag: str, start: int, count: int) -> None:
        self.both(
            lambda engine: engine.read_by_tag(
                shard, tag, start_offset=Offset(start), max_records=count
            )
        )

    @rule(shard=shards, key=keys, begin=times, end=st.none() | times, limit=st.integers(1, 9))
    def read_by_key(
        self, shard: ShardId, key: bytes, begin: int, end: int | None, limit: int
    ) -> None:
        self.both(lambda engine: engine.read_by_key(shard, key))
        self.both(
            lambda engine: engine.query_by_key(shard, key, begin_ms=begin, end_ms=end, limit=limit)
        )

    @rule(shard=shards, time=times, strategy=st.sampled_from(AdapterOffsetStrategy))
    def find_time(self, shard: ShardId, time: int, strategy: AdapterOffsetStrategy) -> None:
        self.both(lambda engine: engine.get_offset_by_timestamp(shard, time, strategy))

    @rule(shard=shards, key=keys)
    def delete_by_key(self, shard: ShardId, key: bytes) -> None:
        self.both(lambda engine: engine.delete_by_key(shard, key))

    @rule(shard=shards, offset=offsets)
    def delete_by_offset(self, shard: ShardId, offset: int) -> None:
        self.both(lambda engine: engine.delete_by_offset(shard, Offset(offset)))

    @rule(shard=shards, offset=offsets)
    def delete_records_before(self, shard: ShardId, offset: int) -> None:
        self.both(lambda engine: engine.delete_records_before(shard, Offset(offset)))

    @rule(shard=shards)
    def compact(self, shard: ShardId) -> None:
        self.both(lambda engine: engine.compact(shard))

    @rule(
        shard=shards,
        records=st.none() | st.integers(1, 40) | st.integers(1, 3_000),
        age_ms=st.none() | ages,
        both=st.booleans(),
        hole=st.booleans(),
    )
    def retain(
        self, shard: ShardId, records: int | None, age_ms: int | None, both: bool, hole: bool
    ) -> None:
        """For a moment the shard may keep so much, and what is too much or too old goes. With a
        hole, where the last records begin there is nothing that it could begin with."""
        config = self.config(shard)
        if hole and records is not None and shard in self.memory.list_shard():
            self.delete_by_offset(shard, max(0, self.memory.shard_info(shard).commit - records))
        limited = replace(config, retention_records=records, retention_ms=age_ms)
        if both and shard == COMPACTED:
            limited = replace(limited, cleanup=Cleanup.BOTH)
        self.alter_shard(shard, limited)
        self.both(lambda engine: engine.apply_retention(shard))
        self.alter_shard(shard, config)

    @precondition(lambda self: isinstance(self.engine, SegmentEngine))
    @rule(age_ms=ages)
    def retain_all(self, age_ms: int) -> None:
        """The store's own round over all its shards comes to the same."""
        for shard in SHARDS:
            self.alter_shard(shard, replace(self.config(shard), retention_ms=age_ms))
        assert isinstance(self.engine, SegmentEngine)
        self.engine.store.run_upkeep()
        for shard in SHARDS:
            if shard in self.memory.list_shard():
                self.memory.apply_retention(shard)
            self.compare_everything(shard)
            self.alter_shard(shard, self.config(shard))

    def alter_shard(self, shard: ShardId, config: ShardConfig) -> None:
        self.both(lambda engine: engine.alter_shard(shard, config))

    @rule(milliseconds=st.integers(0, 10) | st.integers(0, 2_000))
    def pass_time(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds=milliseconds)

    @precondition(lambda self: self.harness.capabilities.durable)
    @rule()
    def restart(self) -> None:
        self.engine = self.harness.reopen()

    @precondition(lambda self: self.harness.capabilities.durable)
    @rule()
    def crash(self) -> None:
        self.engine = self.harness.crash()

    @rule(shard=shards)
    def compare_everything(self, shard: ShardId) -> None:
        self.both(lambda engine: engine.shard_info(shard))
        self.both(
            lambda engine: engine.read_by_offset(
                shard, Offset(0), max_records=100_000, max_size=1 << 40
            )
        )


def outcome(call: Callable[[StorageEngine], object], engine: StorageEngine) -> object:
    """Return the answer without what engines may count differently, or the kind of refusal."""
    try:
        answer = call(engine)
    except RequestError as error:
        return type(error)
    if isinstance(answer, ShardInfo | Compacted):
        return replace(answer, size=0)
    return answer


DURABLE: Final = sorted(ENGINES.keys() - {"memory"})


def compare_histories(name: str, extent: settings) -> None:
    class Machine(SideBySide):
        make_harness = staticmethod(ENGINES[name])

    run_state_machine_as_test(Machine, settings=extent)


@pytest.mark.parametrize("name", DURABLE)
@pytest.mark.timeout(600)
def test_an_engine_answers_any_history_as_the_memory_engine_does(name: str) -> None:
    compare_histories(name, settings(stateful_step_count=30))


@pytest.mark.soak
@pytest.mark.parametrize("name", DURABLE)
@pytest.mark.timeout(7_200)
def test_an_engine_answers_many_long_histories_as_the_memory_engine_does(name: str) -> None:
    every_check: settings = settings.get_profile("soak")
    compare_histories(name, settings(every_check, max_examples=500, stateful_step_count=80))
