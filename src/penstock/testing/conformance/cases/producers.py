"""Idempotent producers: repeats, gaps, fences, and how much is remembered."""

from __future__ import annotations

import pytest

from penstock.engine.contract import StorageEngine, Written
from penstock.errors import (
    BadRequestError,
    ProducerFencedError,
    RecordTooLargeError,
    SequenceGapError,
)
from penstock.record import Offset, Producer, Record, ShardId
from penstock.testing.conformance.harness import (
    SHARD,
    Conformance,
    EngineHarness,
    bounds,
    put,
    read_all,
    values,
)


def send(
    engine: StorageEngine,
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    producer_id: int = 7,
    shard: ShardId = SHARD,
) -> Written:
    records = [Record(value=b"%d" % (sequence + n)) for n in range(count)]
    return engine.batch_write(shard, records, producer=Producer(producer_id, epoch, sequence))


class Producers(Conformance):
    def test_a_repeat_returns_the_first_offsets_and_writes_nothing(
        self, engine: StorageEngine
    ) -> None:
        put(engine, b"somebody else's")
        first = send(engine, 0, 3)
        put(engine, b"somebody else's")
        again = send(engine, 0, 3)
        assert (again.first, again.count, again.repeated) == (1, 3, True)
        assert not first.repeated
        assert again.offsets == first.offsets
        assert bounds(engine) == (0, 5)
        assert send(engine, 3).offsets == range(5, 6)

    def test_a_repeated_single_write_is_recognised_too(self, engine: StorageEngine) -> None:
        producer = Producer(1, 0, 0)
        assert engine.write(SHARD, Record(value=b"v"), producer=producer).first == 0
        assert engine.write(SHARD, Record(value=b"v"), producer=producer).repeated
        assert bounds(engine) == (0, 1)

    def test_each_of_the_last_five_writes_is_recognised(self, engine: StorageEngine) -> None:
        written = [send(engine, 2 * n, 2) for n in range(9)]
        for number in (8, 4, 6, 5, 7, 4):
            again = send(engine, 2 * number, 2)
            assert (again.first, again.repeated) == (written[number].first, True)
        assert bounds(engine) == (0, 18)

    def test_a_repeat_older_than_five_writes_is_refused(self, engine: StorageEngine) -> None:
        for number in range(6):
            send(engine, number)
        with pytest.raises(SequenceGapError):
            send(engine, 0)
        assert send(engine, 1).repeated
        assert bounds(engine) == (0, 6)

    def test_a_gap_is_refused_and_names_what_was_expected(self, engine: StorageEngine) -> None:
        send(engine, 0, 4)
        with pytest.raises(SequenceGapError) as caught:
            send(engine, 5)
        assert (caught.value.sequence, caught.value.expected) == (5, 4)
        assert bounds(engine) == (0, 4)
        assert send(engine, 4).first == 4

    def test_a_part_of_an_earlier_write_is_no_repeat(self, engine: StorageEngine) -> None:
        send(engine, 0, 4)
        for sequence, count in ((0, 3), (0, 5), (1, 3), (3, 1)):
            with pytest.raises(SequenceGapError):
                send(engine, sequence, count)
        assert bounds(engine) == (0, 4)

    def test_a_newer_epoch_fences_the_older(self, engine: StorageEngine) -> None:
        send(engine, 0, 2, epoch=3)
        assert send(engine, 0, epoch=4).first == 2
        with pytest.raises(ProducerFencedError) as caught:
            send(engine, 2, epoch=3)
        assert (caught.value.epoch, caught.value.newest_epoch) == (3, 4)
        with pytest.raises(ProducerFencedError):
            send(engine, 0, 2, epoch=3)
        assert bounds(engine) == (0, 3)
        assert send(engine, 1, epoch=4).first == 3

    def test_a_newer_epoch_begins_at_sequence_0(self, engine: StorageEngine) -> None:
        send(engine, 0, 2)
        with pytest.raises(SequenceGapError):
            send(engine, 2, epoch=1)
        assert send(engine, 0, epoch=1).first == 2

    def test_a_refused_write_does_not_fence(self, engine: StorageEngine) -> None:
        send(engine, 0)
        with pytest.raises(SequenceGapError):
            send(engine, 5, epoch=1)
        assert send(engine, 1).first == 1

    def test_an_unknown_producer_may_begin_anywhere(self, engine: StorageEngine) -> None:
        assert send(engine, 1_000).first == 0
        assert send(engine, 1_001).first == 1

    def test_sequence_numbers_wrap_after_31_bits(self, engine: StorageEngine) -> None:
        last = (1 << 31) - 1
        assert send(engine, last).first == 0
        assert send(engine, 0).first == 1
        assert send(engine, last).repeated
        with pytest.raises(BadRequestError):
            send(engine, last + 1)

    def test_producers_do_not_disturb_each_other(self, engine: StorageEngine) -> None:
        for number in range(10):
            for producer_id in (0, 1, (1 << 63) - 1):
                send(engine, number, producer_id=producer_id, epoch=producer_id % 5)
            put(engine, b"without a producer")
        assert bounds(engine) == (0, 40)
        assert send(engine, 9, producer_id=1, epoch=1).first == 37

    def test_each_shard_remembers_by_itself(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        other = ShardId("orders", 1)
        engine.create_shard(other, harness.config())
        send(engine, 0)
        assert not send(engine, 0, shard=other).repeated
        assert not send(engine, 1, shard=other).repeated
        assert not send(engine, 1).repeated

    def test_a_failed_write_uses_up_no_sequence_number(
        self, harness: EngineHarness, engine: StorageEngine
    ) -> None:
        engine.alter_shard(SHARD, harness.config(record_size_max=100))
        send(engine, 0)
        with pytest.raises(RecordTooLargeError):
            engine.write(SHARD, Record(value=bytes(101)), producer=Producer(7, 0, 1))
        with pytest.raises(BadRequestError):
            engine.write(SHARD, Record(value=b"", tags=("\ud800",)), producer=Producer(7, 0, 1))
        assert not send(engine, 1).repeated

    def test_a_repeat_is_recognised_after_its_records_were_deleted(
        self, engine: StorageEngine
    ) -> None:
        send(engine, 0, 2)
        engine.delete_by_offset(SHARD, Offset(0))
        engine.delete_records_before(SHARD, Offset(2))
        assert send(engine, 0, 2).offsets == range(2)
        assert read_all(engine) == []
        send(engine, 2)
        assert values(read_all(engine)) == [b"2"]
