"""Durable engines: after a restart, clean or not, everything is as it was."""

from __future__ import annotations

import pytest

from penstock.engine.contract import AdapterOffsetStrategy, StorageEngine
from penstock.errors import ProducerFencedError, RecordTooLargeError, ShardSealedError
from penstock.record import Offset, Producer, Record, ShardId
from penstock.testing.conformance.cases.writes import ODD_TEXTS
from penstock.testing.conformance.harness import (
    FIRST,
    SHARD,
    Conformance,
    EngineHarness,
    bounds,
    offsets,
    put,
    read_all,
    values,
)


class Restarts(Conformance):
    @pytest.fixture(params=["reopen", "crash"])
    def restart(self, request: pytest.FixtureRequest, harness: EngineHarness) -> str:
        if not harness.capabilities.durable:
            pytest.skip("this engine does not claim to be durable")
        how: str = request.param
        return how

    def again(self, harness: EngineHarness, restart: str) -> StorageEngine:
        return harness.crash() if restart == "crash" else harness.reopen()

    def test_records_survive_in_every_read(
        self, harness: EngineHarness, engine: StorageEngine, restart: str
    ) -> None:
        records = [
            Record(value=b"%d" % n, key=b"%d" % (n % 3), tags=(text, "t"), timestamp_ms=n)
            for n, text in enumerate(ODD_TEXTS)
        ]
        engine.batch_write(SHARD, records[:5])
        put(engine, *records[5:])
        before = read_all(engine)
        history = engine.query_by_key(SHARD, b"1")
        for _ in range(2):
            engine = self.again(harness, restart)
            assert engine.list_shard() == [SHARD]
            assert read_all(engine) == before
            assert engine.query_by_key(SHARD, b"1") == history
            assert engine.read_by_key(SHARD, b"1") == history[0]
            assert engine.read_by_tag(SHARD, "t") == before
            for number, text in enumerate(ODD_TEXTS):
                assert offsets(engine.read_by_tag(SHARD, text)) == [number]
            latest = AdapterOffsetStrategy.LATEST
            assert engine.get_offset_by_timestamp(SHARD, 7, latest) == 7

    def test_writing_goes_on_where_it_ended(
        self, harness: EngineHarness, engine: StorageEngine, restart: str
    ) -> None:
        for start in range(0, 40, 10):
            assert engine.batch_write(SHARD, [Record(value=b"v")] * 10).first == start
            engine = self.again(harness, restart)
            assert bounds(engine) == (0, start + 10)
            assert engine.shard_info(SHARD).commit == start + 10
        assert offsets(read_all(engine)) == list(range(40))

    def test_an_empty_shard_stays(
        self, harness: EngineHarness, engine: StorageEngine, restart: str
    ) -> None:
        engine = self.again(harness, restart)
        assert bounds(engine) == (0, 0)
        assert put(engine, b"v") == 0

    def test_deleted_records_stay_deleted_and_their_offsets_unused(
        self, harness: EngineHarness, engine: StorageEngine, restart: str
    ) -> None:
        put(engine, *(Record(value=b"v", key=b"%d" % (n % 4), tags=("t",)) for n in range(12)))
        engine.delete_by_key(SHARD, b"3")
        engine.delete_by_offset(SHARD, Offset(0))
        engine.delete_by_offset(SHARD, Offset(10))
        for _ in range(2):
            engine = self.again(harness, restart)
            assert offsets(read_all(engine)) == [1, 2, 4, 5, 6, 8, 9]
            assert offsets(engine.read_by_tag(SHARD, "t")) == [1, 2, 4, 5, 6, 8, 9]
            assert engine.read_by_key(SHARD, b"3") is None
            assert engine.delete_by_offset(SHARD, Offset(0)) is False
            assert bounds(engine) == (0, 12)
        assert put(engine, b"next") == 12

    def test_a_shard_without_any_record_left_keeps_its_end(
        self, harness: EngineHarness, engine: StorageEngine, restart: str
    ) -> None:
        put(engine, *[Record(value=b"v", key=b"k")] * 5)
        engine.delete_by_key(SHARD, b"k")
        engine = self.again(harness, restart)
        assert bounds(engine) == (0, 5)
        assert put(engine, b"v") == 5

    def test_the_earliest_offset_survives(
        self, harness: EngineHarness, engine: StorageEngine, restart: str
    ) -> None:
        put(engine, *[Record(value=b"v", key=b"k", tags=("t",))] * 10)
        engine.delete_records_before(SHARD, Offset(7))
        engine = self.again(harness, restart)
        assert bounds(engine) == (7, 10)
        assert offsets(read_all(engine)) == offsets(engine.read_by_tag(SHARD, "t")) == [7, 8, 9]
        engine.delete_records_before(SHARD, Offset(10))
        engine = self.again(harness, restart)
        assert bounds(engine) == (10, 10)
        assert engine.read_by_key(SHARD, b"k") is None

    def test_producers_are_still_known(
        self, harness: EngineHarness, engine: StorageEngine, restart: str
    ) -> None:
        for sequence in range(7):
            engine.write(SHARD, Record(value=b"v"), producer=Producer(1, 2, sequence))
        engine.write(SHARD, Record(value=b"v"), producer=Producer(2, 0, 0))
        engine = self.again(harness, restart)
        for sequence in range(2, 7):
            again = engine.write(SHARD, Record(value=b"v"), producer=Producer(1, 2, sequence))
            assert (again.first, again.repeated) == (sequence, True)
        with pytest.raises(ProducerFencedError):
            engine.write(SHARD, Record(value=b"v"), producer=Producer(1, 1, 7))
        assert engine.write(SHARD, Record(value=b"v"), producer=Producer(1, 2, 7)).first == 8
        assert engine.write(SHARD, Record(value=b"v"), producer=Producer(2, 0, 0)).repeated

    def test_a_seal_and_an_altered_configuration_survive(
        self, harness: EngineHarness, engine: StorageEngine, restart: str
    ) -> None:
        other = ShardId("other", 3)
        engine.create_shard(other, harness.config())
        engine.alter_shard(other, harness.config(record_size_max=10))
        put(engine, b"v")
        engine.seal_shard(SHARD)
        engine = self.again(harness, restart)
        assert engine.shard_info(SHARD).sealed
        with pytest.raises(ShardSealedError):
            put(engine, b"v")
        with pytest.raises(RecordTooLargeError):
            put(engine, bytes(11), shard=other)

    def test_a_deleted_shard_stays_deleted(
        self, harness: EngineHarness, engine: StorageEngine, restart: str
    ) -> None:
        other = ShardId("orders", 1)
        engine.create_shard(other, harness.config())
        put(engine, b"v")
        engine.delete_shard(SHARD)
        engine = self.again(harness, restart)
        assert engine.list_shard() == [other]
        engine.create_shard(SHARD, harness.config())
        assert bounds(engine) == (0, 0)
        assert read_all(engine) == []

    def test_a_shard_created_after_a_restart_shares_nothing_with_older_ones(
        self, harness: EngineHarness, engine: StorageEngine, restart: str
    ) -> None:
        shards = [SHARD]
        for number in range(1, 4):
            put(engine, Record(value=b"%d" % number, key=b"k", tags=("t",)), shard=shards[-1])
            engine = self.again(harness, restart)
            shards.append(ShardId("later", number))
            engine.create_shard(shards[-1], harness.config())
        for number, shard in enumerate(shards, 1):
            expected = [b"%d" % number] if number < 4 else []
            assert values(read_all(engine, shard)) == expected
            assert values(engine.query_by_key(shard, b"k")) == expected
            assert values(engine.read_by_tag(shard, "t")) == expected

    def test_a_shard_created_again_holds_only_its_new_records(
        self, harness: EngineHarness, engine: StorageEngine, restart: str
    ) -> None:
        old = Record(value=b"old", key=b"k", tags=("t",), timestamp_ms=1)
        for sequence in range(20):
            engine.write(SHARD, old, producer=Producer(1, 0, sequence))
        engine.delete_shard(SHARD)
        engine.create_shard(SHARD, harness.config())
        engine.write(SHARD, Record(value=b"new"), producer=Producer(1, 0, 5))
        for _ in range(2):
            engine = self.again(harness, restart)
            assert bounds(engine) == (0, 1)
            assert values(engine.read_by_offset(SHARD, FIRST)) == [b"new"]
            assert engine.read_by_key(SHARD, b"k") is None
            assert engine.read_by_tag(SHARD, "t") == []
            again = engine.write(SHARD, Record(value=b"new"), producer=Producer(1, 0, 5))
            assert (again.first, again.repeated) == (0, True)

    def test_compaction_survives(
        self, harness: EngineHarness, engine: StorageEngine, compacted: ShardId, restart: str
    ) -> None:
        put(engine, *[Record(value=b"v", key=b"k")] * 5, shard=compacted)
        engine.compact(compacted)
        engine = self.again(harness, restart)
        assert offsets(read_all(engine, compacted)) == [4]
        assert engine.compact(compacted).records == 0

    def test_expiry_goes_on(
        self, harness: EngineHarness, engine: StorageEngine, restart: str
    ) -> None:
        expires_ms = harness.clock.now_ms() + 1_000
        put(engine, Record(value=b"v", expires_at_ms=expires_ms), b"lasting")
        engine = self.again(harness, restart)
        assert offsets(read_all(engine)) == [0, 1]
        harness.clock.advance(1)
        assert offsets(read_all(engine)) == [1]
        engine = self.again(harness, restart)
        assert offsets(read_all(engine)) == [1]
