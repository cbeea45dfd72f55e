"""Shards: created, altered, sealed, listed, deleted, created again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.engine.contract import AdapterOffsetStrategy, StorageEngine
from penstock.errors import (
    AlreadyExistsError,
    BadRequestError,
    ClosedError,
    RecordTooLargeError,
    ShardSealedError,
    UnknownShardError,
)
from penstock.record import Offset, Producer, QueueKind, Record, ShardId
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

OTHER_KIND = {QueueKind.SIMPLE: QueueKind.BATCH, QueueKind.BATCH: QueueKind.SIMPLE}


class Shards(Conformance):
    def test_the_engine_declares_the_capabilities_that_the_suite_was_told(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        assert engine.capabilities == harness.capabilities

    def test_a_new_shard_is_empty_and_begins_at_offset_0(self, engine: StorageEngine) -> None:
        info = engine.shard_info(SHARD)
        assert (info.shard, info.earliest, info.commit, info.latest) == (SHARD, 0, 0, 0)
        assert not info.sealed
        assert engine.read_by_offset(SHARD, FIRST) == []

    def test_creating_a_shard_again_does_nothing(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        put(engine, b"kept")
        engine.create_shard(SHARD, harness.config(record_size_max=1))
        put(engine, b"the first configuration still holds")
        assert bounds(engine) == (0, 2)

    def test_creating_a_shard_again_with_another_queue_kind_is_refused(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        put(engine, b"kept")
        other = replace(harness.config(), kind=OTHER_KIND[harness.base_config.kind])
        with pytest.raises(AlreadyExistsError):
            engine.create_shard(SHARD, other)
        assert values(read_all(engine)) == [b"kept"]

    def test_an_altered_configuration_holds_from_now_on(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        engine.alter_shard(SHARD, harness.config(record_size_max=10))
        with pytest.raises(RecordTooLargeError):
            put(engine, b"eleven bytes")
        engine.alter_shard(SHARD, harness.config())
        put(engine, b"eleven bytes")
        assert bounds(engine) == (0, 1)

    def test_the_queue_kind_cannot_be_altered(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        other = replace(harness.config(), kind=OTHER_KIND[harness.base_config.kind])
        with pytest.raises(BadRequestError):
            engine.alter_shard(SHARD, other)

    def test_shards_are_listed_sorted_and_by_topic(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        for shard in (("b", 0), ("a", 10), ("a", 2), ("a_1", 0), ("ab", 1)):
            engine.create_shard(ShardId(*shard), harness.config())
        assert engine.list_shard() == [("a", 2), ("a", 10), ("a_1", 0), ("ab", 1), ("b", 0), SHARD]
        assert engine.list_shard("a") == [("a", 2), ("a", 10)]
        assert engine.list_shard("nothing") == []

    def test_shards_with_similar_names_share_nothing(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        names = [("a", 1), ("a", 11), ("a_1", 1), ("a_1_1", 1), ("aa", 1), ("A", 1)]
        shards = [ShardId(*name) for name in names]
        for number, shard in enumerate(shards):
            engine.create_shard(shard, harness.config())
            record = Record(value=b"%d" % number, key=b"k", tags=("t",), timestamp_ms=1)
            assert put(engine, record, shard=shard) == 0
        engine.delete_by_key(shards[2], b"k")
        engine.delete_shard(shards[3])
        for number, shard in enumerate(shards):
            if number not in {2, 3}:
                assert values(read_all(engine, shard)) == [b"%d" % number]
                assert values(engine.read_by_tag(shard, "t")) == [b"%d" % number]
                assert values(engine.query_by_key(shard, b"k")) == [b"%d" % number]

    def test_an_odd_topic_name_works_or_is_refused(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        odd = ("a/b", "../a", "a b", "名", "a\x00b", "%", ".", "\udcff", "n" * 200, "_", "a_0")
        created = []
        for topic in odd:
            try:
                engine.create_shard(ShardId(topic, 0), harness.config())
            except BadRequestError:
                continue
            created.append(ShardId(topic, 0))
        for shard in created:
            put(engine, shard.topic.encode("utf-8", "surrogateescape"), shard=shard)
        for shard in created:
            expected = [shard.topic.encode("utf-8", "surrogateescape")]
            assert values(read_all(engine, shard)) == expected
            assert engine.list_shard(shard.topic) == [shard]

    def test_a_sealed_shard_refuses_writes_with_a_typed_error(self, engine: StorageEngine) -> None:
        put(engine, b"before")
        engine.seal_shard(SHARD)
        engine.seal_shard(SHARD)
        for _ in range(2):
            with pytest.raises(ShardSealedError):
                put(engine, b"after")
        assert engine.shard_info(SHARD).sealed
        assert bounds(engine) == (0, 1)

    def test_reads_and_deletes_of_a_sealed_shard_go_on(self, engine: StorageEngine) -> None:
        put(engine, *(Record(value=b"v", key=b"%d" % n, tags=("t",)) for n in range(5)))
        engine.seal_shard(SHARD)
        assert engine.delete_by_offset(SHARD, Offset(1))
        assert engine.delete_by_key(SHARD, b"2") == 1
        assert engine.delete_records_before(SHARD, Offset(1)) == 1
        assert offsets(read_all(engine)) == offsets(engine.read_by_tag(SHARD, "t")) == [3, 4]
        assert engine.read_by_key(SHARD, b"3") is not None

    def test_a_repeat_of_a_write_from_before_the_seal_is_still_answered(
        self, engine: StorageEngine
    ) -> None:
        first = engine.write(SHARD, Record(value=b"v"), producer=Producer(1, 0, 0))
        engine.seal_shard(SHARD)
        again = engine.write(SHARD, Record(value=b"v"), producer=Producer(1, 0, 0))
        assert (again.first, again.repeated) == (first.first, True)

    def test_deleting_a_shard_forgets_it(self, engine: StorageEngine) -> None:
        put(engine, b"gone")
        engine.delete_shard(SHARD)
        assert engine.list_shard() == []
        with pytest.raises(UnknownShardError):
            engine.read_by_offset(SHARD, FIRST)

    def test_deleting_a_shard_that_does_not_exist_does_nothing(self, engine: StorageEngine) -> None:
        engine.delete_shard(ShardId("nothing", 7))
        engine.delete_shard(SHARD)
        engine.delete_shard(SHARD)

    def test_a_shard_created_again_is_empty_and_begins_at_offset_0(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        for _ in range(3):
            for number in range(20):
                record = Record(value=b"old", key=b"k", tags=("t",), timestamp_ms=number)
                engine.write(SHARD, record, producer=Producer(1, 0, number))
            engine.delete_records_before(SHARD, Offset(3))
            engine.seal_shard(SHARD)
            engine.delete_shard(SHARD)
            engine.create_shard(SHARD, harness.config())
            assert bounds(engine) == (0, 0)
            assert not engine.shard_info(SHARD).sealed
            self._check_holds_nothing(engine)
            # Longer than the old content: nothing of it shows through after the new end.
            assert put(engine, b"new") == 0
            assert values(read_all(engine)) == [b"new"]
            assert engine.read_by_key(SHARD, b"k") is None
            engine.delete_shard(SHARD)
            engine.create_shard(SHARD, harness.config())

    def _check_holds_nothing(self, engine: StorageEngine) -> None:
        assert engine.read_by_offset(SHARD, FIRST) == []
        assert engine.read_by_tag(SHARD, "t") == []
        assert engine.read_by_key(SHARD, b"k") is None
        assert engine.query_by_key(SHARD, b"k") == []
        latest = AdapterOffsetStrategy.LATEST
        assert engine.get_offset_by_timestamp(SHARD, 0, latest) == 0

    def test_every_operation_on_an_unknown_shard_says_so(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        unknown = ShardId("unknown", 0)
        strategy = AdapterOffsetStrategy.EARLIEST
        for call in (
            lambda: engine.alter_shard(unknown, harness.config()),
            lambda: engine.seal_shard(unknown),
            lambda: engine.write(unknown, Record(value=b"")),
            lambda: engine.batch_write(unknown, [Record(value=b"")]),
            lambda: engine.read_by_offset(unknown, FIRST),
            lambda: engine.read_by_tag(unknown, "t"),
            lambda: engine.read_by_key(unknown, b"k"),
            lambda: engine.query_by_key(unknown, b"k"),
            lambda: engine.delete_by_key(unknown, b"k"),
            lambda: engine.delete_by_offset(unknown, FIRST),
            lambda: engine.delete_records_before(unknown, FIRST),
            lambda: engine.get_offset_by_timestamp(unknown, 0, strategy),
            lambda: engine.compact(unknown),
            lambda: engine.apply_retention(unknown),
            lambda: engine.shard_info(unknown),
        ):
            with pytest.raises(UnknownShardError):
                call()

    def test_a_closed_engine_refuses_everything_and_closes_twice(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        put(engine, b"v")
        engine.close()
        engine.close()
        for call in (
            lambda: engine.create_shard(ShardId("new", 0), harness.config()),
            lambda: engine.delete_shard(SHARD),
            lambda: engine.list_shard(),
            lambda: engine.write(SHARD, Record(value=b"")),
            lambda: engine.read_by_offset(SHARD, FIRST),
            lambda: engine.read_by_key(SHARD, b"k"),
            lambda: engine.delete_by_offset(SHARD, FIRST),
            lambda: engine.shard_info(SHARD),
            lambda: engine.apply_retention(SHARD),
        ):
            with pytest.raises(ClosedError):
                call()
